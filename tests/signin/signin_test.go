package signin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/localtoken"
	"quartet/pkg/must"
	"quartet/tests/issuer"
	"quartet/tests/proc"
)

// built is the binary that all tests run.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(built.dir)
	os.Exit(code)
}

// rig is a server, its provider, and a browser.
type rig struct {
	*testing.T
	issuer *issuer.Issuer
	srv    *proc.Quartet
	secret string // of the client
	client *http.Client
}

// newRig starts a server whose client at the provider has a secret.
func newRig(t *testing.T, settings ...string) *rig {
	proc.Long(t)
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "quartet-signin-"); built.err == nil { //nolint:usetesting // it outlives the test that builds it
			built.path, built.err = proc.Build(built.dir, "quartet/cmd/quartet", "quartet")
		}
	})
	require.NoError(t, built.err)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	r := &rig{T: t, secret: "the-secret-of-the-client"}
	r.issuer = must.Value(issuer.New(issuer.Behaviour{ClientID: "console", Secret: r.secret, Claims: map[string]any{
		"tenant": "acme", "groups": []string{"viewers", "developers"},
	}}))(t)
	t.Cleanup(r.issuer.Close)
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(r.secret+"\n"), 0o600))
	r.srv = must.Value(proc.NewQuartet(built.path, filepath.Join(t.TempDir(), "data"), "", append([]string{
		"--log-level", "debug", "--oidc-issuer", r.issuer.URL, "--oidc-audience", "quartet", "--oidc-namespace-claim",
		"tenant", "--oidc-role-claim", "groups",
		"--oidc-roles", "developers=operator", "--oidc-client-id", "console", "--oidc-client-secret-file", file,
	}, settings...)...))(t)
	r.start()
	t.Cleanup(func() { _ = r.srv.Kill() })
	r.newBrowser()
	return r
}

func (r *rig) start() {
	r.Helper()
	require.NoError(r, r.srv.Start(r.soon()))
}

// newBrowser forgets all cookies.
func (r *rig) newBrowser() {
	r.client = &http.Client{Jar: must.Value(cookiejar.New(nil))(r)}
}

func (r *rig) soon() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	r.Cleanup(cancel)
	return ctx
}

// answer is a response, after redirects.
type answer struct {
	status int
	url    *url.URL
	body   string
}

// send sends a request with headers (name, value, …) as the browser.
func (r *rig) send(method, path string, header ...string) answer {
	r.Helper()
	req := must.Value(http.NewRequestWithContext(r.soon(), method, "http://"+r.srv.HTTP+path, http.NoBody))(r)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	resp := must.Value(r.client.Do(req))(r)
	body, err := io.ReadAll(resp.Body)
	require.NoError(r, errors.Join(err, resp.Body.Close()))
	return answer{resp.StatusCode, resp.Request.URL, string(body)}
}

// whoami asks as whom the pages of the console are identified.
func (r *rig) whoami() answer {
	r.Helper()
	return r.send(http.MethodGet, "/v1/whoami", "X-Quartet-Console", "1")
}

func TestG17_SignInWithAProvider(t *testing.T) {
	r := newRig(t)
	require.Equal(t, 401, r.whoami().status)
	require.JSONEq(t, `{"issuer":"`+r.issuer.URL+`"}`, r.send(http.MethodGet, "/ui/oidc").body)
	page := r.send(http.MethodGet, "/ui/oidc/start?view=inbox")
	require.Equal(t, 200, page.status, page.body)
	require.Equal(t, "http://"+r.srv.HTTP+"/ui/#/inbox", page.url.String())
	me := r.whoami()
	require.Equal(t, 200, me.status, me.body)
	var who map[string]any
	require.NoError(t, json.Unmarshal([]byte(me.body), &who))
	require.Equal(t, []any{"acme", "oidc:ann", "ROLE_OPERATOR"}, []any{who["namespace"], who["principal"], who["role"]},
		"as a token of a program")
	require.Equal(t, 401, r.send(http.MethodGet, "/v1/whoami").status, "the cookie alone is no credential")
	require.Equal(t, 403, r.send(http.MethodGet, "/v1/whoami", "X-Quartet-Console", "1", "Origin",
		"https://evil.example").status)

	// It outlives the server, and the provider.
	require.NoError(t, r.srv.Kill())
	r.start()
	require.Equal(t, 200, r.whoami().status)

	require.Equal(t, 403, r.send(http.MethodDelete, "/ui/session").status)
	require.Equal(t, 204, r.send(http.MethodDelete, "/ui/session", "X-Quartet-Console", "1", "Origin",
		"http://"+r.srv.HTTP).status)
	require.Equal(t, 401, r.whoami().status, "signed out")

	// An ID token of this client is no credential of a program.
	require.Equal(t, 401, r.send(http.MethodGet, "/v1/whoami", "Authorization", "Bearer "+r.issuer.Token(nil)).status)
	require.Equal(t, 200, r.send(http.MethodGet, "/v1/whoami", "Authorization",
		"Bearer "+r.issuer.Token(map[string]any{"aud": "quartet"})).status)

	// Pages of others and other hosts begin none.
	require.Equal(t, 403, r.send(http.MethodGet, "/ui/oidc/start", "Sec-Fetch-Site", "cross-site").status)
	require.Equal(t, 421, r.send(http.MethodGet, "/ui/oidc/start", "Host", "evil.example").status)
	require.Equal(t, 405, r.send(http.MethodPost, "/ui/oidc/start").status)
	require.Equal(t, 405, r.send(http.MethodPost, "/ui/oidc/callback").status)
	require.Equal(t, 401, r.whoami().status)
	r.silent()
}

