package connlimit_test

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"quartet/pkg/connlimit"
	"quartet/pkg/must"
)

// secured serves what it is asked with TLS, and returns its address and how clients trust it.
func secured(t *testing.T, limits connlimit.Limits) (address string, trusted *tls.Config,
	logged *observer.ObservedLogs,
) {
	t.Helper()
	certificates := httptest.NewTLSServer(nil)
	t.Cleanup(certificates.Close)
	lis := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	lis = connlimit.Listen(lis, "http", limits, nil)
	core, logged := observer.New(zap.InfoLevel)
	srv := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ErrorLog: zap.NewStdLog(zap.New(core)),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%s %t", r.Proto, r.TLS != nil && r.TLS.HandshakeComplete)
		}),
	}
	lis = connlimit.ListenHTTPS(lis, certificates.TLS, srv)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		require.NoError(t, srv.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	trusted = certificates.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trusted.ServerName = "example.com"
	return lis.Addr().String(), trusted, logged
}

// TestListen_Protocols: HTTP/2 and HTTP/1.1 are served with TLS, and a caller without it is told so.
func TestListen_Protocols(t *testing.T) {
	address, trusted, logged := secured(t, connlimit.Limits{})
	for _, two := range []bool{true, false} {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: trusted, ForceAttemptHTTP2: two}}
		t.Cleanup(c.CloseIdleConnections)
		if !two {
			p := &http.Protocols{}
			p.SetHTTP1(true)
			c.Transport.(*http.Transport).Protocols = p
		}
		resp := must.Value(c.Get("https://" + address))(t)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, err)
		require.Equal(t, map[bool]string{true: "HTTP/2.0 true", false: "HTTP/1.1 true"}[two], string(text))
	}
	resp := must.Value(http.Get("http://" + address))(t)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.Equal(t, "This port takes HTTP over TLS only; use https:// in place of http://.\n", string(text))
	told := logged.TakeAll()
	require.Len(t, told, 1, "an operator is told, once")
	require.Contains(t, told[0].Message, "TLS handshake with 127.0.0.1")
}

// TestG8_FramesOverTLS: the frames of a caller without a credential count as they do at grpc-addr, also of one who did
// not agree on HTTP/2 before; HTTP/1.1 has none.
func TestG8_FramesOverTLS(t *testing.T) {
	const free = 64 << 10
	for name, protocols := range map[string][]string{"agreed": {"h2"}, "not agreed": nil} {
		address, trusted, _ := secured(t, connlimit.Limits{Free: free, Rate: 1})
		config := trusted.Clone()
		config.NextProtos = protocols
		conn, err := tls.Dial("tcp", address, config)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
		must.Value(conn.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), settings...)))(t)
		const sent = 2000 // 18 KB, and 512 KB with what a frame counts
		go func() {
			for range sent {
				if _, err := conn.Write(settings); err != nil {
					return
				}
			}
		}()
		r, answers := bufio.NewReader(conn), 0
		for {
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(2*time.Second)))
			head := make([]byte, 9)
			if _, err = io.ReadFull(r, head); err != nil {
				break
			}
			must.Value(io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint32(append([]byte{0}, head[:3]...)))))(t)
			if head[3] == 4 && head[4] == 1 {
				answers++
			}
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, name)
		require.Positive(t, answers, name)
		require.Less(t, answers, free/200, name)
	}
}
