// Package signin signs people in to the console with an identity provider: the authorization code flow of OpenID
// Connect with PKCE, of which this server is the client.
//
// Owns: the settings of the client; the cookie that binds a sign-in to the browser that began it; the pages
// that say why a sign-in failed.
// Never does: decide who somebody is. The installation's verifier (Provider) verifies the provider's token and maps
// it to an actor, as it does with the tokens that programs send.
// Reads: the keys of the installation, the file of the client's secret.
// Emits: nothing.
package signin
