package signin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/oauth2"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	"quartet/services/identity"
	"quartet/tests/issuer"
)

// rig is a sign-in with an issuer and the verifier of the installation.
type rig struct {
	*testing.T
	issuer  *issuer.Issuer
	clock   *clock.Fake
	keys    *keyfile.Source
	flow    *Flow
	refused int
	logs    *observer.ObservedLogs

	credential string    // of the last session that was begun
	ends       time.Time // when it ends
	secure     bool
}

// newRig returns a rig with further settings of the client.
func newRig(t *testing.T, cfg Config) *rig {
	p := must.Value(issuer.New(issuer.Behaviour{ClientID: "console", Claims: map[string]any{"role": "dev"}}))(t)
	t.Cleanup(p.Close)
	core, logs := observer.New(zap.DebugLevel)
	r := &rig{
		T: t, issuer: p, clock: clock.NewFake(time.Now()), keys: keyfile.Fixed(keyfile.New(time.Now())), logs: logs,
	}
	tokens := must.Value(identity.NewTokens(identity.TokensConfig{
		Issuer: p.URL, Audience: "quartet", Namespace: "acme", RoleClaim: "role", Roles: map[string]string{
			"dev": "operator",
		}, ClientID: "console",
		ClientSecret: cfg.SecretFile != "", Keys: r.keys.Ring, Logger: zap.New(core),
	}))(t)
	t.Cleanup(tokens.Close)
	cfg.ClientID = "console"
	r.flow = must.Value(New(cfg, Deps{
		Provider: tokens, Issuer: p.URL, Keys: r.keys.Ring, Clock: r.clock,
		Refused: func(context.Context) { r.refused++ }, Logger: zap.New(core),
	}))(t)
	return r
}

// response is a response that was received.
type response struct {
	StatusCode int
	Header     http.Header
	Body       string
	cookies    []*http.Cookie
}

// Cookies returns the cookies that the response sets.
func (r *response) Cookies() []*http.Cookie { return r.cookies }

// get requests a path of the server as a browser with cookies does.
func (r *rig) get(path string, cookies ...*http.Cookie) *response {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "http://localhost:7480"+path, http.NoBody)
	for _, c := range cookies {
		if c.MaxAge >= 0 {
			req.AddCookie(c)
		}
	}
	w := httptest.NewRecorder()
	r.flow.Handler(func(_ http.ResponseWriter, _ *http.Request, credential string, ends time.Time, secure bool) error {
		r.credential, r.ends, r.secure = credential, ends, secure
		return nil
	}, func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), fault.HTTPStatus(fault.From(err)))
	}).ServeHTTP(w, req)
	resp := w.Result()
	require.NoError(r, resp.Body.Close())
	return &response{resp.StatusCode, resp.Header, w.Body.String(), resp.Cookies()}
}

// start begins a sign-in, and returns its cookie and the address at the issuer.
func (r *rig) start(query string) (*http.Cookie, string) {
	r.Helper()
	resp := r.get(StartPath + query)
	require.Equal(r, http.StatusFound, resp.StatusCode)
	require.Len(r, resp.Cookies(), 1)
	return resp.Cookies()[0], resp.Header.Get("Location")
}

// authorize follows the address at the issuer, and returns path and query of the callback.
func (r *rig) authorize(address string) string {
	r.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp := must.Value(client.Get(address))(r)
	require.NoError(r, resp.Body.Close())
	require.Equal(r, http.StatusFound, resp.StatusCode, address)
	return CallbackPath + "?" + must.Value(url.Parse(resp.Header.Get("Location")))(r).RawQuery
}

// failed demands that a callback began no session, and returns status and page of its failure.
func (r *rig) failed(resp *response) (int, string) {
	r.Helper()
	require.Equal(r, http.StatusSeeOther, resp.StatusCode)
	require.Equal(r, "failed", resp.Header.Get("Location"))
	require.Empty(r, r.credential)
	require.Len(r, resp.Cookies(), 1, "the failure replaces the sign-in")
	page := r.get(FailedPath, resp.Cookies()...)
	require.Negative(r, page.Cookies()[0].MaxAge, "it is shown once")
	require.Contains(r, page.Header.Get("Content-Security-Policy"), "default-src 'none'")
	return page.StatusCode, page.Body
}

// silent demands that neither pages nor logs have a secret of a sign-in.
func (r *rig) silent(texts ...string) {
	r.Helper()
	for _, entry := range r.logs.All() {
		texts = append(texts, entry.Message)
		for _, field := range entry.Context {
			texts = append(texts, field.String)
			if err, ok := field.Interface.(error); ok {
				texts = append(texts, err.Error())
			}
		}
	}
	secrets := r.issuer.Secrets()
	require.NotEmpty(r, secrets)
	for _, text := range texts {
		for _, secret := range secrets {
			require.NotContains(r, text, secret)
		}
	}
}

