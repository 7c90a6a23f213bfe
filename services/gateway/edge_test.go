package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestP3_Deliveries(t *testing.T) {
	r := newRig(t)
	path := triggerPath + goodToken
	a := r.do(http.MethodPost, path, "\xff\x00 anything", "Content-Type", "application/octet-stream", "Idempotency-Key",
		"d1",
		"Host", "public.example.com", "Authorization", "Bearer of-the-outside-system")
	require.Equal(t, 200, a.status, string(a.body))
	require.JSONEq(t, `{"outcome":"DELIVERY_OUTCOME_TRIGGERED","deliveryId":"dlv_1"}`, string(a.body))
	req := r.waiting.delivered[0]
	require.Equal(t, "\xff\x00 anything", string(req.GetBody()))
	require.Equal(t, "application/octet-stream", req.GetContentType())
	require.Equal(t, "d1", req.GetRequestId())
	require.Equal(t, "integration", r.waiting.actors[0].Role)
	a = r.do(http.MethodPost, path, "x", "Idempotency-Key", "d1")
	require.Equal(t, "true", a.header.Get("Idempotent-Replayed"))
	require.Equal(t, 200, r.do(http.MethodPost, path, "x", "Idempotency-Key", `""`, "X-Github-Delivery", "g1").status)
	require.Equal(t, "x-github-delivery:g1", r.waiting.delivered[len(r.waiting.delivered)-1].GetRequestId(),
		"an empty key is none")

	require.Equal(t, 404, r.do(http.MethodPost, triggerPath+"wrong", "").status)
	require.Equal(t, 403, r.do(http.MethodPost, triggerPath+"revoked", "").status)
	a = r.do(http.MethodGet, path, "")
	require.Equal(t, 405, a.status)
	require.Equal(t, "POST", a.header.Get("Allow"))

	require.Equal(t, 200, r.do(http.MethodPost, path, strings.Repeat("x", maxDelivery)).status)
	n := len(r.waiting.delivered)
	require.Equal(t, 413, r.do(http.MethodPost, path, strings.Repeat("x", maxDelivery+1)).status)
	require.Len(t, r.waiting.delivered, n, "what is too large goes no further")
	for _, entry := range r.logs.All() {
		require.NotContains(t, fmt.Sprint(entry.Message, entry.ContextMap()), goodToken)
	}
}

// TestX8_TooLargeIsSaidBeforeItIsSent: a client that asks whether it may send a body, as curl does, is not told to send
// one that is too large.
func TestX8_TooLargeIsSaidBeforeItIsSent(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.MaxBody = 1 << 20 })
	for length, status := range map[int]int{1 << 20: 100, 1<<20 + 1: 413, 50 << 20: 413} {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", r.gateway.Addr())
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "+
			"%d\r\n\r\n", items, length)
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, status, resp.StatusCode)
		require.Equal(t, status == 413, resp.Close)
	}
}

// TestX8_TooLargeReachesWhoReadsLate: clients that send all before they read see the
// answer, if they send no more than twice the limit; who announces a body and sends
// none is not waited for.
func TestX8_TooLargeReachesWhoReadsLate(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.MaxBody = 1 << 20 })
	for name, c := range map[string]struct {
		path    string
		sent    int
		chunked bool
		status  int
		kept    bool // the connection goes on
	}{
		"at the limit":             {items, 1 << 20, false, 400, true}, // it is no JSON
		"above":                    {items, 1<<20 + 1, false, 413, true},
		"above, without length":    {items, 1<<20 + 1, true, 413, true},
		"below twice":              {items, 2<<20 - 1, false, 413, true},
		"twice":                    {items, 2 << 20, false, 413, true},
		"twice, without length":    {items, 2 << 20, true, 413, true},
		"a delivery":               {triggerPath + goodToken, maxDelivery + 1, false, 413, true},
		"a delivery, twice":        {triggerPath + goodToken, 2 * maxDelivery, true, 413, true},
		"announced and never sent": {items, 0, false, 413, false},
		"above twice":              {items, 2<<20 + 1, false, 413, false},
	} {
		t.Run(name, func(t *testing.T) {
			var d net.Dialer
			conn, err := d.DialContext(t.Context(), "tcp", r.gateway.Addr())
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			length := fmt.Sprintf("Content-Length: %d", max(c.sent, 0))
			if c.sent == 0 {
				length = "Content-Length: 1000000000"
			}
			if c.chunked {
				length = "Transfer-Encoding: chunked"
			}
			_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", c.path, length)
			require.NoError(t, err)
			body := strings.Repeat("x", c.sent)
			for len(body) > 0 { // in pieces, as programs do
				piece := body[:min(len(body), 64<<10)]
				body = body[len(piece):]
				if c.chunked {
					piece = fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
				}
				_, err = io.WriteString(conn, piece)
				require.NoError(t, err)
			}
			if c.chunked {
				_, err = io.WriteString(conn, "0\r\n\r\n")
				require.NoError(t, err)
			}
			from := bufio.NewReader(conn)
			resp, err := http.ReadResponse(from, nil)
			require.NoError(t, err)
			said, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, c.status, resp.StatusCode, string(said))
			require.Equal(t, c.kept, !resp.Close)
			if !c.kept {
				return
			}
			_, err = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
			require.NoError(t, err)
			resp, err = http.ReadResponse(from, nil)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 200, resp.StatusCode)
		})
	}
}

