// Package signin tests the sign-in to the console with an OpenID provider: the real binary, a provider on loopback,
// and a client that keeps cookies as a browser does.
//
// Owns: nothing.
// Never does: replace a part of the server.
// Reads: nothing.
// Emits: nothing.
package signin