func TestG17_ASignIn(t *testing.T) {
	r := newRig(t, Config{Scopes: []string{"profile"}})
	require.JSONEq(t, `{"issuer":"`+r.issuer.URL+`"}`, r.get(Path).Body)

	cookie, address := r.start("?view=agents%2Fkeeper%3Ftab%3Dwhy")
	require.Equal(t, "quartet-signin-7480", cookie.Name)
	require.True(t, cookie.HttpOnly)
	require.Equal(t, http.SameSiteLaxMode, cookie.SameSite)
	require.Equal(t, 600, cookie.MaxAge)
	require.Empty(t, cookie.Domain)
	q := must.Value(url.Parse(address))(t).Query()
	require.Equal(t, []string{"http://localhost:7480" + CallbackPath, "openid profile", "S256"},
		[]string{q.Get("redirect_uri"), q.Get("scope"), q.Get("code_challenge_method")})
	for _, secret := range []string{q.Get("state"), q.Get("nonce"), q.Get("code_challenge")} {
		require.GreaterOrEqual(t, len(secret), 26)
		require.NotContains(t, cookie.Value, secret)
	}
	callback := r.authorize(address)
	resp := r.get(callback, cookie)
	require.Equal(t, http.StatusSeeOther, resp.StatusCode)
	require.Equal(t, "../#/agents/keeper?tab=why", resp.Header.Get("Location"))
	require.Equal(t, "no-referrer", resp.Header.Get("Referrer-Policy"))
	require.Negative(t, resp.Cookies()[0].MaxAge, "the sign-in is over")
	require.NotEmpty(t, r.credential)
	require.WithinDuration(t, time.Now().Add(time.Hour), r.ends, time.Minute)
	require.False(t, r.secure)
	require.Zero(t, r.refused)

	// The callback once more, also with the cookie of before.
	r.credential = ""
	status, page := r.failed(r.get(callback, cookie))
	require.Equal(t, http.StatusUnauthorized, status)
	require.Contains(t, page, "completed before")
	require.Equal(t, 1, r.issuer.Exchanges(), "the issuer is not asked")
	require.Equal(t, 1, r.refused)
	r.silent(page)

	// What was used is forgotten when it would have ended.
	require.Len(t, r.flow.used, 1)
	r.clock.Advance(FlowTerm)
	cookie, address = r.start("")
	require.Equal(t, "../#/", r.get(r.authorize(address), cookie).Header.Get("Location"))
	require.Len(t, r.flow.used, 1)
}

func TestG17_OverTLSBelowAPrefix(t *testing.T) {
	r := newRig(t, Config{RedirectURL: "https://example.com/quartet/ui/oidc/callback"})
	cookie, address := r.start("")
	require.Equal(t, "__Host-quartet-signin-7480", cookie.Name)
	require.True(t, cookie.Secure)
	require.Equal(t, "/", cookie.Path)
	require.Contains(t, address, url.QueryEscape("https://example.com/quartet/ui/oidc/callback"))
	callback := r.authorize(address)
	weak := *cookie
	weak.Name = "quartet-signin-7480"
	status, _ := r.failed(r.get(callback, &weak))
	require.Equal(t, http.StatusUnauthorized, status, "a cookie that a neighbour of the host could set")
	require.Equal(t, "../#/", r.get(callback, cookie).Header.Get("Location"))
	require.True(t, r.secure)
}

