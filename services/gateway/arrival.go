package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
)

// maxHeader is the largest header of a request, in bytes: a token of 16 KiB, and a query string.
const maxHeader = 32 << 10

// withConn is the ConnContext of the server: requests find their connection in their context.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if conn := connlimit.Of(c.RemoteAddr()); conn != nil {
		return connlimit.WithConn(ctx, conn)
	}
	return ctx
}

// connOf returns the connection of a request, nil if it is not a bounded one.
func connOf(r *http.Request) *connlimit.Conn { return connlimit.FromContext(r.Context()) }

// proven records that the caller of a request has shown a valid credential.
func proven(r *http.Request) {
	if c := connOf(r); c != nil {
		c.Prove()
	}
}

// arriving counts the requests of a connection whose caller has shown no valid credential, and gives
// the body of a request a deadline, which readBody extends: without it, the server would wait without
// end for what the client has not sent, to use the connection again.
func arriving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connOf(r); c != nil && !c.Proven() {
			c.Enter()
			defer c.Leave()
		}
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyGrace))
		}
		out := &departing{ResponseWriter: w, control: http.NewResponseController(w)}
		next.ServeHTTP(out, r)
		if out.wrote { // the end of the response is written after this
			_ = out.control.SetWriteDeadline(time.Now().Add(writeTime))
		}
	})
}

// departing is the ResponseWriter for the responses to requests that came through arriving. The client must receive
// within writeTime; otherwise writing fails and the connection is closed. Streams of the REST API go through it.
type departing struct {
	http.ResponseWriter
	control *http.ResponseController
	wrote   bool
}

// Write implements http.ResponseWriter.
func (d *departing) Write(b []byte) (int, error) {
	d.wrote = true
	_ = d.control.SetWriteDeadline(time.Now().Add(writeTime)) // a writer without deadlines has no slow clients
	return d.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, which streams need.
func (d *departing) Flush() {
	_ = d.control.SetWriteDeadline(time.Now().Add(writeTime))
	_ = d.control.Flush()
}

// Unwrap lets http.ResponseController reach the original writer.
func (d *departing) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// refuseCaller refuses a request because of its credential. Unless a credential was valid on the
// connection before, it counts the refusal and closes the connection after the response; for NOT_READY it
// does neither, since the credential could not be checked.
func (g *Service) refuseCaller(w http.ResponseWriter, r *http.Request, err error) {
	if c := connOf(r); c != nil && !c.Proven() && !errors.Is(err, fault.NotReady) {
		w.Header().Set("Connection", "close")
		c.Refuse()
	}
	refuse(w, r, err)
}

// grant lets n bytes of a body be read before its sender is known. On an unproven connection it waits until the
// previous grant is released; ok is false, and release nil, if the client leaves meanwhile. Otherwise the caller must
// call release.
func grant(r *http.Request, n int64) (release func(), ok bool) {
	c := connOf(r)
	if c == nil || c.Proven() {
		return func() {}, true
	}
	return c.Grant(r.Context().Done(), n)
}

// scarceRate is how many requests per second a source may make for pages that need no credential
// and cost much, scarceBurst how many at once.
const scarceRate, scarceBurst = 1, 10

// scarce limits requests for pages that need no credential and cost much, by source: those beyond the
// rate are refused with OVERLOADED, and the connection is closed after that. A connection on which a valid
// credential was shown is not limited.
func scarce(rates *connlimit.Rates, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connOf(r); c != nil && !c.Proven() {
			if wait := rates.Take(c.Source()); wait > 0 {
				w.Header().Set("Connection", "close")
				refuse(w, r, fault.Overloaded.New("this address asks for this page too often").WithRetryAfter(wait))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
