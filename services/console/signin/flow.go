package signin

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"go.uber.org/zap"
	"golang.org/x/oauth2"

	"quartet/pkg/fault"
)

const (
	flowPurpose = "console sign-in"
	cookieBase  = "quartet-signin" // name of the cookie; see CookieName
	// maxCookie bounds the value of the cookie. Browsers keep 4 096 bytes with its name and attributes.
	maxCookie = 3800
	// maxCode bounds the provider's code, which the browser brings, and maxIDToken the provider's ID token, in bytes.
	maxCode, maxIDToken = 4 << 10, 16 << 10
	// maxView bounds the view that is shown after the sign-in, in bytes.
	maxView = 1 << 10
)

// progress is the state of a sign-in that a browser has begun. It is kept only in that browser's cookie, encrypted.
type progress struct {
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"` // of PKCE
	Redirect string `json:"r"` // the address to which the provider sends the browser back
	View     string `json:"w"` // the view to show after the sign-in, without "#/"
	Ends     int64  `json:"e"` // seconds since 1970
}

// view matches what follows "#/" in the address of a view of the console: path and parameters, percent-encoded.
var view = regexp.MustCompile(`^[A-Za-z0-9_.~!$&'()*+,;=:@?%/-]*$`)

// codeName matches an error code of OAuth 2.0, in the form that the registered codes have.
var codeName = regexp.MustCompile(`^[a-z_]{1,64}$`)

// offer responds with a JSON object for the sign-in page, which has the provider's address as issuer, or no issuer if
// there is no sign-in with a provider.
func (f *Flow) offer(w http.ResponseWriter) {
	var out struct {
		Issuer string `json:"issuer,omitempty"`
	}
	if f != nil {
		out.Issuer = f.deps.Issuer
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client may have left
}

// start begins a sign-in: it sets the browser's cookie and redirects the browser to the provider.
func (f *Flow) start(w http.ResponseWriter, r *http.Request) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fault.InvalidArgument.New("the query string cannot be read")
	}
	p := progress{
		View: query.Get("view"), State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(),
		Ends: f.deps.Clock.Now().Add(FlowTerm).Unix(),
	}
	if len(p.View) > maxView || !view.MatchString(p.View) {
		return fault.InvalidArgument.Newf("view must be what follows #/ in the address of a view of the console, "+
			"such as agents/keeper, of at most %d bytes", maxView)
	}
	if p.Redirect, err = f.redirect(r); err != nil {
		return err
	}
	client, err := f.client(r.Context(), p.Redirect)
	if err != nil {
		return err
	}
	value, err := SealTicket(f.deps.Keys(), flowPurpose, p)
	if err != nil {
		return fault.Internal(err)
	}
	if len(value) > maxCookie {
		return fault.InvalidArgument.New("view and oidc-redirect-url are longer than a browser keeps in a cookie; " +
			"sign in at /ui/")
	}
	http.SetCookie(w, cookieOf(r, value, int(FlowTerm.Seconds()), secure(p.Redirect)))
	w.Header().Set("Location", client.AuthCodeURL(p.State, oidc.Nonce(p.Nonce), oauth2.S256ChallengeOption(p.Verifier)))
	w.WriteHeader(http.StatusFound)
	return nil
}

// redirect returns the address to which the provider sends the browser back.
func (f *Flow) redirect(r *http.Request) (string, error) {
	if f.cfg.RedirectURL != "" {
		return f.cfg.RedirectURL, nil
	}
	address := "http://" + r.Host + CallbackPath
	if r.TLS != nil {
		address = "https://" + r.Host + CallbackPath
	}
	if !onLoopback(r.Host) || checkRedirect(address) != nil {
		return "", fault.InvalidArgument.New("to where the identity provider sends browsers back is not configured; " +
			"an operator sets public-url or oidc-redirect-url")
	}
	return address, nil
}