// TestG17_WhatIsRefused changes one thing of a sign-in each.
func TestG17_WhatIsRefused(t *testing.T) {
	none := func(*rig, *string, *http.Cookie) {}
	for name, c := range map[string]struct {
		issuer func(b *issuer.Behaviour)
		before func(r *rig, callback *string, cookie *http.Cookie)
		status int
		says   string
	}{
		"another state": {nil, func(_ *rig, callback *string, _ *http.Cookie) {
			*callback = strings.Replace(*callback, "state=", "state=x", 1)
		}, 401, "has not begun this sign-in"},
		"two states": {
			nil, func(_ *rig, callback *string, _ *http.Cookie) { *callback += "&state=x" }, 401,
			"has not begun this sign-in",
		},
		"no cookie": {
			nil, func(_ *rig, _ *string, cookie *http.Cookie) { cookie.MaxAge = -1 }, 401,
			"has not begun this sign-in",
		},
		"another sign-in's cookie": {nil, func(r *rig, _ *string, cookie *http.Cookie) {
			other, _ := r.start("")
			cookie.Value = other.Value
		}, 401, "has not begun this sign-in"},
		"a changed cookie": {nil, func(_ *rig, _ *string, cookie *http.Cookie) {
			cookie.Value = cookie.Value[:len(cookie.Value)-4] + "AAAA"
		}, 401, "has not begun this sign-in"},
		"after ten minutes": {
			nil, func(r *rig, _ *string, _ *http.Cookie) { r.clock.Advance(FlowTerm) }, 401,
			"more than 10 minutes ago",
		},
		"another issuer": {nil, func(r *rig, callback *string, _ *http.Cookie) {
			*callback = strings.Replace(*callback, "iss=", "iss=x", 1)
		}, 401, "another identity provider"},
		"no code": {nil, func(_ *rig, callback *string, _ *http.Cookie) {
			*callback = strings.Replace(*callback, "code=", "kode=", 1)
		}, 401, "no code"},
		"another code": {nil, func(_ *rig, callback *string, _ *http.Cookie) {
			*callback = strings.Replace(*callback, "code=", "code=x", 1)
		}, 401, "invalid_grant"},
		"a long code": {nil, func(_ *rig, callback *string, _ *http.Cookie) {
			*callback = strings.Replace(*callback, "code=", "code="+strings.Repeat("x", maxCode), 1)
		}, 401, "no code"},
		"denied": {func(b *issuer.Behaviour) { b.Deny = "access_denied" }, none, 401, "access_denied"},
		"a hostile error": {
			func(b *issuer.Behaviour) { b.Deny = "<script>alert(1)</script>" }, none, 503,
			"an unknown error",
		},
		"a PKCE mismatch":  {func(b *issuer.Behaviour) { b.OtherChallenge = true }, none, 401, "invalid_grant"},
		"another nonce":    {func(b *issuer.Behaviour) { b.Claims["nonce"] = "x" }, none, 401, "not of this sign-in"},
		"another audience": {func(b *issuer.Behaviour) { b.Claims["aud"] = "quartet" }, none, 401, "was not issued"},
		"over": {
			func(b *issuer.Behaviour) { b.Claims["exp"] = time.Now().Add(-time.Minute).Unix() }, none,
			401, "the token ended at",
		},
		"no role": {func(b *issuer.Behaviour) { b.Claims["role"] = "guest" }, none, 403, "gives no role here"},
		"an unknown client": {nil, func(r *rig, _ *string, _ *http.Cookie) {
			r.issuer.Behave(func(b *issuer.Behaviour) { b.ClientID = "x" })
		}, 503, "oidc-client-id"},
		"the issuer is down": {nil, func(r *rig, _ *string, _ *http.Cookie) {
			r.issuer.Behave(func(b *issuer.Behaviour) { b.Down = true })
		}, 503, "status 502"},
		"the issuer is gone": {
			nil, func(r *rig, _ *string, _ *http.Cookie) { r.issuer.Close() }, 503,
			"cannot be reached",
		},
		"a redirect": {func(b *issuer.Behaviour) {
			b.Respond = http.RedirectHandler("/keys", http.StatusTemporaryRedirect).ServeHTTP
		}, none, 503, "status 307"},
		"no ID token": {respond(`{"access_token":"x","token_type":"Bearer"}`), none, 401, "no ID token"},
		"a long ID token": {
			respond(`{"access_token":"x","token_type":"Bearer","id_token":"` + strings.Repeat("x", maxIDToken+1) +
				`"}`), none, 401, "no ID token",
		},
		"an endless response": {respond(strings.Repeat(" ", 2<<20)), none, 503, "cannot be reached"},
		"no JSON":             {respond(`<html>`), none, 503, "cannot be read"},
		"a token of no issuer": {
			respond(`{"access_token":"x","token_type":"Bearer","id_token":"x.y.z"}`), none, 401,
			"was not issued",
		},
		"an error with a code":  {respond(`{"error":"the code is <b>"}`), none, 503, "status"},
		"the issuer sends html": {func(b *issuer.Behaviour) { b.Respond = http.NotFound }, none, 503, "status 404"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			if c.issuer != nil {
				r.issuer.Behave(c.issuer)
			}
			cookie, address := r.start("")
			callback := r.authorize(address)
			c.before(r, &callback, cookie)
			status, page := r.failed(r.get(callback, cookie))
			require.Equal(t, c.status, status, page)
			require.Contains(t, page, c.says)
			require.NotContains(t, page, "<script")
			require.Empty(t, r.flow.used, "only a token of the issuer takes memory")
			want := 0
			if c.status == http.StatusUnauthorized {
				want = 1
			}
			require.Equal(t, want, r.refused, "refused credentials are counted, as those of programs are")
			if r.issuer.Secrets() != nil {
				r.silent(page)
			}
		})
	}
}

