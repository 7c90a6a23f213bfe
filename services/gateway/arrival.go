package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	"quartet/pkg/tracing"
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

// arriving is what every request passes first. It bounds what the request may cost before its caller is known, sets
// the headers that every response has, and counts and logs the request once it was answered.
func (g *Service) arriving(next http.Handler) http.Handler {
	count := g.counter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		out := &response{ResponseWriter: w, control: http.NewResponseController(w), code: http.StatusOK}

		// Count the request while the connection has shown no valid credential.
		if c := connOf(r); c != nil && !c.Proven() {
			c.Enter()
			defer c.Leave()
		}

		// Give the body a deadline, which readBody extends. Without it the server would wait without end for what the
		// client has not sent, to use the connection again.
		if r.ContentLength != 0 {
			_ = out.control.SetReadDeadline(time.Now().Add(bodyGrace))
		}

		// Answer. A path that is not in its shortest form, such as one with .. in it, is not found: ServeMux would
		// answer with a redirect in HTML.
		out.Header().Set("X-Content-Type-Options", "nosniff")
		out.Header().Set("Cache-Control", "no-store")
		if p := r.URL.Path; p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/") {
			unrouted(out, r, http.StatusNotFound)
		} else {
			next.ServeHTTP(out, r)
		}
		out.extend() // the end of the response is written after this

		count(r.Method, out.code, time.Since(began))
		g.log(r)
	})
}

// log logs the method and path of a request at debug level, without the query, the body and the token of a trigger.
func (g *Service) log(r *http.Request) {
	entry := g.deps.Logger.Check(zap.DebugLevel, "http")
	if entry == nil {
		return
	}
	shown := r.URL.Path
	if strings.HasPrefix(shown, triggerPath) {
		shown = triggerPath + "…"
	}
	entry.Write(append(tracing.Fields(r.Context()), zap.String("method", r.Method), zap.String("path", shown))...)
}

// response is the ResponseWriter of all handlers of the gateway. The client must receive within writeTime; otherwise
// writing fails and the connection is closed. Streams of the REST API go through it.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	code    int  // the status, 200 if the handler sets none
	wrote   bool // the status is determined; an informational one does not count
}

// extend lets the client receive for writeTime from now on.
func (o *response) extend() {
	_ = o.control.SetWriteDeadline(time.Now().Add(writeTime)) // a writer without deadlines has no slow clients
}

// WriteHeader implements http.ResponseWriter.
func (o *response) WriteHeader(code int) {
	if !o.wrote {
		o.code, o.wrote = code, code >= http.StatusOK
	}
	o.extend()
	o.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (o *response) Write(b []byte) (int, error) {
	o.wrote = true
	o.extend()
	return o.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, which streams need.
func (o *response) Flush() {
	o.extend()
	_ = o.control.Flush()
}

// Unwrap lets http.ResponseController reach the original writer.
func (o *response) Unwrap() http.ResponseWriter { return o.ResponseWriter }

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