// silent demands that the log of the server has no secret.
func (r *rig) silent() {
	r.Helper()
	log := must.Value(os.ReadFile(r.srv.Log))(r)
	require.Contains(r, string(log), "/ui/oidc/callback", "requests are logged")
	for _, secret := range append(r.issuer.Secrets(), r.secret) {
		require.NotContains(r, string(log), secret)
	}
}

func TestG17_RefusedSignIns(t *testing.T) {
	r := newRig(t)
	refused := func(status int, says string, change func(b *issuer.Behaviour)) {
		t.Helper()
		r.newBrowser()
		r.issuer.Behave(change)
		page := r.send(http.MethodGet, "/ui/oidc/start")
		require.Equal(t, status, page.status, page.body)
		require.Equal(t, "http://"+r.srv.HTTP+"/ui/oidc/failed", page.url.String(), "the address has no code")
		require.Contains(t, page.body, says)
		for _, secret := range append(r.issuer.Secrets(), r.secret) {
			require.NotContains(t, page.body, secret)
		}
		require.Equal(t, 401, r.whoami().status)
		require.Equal(t, "/ui/", r.send(http.MethodGet, "/ui/oidc/failed").url.Path, "it is shown once")
	}
	claims := func(name string, value any) func(b *issuer.Behaviour) {
		return func(b *issuer.Behaviour) {
			b.OtherChallenge = false
			b.Claims = map[string]any{"tenant": "acme", "groups": []string{"developers"}, name: value}
		}
	}
	refused(401, "not of this sign-in", claims("nonce", "x"))
	refused(401, "was not issued", claims("aud", "quartet"))
	refused(401, "the token ended at", claims("exp", time.Now().Add(-time.Minute).Unix()))
	refused(403, "gives no role here", claims("groups", []string{"admin", "operator"}))
	refused(403, "gives access to no namespace", claims("tenant", nil))
	refused(401, "invalid_grant", func(b *issuer.Behaviour) { b.OtherChallenge = true })
	refused(413, "fewer claims", claims("more", strings.Repeat("x", 4000)))
	r.issuer.Behave(claims("exp", time.Now().Add(2*time.Second).Unix()))
	r.newBrowser()
	require.Equal(t, 200, r.send(http.MethodGet, "/ui/oidc/start").status)
	require.Eventually(t, func() bool { return r.whoami().status == 401 }, time.Minute, 50*time.Millisecond,
		"the session ends with the token")
	r.silent()

	// Stopping records them; what the claims do not give is no refused login, as for programs.
	require.NoError(t, r.srv.Interrupt(r.soon()))
	r.start()
	token := must.Value(localtoken.Read(r.srv.HTTP))(t)
	counted := 0
	require.Eventually(t, func() bool {
		var log struct {
			Entries []struct {
				Kind  string
				Count json.Number
			}
		}
		list := r.send(http.MethodGet, "/v1/audit", "Authorization", "Bearer "+token)
		if list.status != 200 || json.Unmarshal([]byte(list.body), &log) != nil {
			return false
		}
		counted = 0
		for _, e := range log.Entries {
			if n, err := e.Count.Int64(); err == nil && e.Kind == "AUDIT_KIND_REFUSED_LOGINS" {
				counted += int(n)
			}
		}
		return counted > 0
	}, time.Minute, 50*time.Millisecond)
	require.Equal(t, 4, counted)
}

func TestG17_SettingsThatAreRefused(t *testing.T) {
	proc.Long(t)
	r := newRig(t)
	for says, settings := range map[string][]string{
		"oidc-client-secret-file": {
			"--oidc-client-id", "x", "--oidc-client-secret-file",
			filepath.Join(t.TempDir(), "none"),
		},
		"need oidc-issuer": {"--oidc-client-id", "x"},
		"needs public-url": {"--oidc-client-id", "x", "--http-addr", "0.0.0.0:0", "--grpc-addr", "127.0.0.1:0"},
		"must be an https": {
			"--oidc-client-id", "x", "--oidc-redirect-url",
			"http://quartet.example.com/ui/oidc/callback",
		},
		"it follows from": {
			"--oidc-client-id", "x", "--http-addr", "0.0.0.0:0", "--public-url",
			"http://quartet.example.com",
		},
	} {
		if !strings.Contains(says, "issuer") {
			settings = append(settings, "--oidc-issuer", r.issuer.URL, "--oidc-audience", "quartet", "--oidc-namespace",
				"acme", "--oidc-role-claim", "groups", "--oidc-roles", "developers=operator")
		}
		out, err := exec.CommandContext(r.soon(), built.path, append([]string{"dev", "--data-dir", t.TempDir()},
			settings...)...).CombinedOutput()
		require.Error(t, err, says)
		require.Contains(t, string(out), says)
	}
}