// client returns the OAuth 2.0 client for a sign-in, with its secret.
func (f *Flow) client(ctx context.Context, redirect string) (*oauth2.Config, error) {
	endpoint, err := f.deps.Provider.Endpoint(ctx)
	if err != nil {
		return nil, err
	}
	secret, err := f.cfg.secret()
	if err != nil {
		f.deps.Logger.Error("nobody can sign in with the identity provider", zap.Error(err))
		return nil, fault.NotReady.New("this server cannot read the file of its client's secret " +
			"(oidc-client-secret-file); an operator finds more in the server's log")
	}
	if secret == "" {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &oauth2.Config{
		ClientID: f.cfg.ClientID, ClientSecret: secret, Endpoint: endpoint, RedirectURL: redirect,
		Scopes: f.cfg.scopes(),
	}, nil
}

// errForeign is the error for a callback that belongs to no sign-in that the browser has begun and that is not over.
var errForeign = fault.Unauthenticated.New("this browser has not begun this sign-in, or more than 10 minutes ago, or " +
	"at another address of this server; sign in again, and stay at one address and in one tab")

// callback ends a sign-in: it exchanges the code that the provider sent with the browser for a token, begins a
// session with the token's credential, and redirects the browser to the view in the browser's sealed cookie.
func (f *Flow) callback(w http.ResponseWriter, r *http.Request, begin Begin) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || len(query["state"]) != 1 {
		return errForeign
	}
	var p progress
	cookie, err := f.cookie(r)
	if err != nil || len(cookie.Value) > maxCookie || OpenTicket(f.deps.Keys(), flowPurpose, cookie.Value, &p) !=
		nil ||
		!f.deps.Clock.Now().Before(time.Unix(p.Ends, 0)) ||
		subtle.ConstantTimeCompare([]byte(p.State), []byte(query.Get("state"))) != 1 {
		return errForeign
	}
	if err := f.unused(p, false); err != nil {
		return err
	}
	// RFC 9207: a provider that names itself must be this one.
	if iss, given := query["iss"]; given && (len(iss) != 1 || iss[0] != f.deps.Issuer) {
		return fault.Unauthenticated.New("another identity provider than that of this server sent the browser back; " +
			"sign in again")
	}
	if reason := query.Get("error"); reason != "" {
		return refusal(reason)
	}
	code := query.Get("code")
	if code == "" || len(code) > maxCode {
		return fault.Unauthenticated.Newf("the identity provider sent no code of at most %d bytes; sign in again",
			maxCode)
	}
	idToken, err := f.exchange(r.Context(), p, code)
	if err != nil {
		return err
	}
	credential, ends, err := f.deps.Provider.Accept(r.Context(), idToken, p.Nonce)
	if err != nil {
		return err
	}
	if err := f.unused(p, true); err != nil {
		return err
	}
	if err := begin(w, r, credential, ends, secure(p.Redirect)); err != nil {
		return err
	}
	http.SetCookie(w, cookieOf(r, "", -1, secure(p.Redirect)))
	// The location is relative, so that it is also right below the prefix of a proxy. The view is behind the #, so
	// that the browser goes to this console's page, whatever the view is.
	w.Header().Set("Location", "../#/"+p.View)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// unused returns an error if the sign-in p has succeeded before. Otherwise, if use is true, it remembers that p has
// succeeded now. Sign-ins that have not succeeded are not remembered, so that a caller without a token of the
// provider cannot fill the memory; the provider itself accepts a code only once.
func (f *Flow) unused(p progress, use bool) error {
	now := f.deps.Clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, twice := f.used[p.State]; twice {
		return fault.Unauthenticated.New("this sign-in was completed before; sign in again")
	}
	if !use {
		return nil
	}
	for state, ends := range f.used {
		if !now.Before(ends) {
			delete(f.used, state)
		}
	}
	if len(f.used) >= maxUsed {
		return fault.Overloaded.Newf("%d sign-ins succeeded within 10 minutes; repeat it in some minutes", maxUsed).
			WithRetryAfter(time.Minute)
	}
	f.used[p.State] = time.Unix(p.Ends, 0)
	return nil
}

// exchange returns the provider's ID token for a code. Of the provider's response its errors contain only an error
// code that codeName matches.
func (f *Flow) exchange(ctx context.Context, p progress, code string) (string, error) {
	client, err := f.client(ctx, p.Redirect)
	if err != nil {
		return "", err
	}
	token, err := client.Exchange(context.WithValue(ctx, oauth2.HTTPClient, f.deps.Provider.Client()), code,
		oauth2.VerifierOption(p.Verifier))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && codeName.MatchString(refused.ErrorCode):
		f.deps.Logger.Warn("the identity provider refused a code", zap.String("error", refused.ErrorCode))
		return "", refusal(refused.ErrorCode)
	case errors.As(err, &refused):
		f.deps.Logger.Warn("the identity provider did not exchange a code",
			zap.Int("status", refused.Response.StatusCode))
		return "", fault.NotReady.Newf("the identity provider did not exchange the code: its token endpoint "+
			"responded with status %d; sign in again in a moment", refused.Response.StatusCode)
	case err != nil:
		var unreachable *url.Error
		if errors.As(err, &unreachable) { // names the endpoint, and nothing of the request
			f.deps.Logger.Warn("the identity provider did not exchange a code", zap.Error(unreachable))
		}
		return "", fault.NotReady.New("the identity provider cannot be reached, or its response cannot be read, so " +
			"the sign-in could not be completed; sign in again in a moment")
	}
	idToken, _ := token.Extra("id_token").(string)
	if idToken == "" || len(idToken) > maxIDToken {
		return "", fault.Unauthenticated.Newf("the identity provider issued no ID token of at most %d bytes; an "+
			"operator compares oidc-scopes with what the provider offers", maxIDToken)
	}
	return idToken, nil
}