func TestHostOnLoopback(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) {
		c.AllowedOrigins = []string{"https://console.example.com"}
		c.AllowedHosts = []string{"quartet.internal"}
	})
	for host, status := range map[string]int{
		"localhost:7480": 200, "127.0.0.1": 200, "[::1]:80": 200, "LOCALHOST": 200, "app.localhost": 200,
		"quartet.internal:443": 200, "console.example.com": 200,
		"evil.com": 421, "evil.com:7480": 421, "localhost.evil.com": 421, "10.0.0.1": 421,
	} {
		require.Equal(t, status, r.do(http.MethodGet, items, "", "Host", host).status, host)
	}
	a := r.do(http.MethodOptions, items, "", "Origin", "https://console.example.com", "Access-Control-Request-Method",
		"PATCH")
	require.Equal(t, 204, a.status)
	require.Contains(t, a.header.Get("Access-Control-Allow-Headers"), "Idempotency-Key")
	require.Equal(t, 403, r.do(http.MethodOptions, items, "", "Origin", "http://evil.com").status)
	require.Equal(t, 200, r.do(http.MethodGet, "/healthz", "", "Host", "probe").status)

	_, err := New(Config{AllowedOrigins: []string{"example.com"}}, Deps{
		Conn: r.gateway.deps.Conn, Auth: r.keys,
		Sources: r.sources,
	})
	require.ErrorContains(t, err, "example.com")
}

// TestX17_ReadyForAll: with ?all the other processes of the installation count as well.
func TestX17_ReadyForAll(t *testing.T) {
	down := []string{"agent is down; `quartet status` says why"}
	r := newRig(t, func(_ *Config, d *Deps) {
		d.Down = func(context.Context) []string { return down }
		d.Warning = func() string { return "the store is 90 % full" }
	})
	require.JSONEq(t, `{"ready":true,"warning":"the store is 90 % full"}`,
		string(r.do(http.MethodGet, "/readyz", "").body))
	a := r.do(http.MethodGet, "/readyz?all", "")
	require.Equal(t, 503, a.status)
	require.JSONEq(t, `{"ready":false,"reasons":["agent is down; `+"`quartet status`"+
		` says why"],"warning":"the store is 90 % full"}`, string(a.body))
	down = nil
	require.Equal(t, 200, r.do(http.MethodGet, "/readyz?all", "").status)
}

func TestProbesAndPages(t *testing.T) {
	r := newRig(t)
	require.Equal(t, 200, r.do(http.MethodGet, "/healthz", "").status)
	require.JSONEq(t, `{"ready":true}`, string(r.do(http.MethodGet, "/readyz", "").body))
	r.mu.Lock()
	r.ready = errors.Join(errors.New("work: loading"), errors.New("nats: gone"))
	r.mu.Unlock()
	a := r.do(http.MethodGet, "/readyz", "")
	require.Equal(t, 503, a.status)
	require.Equal(t, 503, r.do(http.MethodGet, "/readyz?all", "").status)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.JSONEq(t, `{"ready":false,"reasons":["work: loading","nats: gone"]}`, string(a.body))
	require.Equal(t, 200, r.do(http.MethodGet, "/healthz", "").status)
	llms := r.do(http.MethodGet, "/llms.txt", "")
	require.Equal(t, http.StatusOK, llms.status)
	require.Contains(t, string(llms.body), "[OpenAPI](/openapi.json)")
	require.Equal(t, "no-cache", llms.header.Get("Cache-Control"))
	require.Equal(t, http.StatusNotModified, r.do(http.MethodGet, "/llms.txt", "", "If-None-Match",
		llms.header.Get("ETag")).status)
	require.Equal(t, http.StatusMethodNotAllowed, r.do(http.MethodPost, "/llms.txt", "").status)
	require.JSONEq(t, `{"version":"test"}`, string(r.do(http.MethodGet, "/version", "").body))
	require.JSONEq(t, `{"openapi":"3.0.3"}`, string(r.do(http.MethodGet, "/openapi.json", "").body))
	require.Equal(t, 200, r.do(http.MethodGet, "/metrics", "").status)
}

func TestStopIsNotReadyFirstAndEndsStreams(t *testing.T) {
	r := newRig(t)
	s := r.events(t, "", "Accept", "text/event-stream")
	require.NoError(t, r.gateway.Stop(t.Context()))
	var last string
	for s.scan.Scan() {
		if s.scan.Text() != "" {
			last = s.scan.Text()
		}
	}
	require.Contains(t, last, `"reason":"NOT_READY"`)
}

func TestStopAnswersLongPolls(t *testing.T) {
	r := newRig(t)
	polls := make(chan answer, 1)
	go func() { polls <- r.do(http.MethodPost, "/v1/turns:acquire", `{"wait":"50s"}`, "Idempotency-Key", "k") }()
	<-r.polled
	require.Empty(t, polls, "the poll waits")
	require.NoError(t, r.gateway.Stop(t.Context()))
	a := <-polls
	require.Equal(t, 503, a.status)
	require.Equal(t, "NOT_READY", a.fault.Reason)
	require.Equal(t, "unknown", a.fault.Metadata["outcome"])
	require.Equal(t, "1", a.header.Get("Retry-After"))
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	_, err := New(Config{}, Deps{})
	require.Error(t, err)
	r := newRig(t)
	g, err := New(Config{HTTPAddr: r.gateway.Addr()}, r.gateway.deps)
	require.NoError(t, err)
	require.Error(t, g.Start(t.Context()), "the address is taken")
	require.NoError(t, g.Stop(t.Context()))
}

// A path that climbs or stammers is not found, in JSON: nobody is redirected.
func TestX5_PathsAreWrittenAsTheyAreMeant(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{
		"/v1/agents/../agents", "/v1//agents", "/v1/./agents", "/v1/agents/..%2f..%2fetc",
		"/v1/agents/..",
	} {
		a := r.do(http.MethodGet, path, "")
		require.Equal(t, http.StatusNotFound, a.status, path)
		require.Equal(t, "NOT_FOUND", a.fault.Reason, path)
	}
}
