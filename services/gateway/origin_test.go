package gateway

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The gateway of this test accepts calls without a credential, so that only the origin is checked.
func TestG4_PagesOfOtherOriginsAreRefused(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.AllowedOrigins = []string{"https://Console.example.com"} })
	own := r.gateway.Addr()
	_, port, err := net.SplitHostPort(own)
	require.NoError(t, err)
	for _, c := range []struct {
		host, origin string
		status       int
	}{
		{own, "http://" + own, 200},
		{"localhost:" + port, "http://localhost:" + port, 200},
		{"LOCALHOST:" + port, "http://localhost:" + port, 200},
		{"[::1]:" + port, "http://[::1]:" + port, 200},
		{"localhost", "http://localhost", 200},
		{"localhost:80", "http://localhost", 200},
		{"localhost", "http://localhost:80", 200},
		{own, "https://console.example.com", 200},
		{own, "https://console.example.com:443", 200},
		{own, "https://console.example.com:444", 403},
		{own, "http://console.example.com", 403},
		{own, "https://console.example.com.evil.com", 403},
		{own, "http://localhost:3000", 403},
		{own, "http://127.0.0.1:3000", 403},
		{own, "http://127.0.0.1", 403},
		{own, "https://" + own, 403},
		{own, "http://localhost:" + port, 403},
		{"localhost:" + port, "http://" + own, 403},
		{own, "http://evil.com", 403},
		{own, "http://user@" + own, 403},
		{own, "http://" + own + "/", 403},
		{own, "http://" + own + "?", 403},
		{own, "null", 403},
		{own, "file://", 403},
		{own, "", 403},
		{own, "http://" + own + ", http://evil.com", 403},
		{own, strings.Repeat("x", 10_000), 403},
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			before := string(r.do(http.MethodGet, items, "").body)
			a := r.do(method, items, `{"objective":"x"}`, "Host", c.host, "Origin", c.origin)
			require.Equal(t, c.status, a.status, "%s %+.60v: %s", method, c, a.body)
			if c.status == 200 {
				require.Equal(t, c.origin, a.header.Get("Access-Control-Allow-Origin"))
				continue
			}
			require.Empty(t, a.header.Get("Access-Control-Allow-Origin"))
			require.Equal(t, before, string(r.do(http.MethodGet, items, "").body), "nothing was done: %+v", c)
			require.Equal(t, "PERMISSION_DENIED", a.fault.Reason)
			require.LessOrEqual(t, len(a.body), 1000)
		}
	}
	// Two headers are one too many.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.base+items, nil)
	require.NoError(t, err)
	req.Header["Origin"] = []string{"http://" + own, "http://evil.com"}
	resp, err := r.client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 403, resp.StatusCode)
	// Outside systems and probes are no pages.
	require.Equal(t, 200, r.do(http.MethodPost, triggerPath+goodToken, "{}", "Origin", "http://evil.com").status)
	for _, path := range []string{"/healthz", "/readyz"} {
		require.Equal(t, 200, r.do(http.MethodGet, path, "", "Origin", "http://evil.com", "Sec-Fetch-Site",
			"cross-site").status, path)
	}
	for _, path := range []string{"/metrics", "/openapi.json", "/llms.txt", "/version", "/v1/events", "/mcp/keeper"} {
		require.Equal(t, 403, r.do(http.MethodGet, path, "", "Origin", "http://localhost:3000").status, path)
	}
}

func TestG4_PagesThatSendNoOriginAreRefused(t *testing.T) {
	r := newRig(t)
	for site, status := range map[string]int{
		"none": 200, "same-origin": 200, "same-site": 403, "cross-site": 403,
		"elsewhere": 403,
	} {
		require.Equal(t, status, r.do(http.MethodGet, items, "", "Sec-Fetch-Site", site, "Sec-Fetch-Mode", "no-cors").
			status, site)
		require.Equal(t, status, r.do(http.MethodPost, items, `{"objective":"x"}`, "Sec-Fetch-Site", site).status, site)
	}
	// An own or allowed origin says more.
	require.Equal(t, 200, r.do(http.MethodGet, items, "", "Origin", r.base, "Sec-Fetch-Site", "same-origin").status)
}

// Every request that a page can send without a preflight request, by its content type.
func TestG4_SimpleRequestsOfPagesDoNothing(t *testing.T) {
	r := newRig(t)
	before := string(r.do(http.MethodGet, items, "").body)
	for _, content := range []string{
		"text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded",
		"multipart/form-data; boundary=x", "",
	} {
		a := r.do(http.MethodPost, items, `{"objective":"x"}`, "Content-Type", content, "Origin",
			"http://localhost:3000")
		require.Equal(t, 403, a.status, content)
	}
	require.Equal(t, before, string(r.do(http.MethodGet, items, "").body))
}

// The refusal does not wait for the body.
func TestG4_TheOriginIsCheckedBeforeTheBody(t *testing.T) {
	r := newRig(t)
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", r.gateway.Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nOrigin: "+
		"http://localhost:3000\r\nContent-Length: 1000\r\n\r\n", items)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.Equal(t, 403, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
}

// Over TLS the own origin is https.
func TestG4_TheOriginHasTheSchemeOfTheConnection(t *testing.T) {
	g := &Service{}
	for origin, ok := range map[string]bool{
		"https://quartet.example": true, "https://quartet.example:443": true,
		"http://quartet.example": false, "http://quartet.example:443": false,
	} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
		req.Host, req.TLS = "quartet.example", &tls.ConnectionState{}
		require.Equal(t, ok, g.allowedOrigin(origin, req), origin)
	}
}

// FuzzOrigin: a page is let in only if its origin is the scheme, host and port to which its request was sent.
func FuzzOrigin(f *testing.F) {
	for _, seed := range [][2]string{
		{"http://127.0.0.1:7480", "127.0.0.1:7480"},
		{"http://LOCALHOST:7480", "localhost:7480"},
		{"https://127.0.0.1:7480", "127.0.0.1:7480"},
		{"null", "127.0.0.1:7480"},
		{"http://[::1]:7480", "[::1]:7480"},
		{"http://a@127.0.0.1:7480", "127.0.0.1:7480"},
		{"http://127.0.0.1:7480/", "127.0.0.1:7480"},
		{"http://127.0.0.1", "127.0.0.1:80"},
		{"http://\x00", "\x00"},
		{"", ""},
	} {
		f.Add(seed[0], seed[1])
	}
	g := &Service{}
	f.Fuzz(func(t *testing.T, origin, host string) {
		req := &http.Request{Host: host, Header: http.Header{"Origin": {origin}}}
		if g.checkPage(req) != nil {
			return
		}
		lower := strings.ToLower(origin)
		require.True(t, strings.HasPrefix(lower, "http://"), "%q", origin)
		name := strings.TrimPrefix(lower, "http://")
		require.Equal(t, strings.TrimSuffix(strings.ToLower(host), ":80"), strings.TrimSuffix(name, ":80"), "%q to %q",
			origin, host)
		require.NotContains(t, name, "/")
		require.NotContains(t, name, "@")
		_ = isLoopbackHost(hostOnly(host))
	})
}
