package console

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	"quartet/pkg/rpc"
)

// keys authenticates "good" and "service".
type keys struct{}

// Authenticate implements rpc.Authenticator.
func (keys) Authenticate(_ context.Context, bearer string) (rpc.Actor, error) {
	switch {
	case bearer == "service":
		return rpc.Actor{Namespace: "default", Role: rpc.RoleService}, nil
	case strings.HasPrefix(bearer, "good"):
		return rpc.Actor{Namespace: "default", Principal: "ann", Role: rpc.RoleOperator}, nil
	}
	return rpc.Actor{}, fault.Unauthenticated.New("not a key")
}

// rig is a console and what it was asked.
type rig struct {
	*testing.T
	console *Console
	clock   *clock.Fake
	keys    *keyfile.Source
}

func newRig(t *testing.T) *rig {
	r := &rig{
		T: t, clock: clock.NewFake(time.Unix(1_700_000_000, 0)),
		keys: keyfile.Fixed(keyfile.Of([]byte(strings.Repeat("k", 32)))),
	}
	r.console = r.another()
	return r
}

// another returns a console of another gateway of the same installation.
func (r *rig) another() *Console {
	return must.Value(New(Deps{Auth: keys{}, Keys: r.keys.Ring, Clock: r.clock, Version: "<test>"}))(r)
}

// refused is the handler's refusal as a status of its reason.
func refused(w http.ResponseWriter, _ *http.Request, err error) {
	f := fault.From(err)
	w.WriteHeader(fault.HTTPStatus(f))
	_, _ = io.WriteString(w, string(f.Reason())+": "+f.Message())
}

// do sends a request with these headers (name, value, …) to a console's sessions.
func (r *rig) do(c *Console, method, path, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(r.Context(), method, "http://localhost:7480"+path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	c.Sessions(refused).ServeHTTP(w, req)
	return w
}

// bearer returns the credential of a request with a cookie and headers.
func (r *rig) bearer(c *Console, cookie *http.Cookie, header ...string) string {
	req := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "http://localhost:7480/v1/agents", http.NoBody)
	req.AddCookie(cookie)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	credential, _ := c.Bearer(req)
	return credential
}

// begin begins a session and returns its cookie.
func (r *rig) begin(header ...string) *http.Cookie {
	w := r.do(r.console, http.MethodPost, SessionPath, `{"key":"good-key"}`, append(header, Header, "1")...)
	require.Equal(r, http.StatusNoContent, w.Code, w.Body.String())
	cookies := w.Result().Cookies()
	require.Len(r, cookies, 1)
	return cookies[0]
}

func TestG13_TheCookieOfASession(t *testing.T) {
	r := newRig(t)
	cookie := r.begin()
	require.Equal(t, "quartet-console-7480", cookie.Name, "servers at several ports of a machine")
	require.True(t, cookie.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, cookie.SameSite)
	require.Equal(t, "/", cookie.Path)
	require.Empty(t, cookie.Domain)
	require.False(t, cookie.Secure, "the browser would not send it over http")
	require.NotContains(t, cookie.Value, "good")
	require.Equal(t, "good-key", r.bearer(r.console, cookie, Header, "1"))
	require.Equal(t, "good-key", r.bearer(r.another(), cookie, Header, "1"),
		"another gateway, or this one after a restart")
	require.Empty(t, r.bearer(r.console, cookie), "without the header, which pages of other origins cannot send")
	for i := range cookie.Value {
		changed := *cookie
		changed.Value = cookie.Value[:i] + string(rune(cookie.Value[i])^1) + cookie.Value[i+1:]
		require.Empty(t, r.bearer(r.console, &changed, Header, "1"), "byte %d", i)
	}

	over := r.begin("Origin", "https://localhost:7480")
	require.Equal(t, "__Host-quartet-console-7480", over.Name)
	require.True(t, over.Secure, "a proxy speaks TLS with the browser")
	require.Equal(t, "good-key", r.bearer(r.console, over, Header, "1"), "a GET has no Origin")

	r.clock.Advance(SessionTerm)
	require.Empty(t, r.bearer(r.console, cookie, Header, "1"), "it has ended")
}

func TestG13_SessionsEndWithTheInstallationsKey(t *testing.T) {
	r := newRig(t)
	cookie := r.begin()
	old := r.keys.Ring()
	added := must.Value(old.Add(r.clock.Now()))(t)
	pending, _ := added.Pending()
	next := must.Value(added.Activate(pending.ID))(t)
	r.keys.Set(next)
	require.Equal(t, "good-key", r.bearer(r.console, cookie, Header, "1"), "an old key verifies")
	next = must.Value(next.Retire(old.Active().ID))(t)
	r.keys.Set(next)
	require.Empty(t, r.bearer(r.console, cookie, Header, "1"))
}

