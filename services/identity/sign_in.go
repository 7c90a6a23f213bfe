package identity

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
)

const (
	// signInPrefix begins the credential of a sign-in: qid_<key id>_<mark>.<ID token>. The mark is made with a key of
	// the installation, so that an ID token counts only if this installation has received it from the provider
	// in exchange for a code, with the right nonce. Callers cannot send one that they have from elsewhere, such
	// as that of another application that uses the same client.
	signInPrefix  = "qid_"
	signInPurpose = "identity sign-in"
)

// errSignedOut is why a credential of a sign-in is refused whose mark is not valid.
var errSignedOut = fault.Unauthenticated.New("the sign-in is not valid any more; sign in again")

// Endpoint returns the provider's addresses for authorization and for tokens, and how a client sends its secret. It
// returns NOT_READY if the provider cannot be discovered, or has no such endpoints.
func (t *Tokens) Endpoint(ctx context.Context) (oauth2.Endpoint, error) {
	found, err := t.provider(ctx)
	if err != nil {
		return oauth2.Endpoint{}, err
	}
	return found.endpoint, found.endpointErr
}

// endpointOf returns the endpoints of a provider. The addresses are https, or http on loopback.
func endpointOf(p *oidc.Provider, secret bool) (oauth2.Endpoint, error) {
	e := p.Endpoint()
	for _, address := range []string{e.AuthURL, e.TokenURL} {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !onLoopback(u.Hostname())) {
			return e, fault.NotReady.New("the discovery document of the identity provider names no https address for " +
				"authorization_endpoint and token_endpoint, so nobody can sign in with it; an operator compares " +
				"oidc-issuer")
		}
	}
	var doc struct {
		Methods []string `json:"token_endpoint_auth_methods_supported"`
	}
	if err := p.Claims(&doc); err != nil {
		return e, fault.NotReady.New("the discovery document of the identity provider cannot be read").WithCause(err)
	}
	switch {
	case !secret:
		e.AuthStyle = oauth2.AuthStyleInParams
	case len(doc.Methods) == 0 || slices.Contains(doc.Methods, "client_secret_basic"):
		e.AuthStyle = oauth2.AuthStyleInHeader
	case slices.Contains(doc.Methods, "client_secret_post"):
		e.AuthStyle = oauth2.AuthStyleInParams
	default:
		return e, fault.NotReady.New("the identity provider takes neither client_secret_basic nor client_secret_post " +
			"of a client; register a client of one of these, or a public one")
	}
	return e, nil
}

// Client returns the HTTP client for the provider's token endpoint. It follows no redirects: the request has the
// code and the client's secret, which are for that address only.
func (t *Tokens) Client() *http.Client {
	return &http.Client{
		Timeout: providerTimeout, Transport: t.client.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Accept verifies an ID token of a sign-in with its nonce, and maps its claims to an actor as those of other tokens. It
// returns a credential that Authenticate accepts for that actor until ends.
func (t *Tokens) Accept(ctx context.Context, idToken, nonce string) (credential string, ends time.Time, err error) {
	if len(idToken) > tokenMax {
		return "", time.Time{}, fault.Unauthenticated.New("the token is longer than 16 KiB")
	}
	if wait := t.checks.Take(connlimit.SourceOf(ctx)); wait > 0 {
		return "", time.Time{}, fault.RateLimited.New("too many new tokens of this address are being checked; sign " +
			"in again in a moment").WithRetryAfter(wait)
	}
	found, err := t.provider(ctx)
	if err != nil {
		return "", time.Time{}, err
	}
	if found.client == nil {
		return "", time.Time{}, fault.Internal(errors.New("identity: Accept without ClientID"))
	}
	verified, err := found.client.Verify(ctx, idToken)
	if err != nil {
		return "", time.Time{}, t.refused(err)
	}
	var claims struct {
		AuthorizedParty string `json:"azp"`
	}
	if nonce == "" || subtle.ConstantTimeCompare([]byte(verified.Nonce), []byte(nonce)) != 1 {
		return "", time.Time{}, fault.Unauthenticated.New("the identity provider's token is not of this sign-in; " +
			"sign in again")
	}
	if err := verified.Claims(&claims); err != nil || claims.AuthorizedParty != "" &&
		claims.AuthorizedParty != t.cfg.ClientID {
		return "", time.Time{}, fault.Unauthenticated.New("the identity provider issued the token to another client " +
			"than this server")
	}
	if _, err := t.actor(verified); err != nil {
		return "", time.Time{}, err
	}
	key := t.cfg.Keys().Active()
	return signInPrefix + key.ID + "_" + mark(key.Derive(signInPurpose), idToken) + "." + idToken, verified.Expiry, nil
}

// unmarked returns the ID token in the credential of a sign-in. signedIn is false for other credentials.
func (t *Tokens) unmarked(credential string) (idToken string, signedIn bool, err error) {
	rest, ok := strings.CutPrefix(credential, signInPrefix)
	if !ok {
		return "", false, nil
	}
	head, idToken, ok := strings.Cut(rest, ".")
	id, given, both := strings.Cut(head, "_")
	if !ok || !both || id == "" || t.cfg.Keys == nil || t.cfg.ClientID == "" {
		return "", true, errSignedOut
	}
	key, known := t.cfg.Keys().Find(id)
	if !known || !hmac.Equal([]byte(given), []byte(mark(key.Derive(signInPurpose), idToken))) {
		return "", true, errSignedOut
	}
	return idToken, true, nil
}

// mark returns the mark of an ID token under a key.
func mark(key []byte, idToken string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(idToken))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
