package console

import (
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/issuer"
)

func TestG13_QuartetConsoleSignsIn(t *testing.T) {
	r := newRig(t)
	url := r.quartet("console", "--print")
	require.True(t, strings.HasPrefix(url, r.base+"/ui/#code="), url)
	page := r.open(url)
	page.sees("Fleet")
	page.sees("There are no agents")
	require.NotContains(t, value[string](page, "location.href"), "code", "the code is gone from the address")
	require.Empty(t, value[string](page, "document.cookie"), "scripts cannot read the session")
	// The cookie alone is no credential: another page could have caused the request.
	require.Equal(t, 401, value[int](page, `fetch("../v1/whoami").then((r) => r.status)`))
	require.Equal(t, 200,
		value[int](page, `fetch("../v1/whoami", { headers: { "X-Quartet-Console": "1" } }).then((r) => r.status)`))
	require.NoError(t, chromedp.Do(page.ctx, chromedp.Reload()))
	page.sees("There are no agents")
	page.press("Sign out")
	page.sees("Sign in")
	page.sound()

	again := r.open(url)
	again.sees("used before")
	again.sees("Sign in")
	// Another address, in the tab that shows the sign-in page.
	again.do("void (location.href = " + quoted(r.quartet("console", "--print")) + ")")
	again.sees("There are no agents")
	require.NotContains(t, value[string](again, "location.href"), "code", "the code is gone from the address")
	// A code that is not valid does not end a session.
	again.do(`void (location.hash = "#code=none")`)
	again.until("the code is gone", `!location.href.includes("code")`)
	again.sees("There are no agents")
}

func TestG13_SignInWithAKey(t *testing.T) {
	r := newRig(t, "--auth", "required")
	operator := r.quartet("key", "create", "ann", "--role", "operator", "--bootstrap", "--key-file", r.srv.DataDir+
		"/key")
	runner := r.quartet("key", "create", "machine", "--role", "worker", "--bootstrap", "--key-file", r.srv.DataDir+
		"/key")
	page := r.open(r.base + "/ui/")
	page.fill("Key", "qk_wrong")
	page.press("Sign in")
	page.sees("UNAUTHENTICATED")
	page.fill("Key", operator)
	page.press("Sign in")
	page.sees("ann")
	page.sees("operator")
	// What a role may not do is not offered, or says why.
	page.view("admin?tab=keys")
	page.sees("The role operator does not see this; it is for: admin.")
	page.sound()

	other := r.as(runner)
	other.sees("The role worker reads no agents")
}

func TestG14_ThePageIsGuarded(t *testing.T) {
	r := newRig(t)
	resp := must.Value(http.Get(r.base + "/ui/"))(t)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"))
	require.Contains(t, resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
	for _, path := range []string{"/", "/ui/"} { // links of other pages may lead there
		req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, r.base+path, http.NoBody))(t)
		req.Header.Set("Origin", "https://evil.example")
		req.Header.Set("Sec-Fetch-Site", "cross-site")
		resp := must.Value(http.DefaultClient.Do(req))(t)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 200, resp.StatusCode, path)
	}
	page := r.signedIn()
	require.Equal(t, "refused",
		value[string](page,
			`(() => { try { document.body.innerHTML = "<b>x</b>"; return "written"; } catch { return "refused"; } })()`), "no text becomes markup")
	require.NotContains(t,
		value[string](page,
			`fetch("/ui/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" }).then((r) => r.text())`), "code or")
	for _, header := range []string{"https://evil.example", "null"} {
		req := must.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, r.base+"/ui/session",
			strings.NewReader(`{"key":"`+r.token+`"}`)))(t)
		req.Header.Set("Origin", header)
		req.Header.Set("X-Quartet-Console", "1")
		resp := must.Value(http.DefaultClient.Do(req))(t)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 403, resp.StatusCode)
		require.Empty(t, resp.Cookies())
	}
}

func TestG17_SignInWithAProvider(t *testing.T) {
	provider := must.Value(issuer.New(issuer.Behaviour{ClientID: "console", Claims: map[string]any{
		"groups": []string{"developers"},
	}}))(t)
	t.Cleanup(provider.Close)
	// Another site than that of the server, so that the browser comes back from elsewhere.
	provider.URL = strings.Replace(provider.URL, "127.0.0.1", "localhost", 1)
	r := newRig(t, "--auth", "required", "--oidc-issuer", provider.URL, "--oidc-audience", "quartet",
		"--oidc-namespace", "acme", "--oidc-role-claim", "groups",
		"--oidc-roles", "developers=operator", "--oidc-client-id", "console")
	host := strings.TrimPrefix(provider.URL, "http://")
	page := r.open(r.base + "/ui/#/inbox")
	page.press("Sign in with " + host)
	page.sees("oidc:ann")
	page.sees("operator")
	require.Equal(t, r.base+"/ui/#/inbox", value[string](page, "location.href"), "the view of before")
	require.Empty(t, value[string](page, "document.cookie"))
	page.press("Sign out")
	page.sees("Sign in with " + host)

	provider.Behave(func(b *issuer.Behaviour) { b.Claims["groups"] = "guests" })
	page.press("Sign in with " + host)
	page.sees("Sign-in failed")
	page.sees("gives no role here")
	require.Equal(t, r.base+"/ui/oidc/failed", value[string](page, "location.href"))
	page.press("Back to the sign-in page")
	page.sees("Sign in with " + host)
	page.sound()
}
