package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
)

// head is a response whose body is closed when the test ends.
type head struct {
	StatusCode int
	Header     http.Header
	Close      bool // the connection is closed after it
	Body       io.Reader
}

// raw sends text over a connection of its own and returns the response.
func (r *rig) raw(text string) (head, net.Conn) {
	r.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(r.t.Context(), "tcp", r.gateway.Addr())
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(r.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(conn, text)
	require.NoError(r.t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return head{resp.StatusCode, resp.Header, resp.Close, resp.Body}, conn
}

// ends waits until the server closes a connection.
func ends(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, conn)
	ne, ok := err.(net.Error) //nolint:errorlint // of the connection itself
	require.False(t, ok && ne.Timeout(), "the connection stays open")
}

// TestG8_RequestsAreAuthorizedBeforeTheirBody: who sends no body is refused as well, and does not
// hold the connection.
func TestG8_RequestsAreAuthorizedBeforeTheirBody(t *testing.T) {
	r := newRig(t, func(_ *Config, d *Deps) {
		d.Auth = rpc.NewKeyring([]byte("key"), false)
	})
	post := func(token string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Length: "+
			"200000\r\n\r\nabc", items, token)
	}
	resp, conn := r.raw(post("guessed"))
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	require.True(t, resp.Close)
	ends(t, conn)
	resp, conn = r.raw(post(r.keys.Mint(rpc.Actor{Namespace: "a", Principal: "w", Role: rpc.RoleWorker})))
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	ends(t, conn)
}

// TestG8_SlowBodies: who sends 3 of 200 000 bytes gets an error, and the connection ends. A
// delivery is no exception.
func TestG8_SlowBodies(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{items, triggerPath + goodToken} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			resp, conn := r.raw("POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 200000\r\n\r\nabc")
			require.Equal(t, http.StatusBadRequest, resp.StatusCode)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Contains(t, string(body), "must arrive within 30s")
			ends(t, conn)
		})
	}
}

// TestG8_NestedBodiesCostLittle: brackets without end are refused without being read deeply. Decoding them
// once took 1 GB.
func TestG8_NestedBodiesCostLittle(t *testing.T) {
	const size = fault.MaxRequestBytes
	r := newRig(t)
	for name, body := range map[string]string{
		"lists":           strings.Repeat("[", size),
		"objects":         strings.Repeat(`{"a":`, size/5),
		"a field":         `{"objective":` + strings.Repeat("[", size-13),
		"a free field":    `{"toolCalls":[{"arguments":` + strings.Repeat(`{"a":`, (size-100)/5),
		"a list in there": `{"toolCalls":[{"arguments":{"a":` + strings.Repeat(`[`, size-100),
	} {
		for _, path := range []string{items, "/v1/agents/keeper/turns/trn_1/rounds", "/v1/agents"} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			a := r.do(http.MethodPost, path, body)
			runtime.ReadMemStats(&after)
			require.GreaterOrEqual(t, a.status, 400, name)
			require.Less(t, a.status, 500, name)
			// Reading a body takes five times its size, in the test the same again.
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "%s to %s", name, path)
		}
	}
}

// FuzzBody: no body breaks the decoder of any route, and one that is accepted is accepted again in the form
// in which the server writes it.
func FuzzBody(f *testing.F) {
	routes, err := newRouteTable(nil)
	require.NoError(f, err)
	for _, seed := range []string{
		"", "{}", "[[[[", `{"objective":"x"}`, `{"requestId":"a","expectedRevision":"7"}`,
		"\xff", `{"toolCalls":[{"arguments":{"a":[1e400,null]}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, rt := range routes {
			in := &input{}
			if in.decode(rt, text, nil, nil) != nil {
				continue
			}
			again, err := pbjson.MarshalProtoJSON(in.msg)
			if err != nil {
				continue // text that is no UTF-8 has no JSON form
			}
			require.NoError(t, (&input{}).decode(rt, again, nil, nil), "%s: %s", rt.method, again)
		}
	})
}

// TestG8_PagesWithoutACredentialAreScarce: a source that asks too often is told when to come again; who has
// shown a credential is not limited.
func TestG8_PagesWithoutACredentialAreScarce(t *testing.T) {
	r := newRig(t)
	for range scarceBurst {
		resp, _ := r.raw("GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	require.Eventually(t, func() bool {
		resp, _ := r.raw("GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
		return resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "1"
	}, time.Minute, time.Millisecond)
	// What follows on the connection is not answered.
	again := "GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	resp, conn := r.raw(strings.Repeat(again, scarceBurst))
	for resp.StatusCode == http.StatusOK { // a second has passed
		resp, conn = r.raw(strings.Repeat(again, scarceBurst))
	}
	require.True(t, resp.Close)
	ends(t, conn)
	for range 2 * scarceBurst { // one connection, on which every request is that of a known caller
		require.Equal(t, http.StatusOK, r.do(http.MethodGet, "/v1/agents/keeper/work-items", "").status)
		require.Equal(t, http.StatusOK, r.do(http.MethodGet, "/openapi.json", "").status)
	}
}