// refusal returns the error for an error code of the provider. Its text has the code only if codeName matches it.
func refusal(reason string) error {
	switch reason {
	case "access_denied", "login_required", "consent_required", "interaction_required", "account_selection_required":
		return fault.Unauthenticated.New("the identity provider did not sign you in (" + reason +
			"); sign in again, or ask its administrator for access")
	case "invalid_grant":
		return fault.Unauthenticated.New("the identity provider refused the code of this sign-in (invalid_grant): it " +
			"was used before, has expired, or is of another sign-in; sign in again")
	case "temporarily_unavailable", "server_error":
		return fault.NotReady.New("the identity provider has a problem (" + reason + "); sign in again in a moment")
	}
	if !codeName.MatchString(reason) {
		reason = "an unknown error"
	}
	return fault.NotReady.New("the identity provider refuses this server as its client (" + reason +
		"); an operator compares oidc-client-id, oidc-client-secret-file, oidc-scopes and oidc-redirect-url with the " +
		"client that is registered there")
}

// secure reports whether the browser uses https, given the address to which the provider sends it back.
func secure(redirect string) bool { return strings.HasPrefix(redirect, "https:") }

// cookie returns the cookie of a sign-in on a request. If the browser uses https, the cookie's name says that this
// host has set it (see CookieName).
func (f *Flow) cookie(r *http.Request) (*http.Cookie, error) {
	return r.Cookie(CookieName(cookieBase, r.Host, f.overTLS(r)))
}

// overTLS reports whether the browser uses https, also if a proxy speaks http to this server.
func (f *Flow) overTLS(r *http.Request) bool {
	to, err := f.redirect(r)
	return err == nil && secure(to)
}

// cookieOf returns the cookie of a sign-in that is in progress or has failed. It is SameSite=Lax and not Strict,
// because the provider's site redirects the browser to the callback, and browsers send no strict cookie with a
// request that another site caused. They send a lax one only with the navigation of a whole tab. Its content can be
// used only once, and only together with the state in the address.
func cookieOf(r *http.Request, value string, maxAge int, secure bool) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure where the browser uses TLS: over plain HTTP it would not send a secure cookie
		Name: CookieName(cookieBase, r.Host, secure), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true,
		Secure: secure, SameSite: http.SameSiteLaxMode,
	}
}