func TestG13_WhoBeginsASession(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		body   string
		header []string
		status int
	}{
		"a wrong key":            {`{"key":"bad"}`, []string{Header, "1"}, 401},
		"a service":              {`{"key":"service"}`, []string{Header, "1"}, 401},
		"no header":              {`{"key":"good"}`, nil, 403},
		"nothing":                {`{}`, []string{Header, "1"}, 400},
		"both":                   {`{"key":"good","code":"x"}`, []string{Header, "1"}, 400},
		"no JSON":                {`key=good`, []string{Header, "1"}, 400},
		"an unknown field":       {`{"key":"good","user":"ann"}`, []string{Header, "1"}, 400},
		"an unknown code":        {`{"code":"x.y"}`, []string{Header, "1"}, 401},
		"too much":               {`{"key":"` + strings.Repeat("x", maxBody) + `"}`, []string{Header, "1"}, 400},
		"too long for a browser": {`{"key":"good` + strings.Repeat("x", 4000) + `"}`, []string{Header, "1"}, 413},
	} {
		t.Run(name, func(t *testing.T) {
			w := r.do(r.console, http.MethodPost, SessionPath, c.body, c.header...)
			require.Equal(t, c.status, w.Code, w.Body.String())
			require.Empty(t, w.Result().Cookies())
			require.NotContains(t, w.Body.String(), "good")
		})
	}
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		require.Equal(t, 400, r.do(r.console, method, SessionPath, "").Code)
	}
	require.Equal(t, 403, r.do(r.console, http.MethodDelete, SessionPath, "").Code)
	w := r.do(r.console, http.MethodDelete, SessionPath, "", Header, "1")
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Negative(t, w.Result().Cookies()[0].MaxAge)
}

func TestG13_OneTimeCodes(t *testing.T) {
	r := newRig(t)
	for _, header := range [][]string{
		nil,
		{"Authorization", "Bearer bad"},
		{"Authorization", "good"},
		{"Authorization", "Bearer service"},
	} {
		require.Equal(t, 401, r.do(r.console, http.MethodPost, CodePath, "", header...).Code, header)
	}
	code := func() string {
		w := r.do(r.console, http.MethodPost, CodePath, "", "Authorization", "Bearer good-key")
		require.Equal(t, 200, w.Code)
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		var made madeCode
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &made))
		require.Equal(t, r.clock.Now().Add(CodeTerm).UTC(), made.ExpiresAt)
		require.NotContains(t, made.Code, "good")
		return made.Code
	}
	use := func(code string) *httptest.ResponseRecorder {
		return r.do(r.console, http.MethodPost, SessionPath, `{"code":"`+code+`"}`, Header, "1")
	}
	first := code()
	w := use(first)
	require.Equal(t, http.StatusNoContent, w.Code, w.Body.String())
	require.Equal(t, "good-key", r.bearer(r.console, w.Result().Cookies()[0], Header, "1"),
		"the session has the credential for which the code was made")
	w = use(first)
	require.Equal(t, 401, w.Code)
	require.Contains(t, w.Body.String(), "used before")

	cookie := r.begin()
	require.Equal(t, 401, use(cookie.Value).Code, "a cookie is no code")
	asCookie := *cookie
	asCookie.Value = code()
	require.Empty(t, r.bearer(r.console, &asCookie, Header, "1"), "a code is no cookie")

	late := code()
	r.clock.Advance(CodeTerm)
	require.Equal(t, 401, use(late).Code)
	require.Equal(t, http.StatusNoContent, use(code()).Code)
	require.Len(t, r.console.used, 1, "codes that have ended are forgotten")
	for range maxUsed - 1 {
		r.console.used[r.console.ticketOf("", CodeTerm).ID] = r.clock.Now().Add(CodeTerm)
	}
	require.Equal(t, 429, use(code()).Code, "bounded")
}

// page requests a file of the console.
func (r *rig) page(path string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "http://localhost:7480"+path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.console.Pages(refused).ServeHTTP(w, req)
	return w
}

func TestG14_TheFilesOfTheConsole(t *testing.T) {
	r := newRig(t)
	w := r.page("/ui")
	require.Equal(t, http.StatusPermanentRedirect, w.Code)
	require.Equal(t, "ui/", w.Header().Get("Location"), "relative, for a proxy that adds a prefix")
	require.Equal(t, 404, r.page("/ui/../console.go").Code)
	require.Equal(t, 404, r.page("/ui/assets/").Code)
	w = r.page("/ui/")
	require.Equal(t, 200, w.Code)
	page := w.Body.String()
	require.Equal(t, "no-cache", w.Header().Get("Cache-Control"))
	for _, part := range []string{
		"default-src 'none'", "frame-ancestors 'none'", "script-src 'self';",
		"style-src 'self';", "require-trusted-types-for 'script'",
	} {
		require.Contains(t, w.Header().Get("Content-Security-Policy"), part)
	}
	require.NotContains(t, w.Header().Get("Content-Security-Policy"), "unsafe")
	require.NotContains(t, page, "<style")
	require.NotContains(t, page, `="/`, "addresses are relative")
	assets := 0
	for name, f := range r.console.files {
		if !f.immutable {
			continue
		}
		assets++
		require.Contains(t, page, name)
		w := r.page("/ui/"+name, "Accept-Encoding", "br, gzip")
		require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
		require.Contains(t, w.Header().Get("Cache-Control"), "immutable")
		require.Equal(t, f.small, w.Body.Bytes())
		require.Equal(t, f.plain, r.page("/ui/"+name, "Accept-Encoding", "gzip;q=0").Body.Bytes())
	}
	require.Equal(t, 4, assets, "a script, a style sheet, a worker and an icon")
}

func TestTheStartPage(t *testing.T) {
	r := newRig(t)
	w := httptest.NewRecorder()
	r.console.Home(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	require.Contains(t, w.Body.String(), "Quartet &lt;test&gt;")
	require.Contains(t, w.Body.String(), `href="ui/"`)
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
}