// respond makes the token endpoint respond with a body.
func respond(body string) func(b *issuer.Behaviour) {
	return func(b *issuer.Behaviour) {
		b.Respond = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(body))
		}
	}
}

func TestG17_TheIssuerIsDownAtTheStart(t *testing.T) {
	r := newRig(t, Config{})
	r.issuer.Behave(func(b *issuer.Behaviour) { b.Down = true })
	resp := r.get(StartPath)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	require.Empty(t, resp.Cookies())
}

func TestG17_TheViewAfterASignIn(t *testing.T) {
	for next, ok := range map[string]bool{
		"": true, "inbox": true, "agents/a%20b?tab=why&x=1": true, strings.Repeat("x", maxView): true,
		strings.Repeat("x", maxView+1): false,
		"//evil.example":               true, "https://evil.example": true, // behind the # they are names of no view
		"a\nSet-Cookie: x=y": false, "a b": false, "<script>": false, `a"b`: false, "a#b": false,
		`\\evil.example`: false, "ä": false, "a\x00": false,
	} {
		r := newRig(t, Config{})
		resp := r.get(StartPath + "?view=" + url.QueryEscape(next))
		if !ok {
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, "%q", next)
			require.Empty(t, resp.Cookies())
			continue
		}
		require.Equal(t, http.StatusFound, resp.StatusCode, "%q", next)
		resp = r.get(r.authorize(resp.Header.Get("Location"))+"&view=evil&next=https://evil.example", resp.Cookies()...)
		require.Equal(t, "../#/"+next, resp.Header.Get("Location"))
		base := must.Value(url.Parse("https://quartet.example.com/x" + CallbackPath))(t)
		to := must.Value(base.Parse(resp.Header.Get("Location")))(t)
		require.Equal(t, "https://quartet.example.com/x/ui/", to.Scheme+"://"+to.Host+to.Path)
	}
}

func TestG17_AClientWithASecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("s3cr3t-of-the-client\n"), 0o600))
	r := newRig(t, Config{SecretFile: file})
	r.issuer.Behave(func(b *issuer.Behaviour) { b.Secret = "s3cr3t-of-the-client" })
	cookie, address := r.start("")
	require.NotContains(t, address, "s3cr3t")
	require.Equal(t, "../#/", r.get(r.authorize(address), cookie).Header.Get("Location"))

	// The file is read again.
	r.credential = ""
	require.NoError(t, os.WriteFile(file, []byte("another"), 0o600))
	cookie, address = r.start("")
	status, page := r.failed(r.get(r.authorize(address), cookie))
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, page, "oidc-client-secret-file")
	require.NoError(t, os.Remove(file))
	resp := r.get(StartPath)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	r.silent()
	for text, ok := range map[string]bool{
		"x": true, strings.Repeat("x", maxSecret): true,
		strings.Repeat("x", maxSecret+1): false, " \n": false,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := New(Config{ClientID: "x", SecretFile: file}, r.flow.deps)
		require.Equal(t, ok, err == nil, "%v", err)
	}
	require.NoError(t, os.Remove(file))
	must.Fail(New(Config{ClientID: "x", SecretFile: file}, r.flow.deps))(t, "oidc-client-secret-file")
}

// TestG17_RequestsOfAnAddress are limited, and so are those that wait for the issuer.
func TestG17_RequestsOfAnAddress(t *testing.T) {
	r := newRig(t, Config{})
	for range atOnce {
		r.start("")
	}
	require.Empty(t, r.flow.slots, "all have been given back")
	// A slow machine has earned some more meanwhile.
	refused := http.StatusFound
	var resp *response
	for i := 0; i < 10*atOnce && refused == http.StatusFound; i++ {
		resp = r.get(StartPath)
		refused = resp.StatusCode
	}
	require.Equal(t, http.StatusTooManyRequests, refused)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, r.get(Path).StatusCode, "the sign-in page is not limited")
}

func TestG17_RequestsThatWaitForTheIssuer(t *testing.T) {
	r := newRig(t, Config{})
	for range maxWaiting - 1 {
		r.flow.slots <- struct{}{}
	}
	r.start("")
	r.flow.slots <- struct{}{}
	resp := r.get(StartPath)
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.Contains(t, resp.Body, "16 requests wait for the identity provider")
	<-r.flow.slots
	r.start("")
}

