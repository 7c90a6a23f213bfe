package connlimit

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
)

// httpsListener accepts connections with TLS, and gives them to the HTTP server as connections without TLS. So it can
// count the frames of HTTP/2 after decryption, which it could not if the server decrypted them.
type httpsListener struct {
	net.Listener
	config *tls.Config
	logf   func(format string, args ...any)
}

// ListenHTTPS returns a listener that accepts connections with TLS from lis. It changes srv so that srv speaks HTTP/2
// and HTTP/1.1 over these connections and sets Request.TLS; srv must serve no other listener. Handshakes that fail are
// logged to srv.ErrorLog, if it has one. Listen does not change config.
func ListenHTTPS(lis net.Listener, config *tls.Config, srv *http.Server) net.Listener {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	srv.Protocols = &http.Protocols{}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true) // srv receives what listener has decrypted
	srv.Handler = withState(srv.Handler)
	inner := srv.ConnContext
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if inner != nil {
			ctx = inner(ctx, c)
		}
		if c, ok := c.(*httpsConn); ok {
			ctx = context.WithValue(ctx, httpsConnKey{}, c.secured)
		}
		return ctx
	}
	logf := func(string, ...any) {}
	if srv.ErrorLog != nil {
		logf = srv.ErrorLog.Printf
	}
	return httpsListener{lis, config, logf}
}

// Accept implements net.Listener. The handshake takes place with the first read.
func (l httpsListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	secured := tls.Server(c, l.config)
	return &httpsConn{
		Conn: secured, secured: secured, frames: NewFrames(Of(c.RemoteAddr())),
		logf: l.logf,
	}, nil
}

// httpsConn is a connection with TLS. It does not have the method ConnectionState: with it the HTTP server would not
// look for HTTP/2.
type httpsConn struct {
	net.Conn // secured
	secured  *tls.Conn
	frames   *Frames
	logf     func(format string, args ...any)
	failed   bool // the handshake failed and was logged; the server may read once more after that
}

// CloseWrite lets the server end its side first, so that a client whose request is refused can read the response.
func (c *httpsConn) CloseWrite() error { return c.secured.CloseWrite() }

// Read implements net.Conn. A caller who speaks HTTP without TLS is told so, and a handshake that fails is logged.
func (c *httpsConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.frames.Read(p[:n])
	if err == nil || c.failed || c.secured.ConnectionState().HandshakeComplete {
		return n, err
	}
	c.failed = true
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.logf("TLS handshake with %s: %v", c.RemoteAddr(), err)
	}
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) && plain.Conn != nil &&
		looksLikeHTTP(plain.RecordHeader) {
		_, _ = io.WriteString(plain.Conn, "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nThis port "+
			"takes HTTP over TLS only; use https:// in place of http://.\n")
	}
	return n, err
}

// looksLikeHTTP reports whether a request of HTTP begins with header.
func looksLikeHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH":
		return true
	}
	return false
}

type httpsConnKey struct{}

// withState returns a handler that sets Request.TLS of requests that arrive over a conn, and calls next.
func withState(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(httpsConnKey{}).(*tls.Conn); ok {
			state := c.ConnectionState()
			r.TLS = &state
		}
		next.ServeHTTP(w, r)
	})
}