func TestG17_SignInsThatAreRemembered(t *testing.T) {
	r := newRig(t, Config{})
	for i := range maxUsed - 1 {
		r.flow.used[strconv.Itoa(i)] = r.clock.Now().Add(time.Second)
	}
	cookie, address := r.start("")
	require.Equal(t, "../#/", r.get(r.authorize(address), cookie).Header.Get("Location"))
	r.credential = ""
	cookie, address = r.start("")
	status, page := r.failed(r.get(r.authorize(address), cookie))
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, page, "10000 sign-ins succeeded")
	r.clock.Advance(time.Second)
	cookie, address = r.start("")
	require.Equal(t, "../#/", r.get(r.authorize(address), cookie).Header.Get("Location"))
}

func TestG17_FailuresEndAndLeadBack(t *testing.T) {
	r := newRig(t, Config{})
	resp := r.get(CallbackPath + "?state=x&code=y")
	cookie := resp.Cookies()[0]
	require.NotContains(t, cookie.Value, "sign-in")
	r.clock.Advance(failedTerm)
	resp = r.get(FailedPath, cookie)
	require.Equal(t, http.StatusSeeOther, resp.StatusCode)
	require.Equal(t, "../", resp.Header.Get("Location"))
	require.Equal(t, "../", r.get(FailedPath).Header.Get("Location"))
	begun, _ := r.start("")
	require.Equal(t, "../", r.get(FailedPath, begun).Header.Get("Location"), "a sign-in is no failure")
}

func TestG17_WithoutAClient(t *testing.T) {
	flow := must.Value(New(Config{}, Deps{}))(t)
	require.Nil(t, flow)
	r := &rig{T: t, flow: flow}
	require.Equal(t, http.StatusOK, r.get(Path).StatusCode)
	for _, path := range []string{StartPath, CallbackPath, FailedPath, Path + "/x"} {
		require.Equal(t, http.StatusNotFound, r.get(path).StatusCode, path)
	}
}

func TestG17_SettingsOfTheClient(t *testing.T) {
	for says, cfg := range map[string]Config{
		"need oidc-client-id":      {SecretFile: "x"},
		"printable ASCII":          {ClientID: "a\nb"},
		"oidc-scopes has 21":       {ClientID: "x", Scopes: make([]string, 21)},
		`"a b" is no scope`:        {ClientID: "x", Scopes: []string{"a b"}},
		`"" is no scope`:           {ClientID: "x", Scopes: []string{""}},
		"must be an https":         {ClientID: "x", RedirectURL: "http://quartet.example.com/ui/oidc/callback"},
		"//q/ui/oidc/callback\" m": {ClientID: "x", RedirectURL: "//q/ui/oidc/callback"},
		"javascript":               {ClientID: "x", RedirectURL: "javascript:alert(1)/ui/oidc/callback"},
		"no user, query":           {ClientID: "x", RedirectURL: "https://u:p@q/ui/oidc/callback"},
		"query or fragment":        {ClientID: "x", RedirectURL: "https://q/ui/oidc/callback?x=1"},
		"or fragment":              {ClientID: "x", RedirectURL: "https://q/ui/oidc/callback#"},
		"must end in":              {ClientID: "x", RedirectURL: "https://q/callback"},
		"prefix of a proxy":        {ClientID: "x", RedirectURL: "https://q/../ui/oidc/callback"},
		"only the prefix":          {ClientID: "x", RedirectURL: "https://q/%2e%2e/ui/oidc/callback"},
	} {
		require.ErrorContains(t, cfg.Check(), says)
		if u := cfg.RedirectURL; strings.Contains(u, "u:p@") {
			require.NotContains(t, cfg.Check().Error(), "u:p@")
		}
	}
	for _, good := range []string{
		"https://q/ui/oidc/callback", "https://q:8443/a/b-c/ui/oidc/callback",
		"http://127.0.0.1:7480/ui/oidc/callback", "http://[::1]:1/ui/oidc/callback",
		"http://localhost/ui/oidc/callback",
	} {
		require.NoError(t,
			(&Config{ClientID: "x", Scopes: []string{"groups", "https://q/.default"}, RedirectURL: good}).Check(), good)
	}
	r := newRig(t, Config{})
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://evil.example/ui/oidc/start", http.NoBody)
	must.Fail(r.flow.redirect(req))(t, "oidc-redirect-url", "the host of the request counts on loopback only")
	require.Len(t, oauth2.GenerateVerifier(), 43)
}
