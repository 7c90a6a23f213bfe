package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
)

// decoded is the middleware of the mux that turns an HTTP request into the message of its
// RPC. It runs once the mux has matched a pattern, so it knows the RPC before a byte of the
// body is read. What it refuses never reaches the generated handler, which would reduce the
// refusal to its text.
func (g *Service) decoded(routes routeTable) runtime.Middleware {
	return func(next runtime.HandlerFunc) runtime.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request, path map[string]string) {
			pattern, _ := runtime.HTTPPattern(r.Context())
			rt := routes[routeKey(r.Method, pattern.String())]
			if rt == nil { // a generated handler without a line in the REST map
				refuse(w, r, fault.Internal(fmt.Errorf("gateway: no route for %s %s", r.Method, pattern)))
				return
			}
			in := &input{}
			if rt.waits {
				ctx, cancel := g.endedByStop(r.Context())
				defer cancel()
				r = r.WithContext(ctx)
			}
			g.span(rt.pattern, rt.traced, func(w http.ResponseWriter, r *http.Request) {
				query, err := g.request(w, r, rt, in, path)
				out := r.Clone(r.Context())
				out.Body = in
				if err != nil {
					refuse(w, out, err)
					return
				}
				out.ContentLength = 0
				out.Form, out.PostForm = query, url.Values{} // so that ParseForm has nothing to do
				next(w, out, path)
			})(w, r)
		}
	}
}

// request reads a request into in. query is what the query parser of the generated handler
// gets: for a GET the caller's own query, for a DELETE all fields, whether they were in the
// query or in the body.
func (g *Service) request(w http.ResponseWriter, r *http.Request, rt *route, in *input, path map[string]string) (
	query url.Values, err error,
) {
	if err := g.deps.Admission.Permit(r.Context(), rt.method, rpc.ActorFrom(r.Context())); err != nil {
		return nil, err
	}
	if err := in.headers(r); err != nil {
		return nil, err
	}
	if query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return nil, fault.InvalidArgument.New("the query string cannot be read: " + err.Error())
	}
	if r.Method == http.MethodGet {
		return query, in.decode(rt, nil, query, path)
	}
	for name := range query {
		if rt.body {
			return nil, unknownParameter(name).With("hint", "send it in the body")
		}
	}
	text, err := readBody(w, r, g.cfg.MaxBody)
	switch {
	case err != nil:
		return nil, err
	case rt.body:
		return query, in.decode(rt, text, nil, path)
	case len(query) == 0: // a DELETE may have its fields in the body, too
		query = nil
	case len(bytes.TrimSpace(text)) > 0:
		return nil,
			fault.InvalidArgument.New("the request has a query string and a body; give its fields in one of them")
	}
	if err := in.decode(rt, text, query, path); err != nil {
		return nil, err
	}
	return fieldsOf(in.msg, path), nil
}

// fieldsOf returns the fields of a message as a query string, from which a generated handler
// that takes no body fills its message. The fields of the path are left out. A message that is
// sent so has fields of one value each only.
func fieldsOf(m proto.Message, path map[string]string) url.Values {
	query := url.Values{}
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if _, known := path[string(fd.Name())]; !known {
			query.Set(string(fd.Name()), v.String())
		}
		return true
	})
	return query
}

// queryParser fills a message from a query string for the generated handlers, by the same
// rules as bodies. The middleware has accepted the query before.
type queryParser struct{}

// Parse implements runtime.QueryParameterParser.
func (queryParser) Parse(m proto.Message, values url.Values, _ *utilities.DoubleArray) error {
	text, err := parametersJSON(values, m.ProtoReflect().Descriptor())
	if err != nil {
		return err
	}
	given := m.ProtoReflect().New().Interface()
	if err := pbjson.UnmarshalProtoJSON(text, given); err != nil {
		return err
	}
	proto.Merge(m, given)
	return nil
}

// errStopping is the cause of the end of a request that waited when the gateway stopped.
var errStopping = errors.New("the gateway is stopping")

// endedByStop returns a context that ends with errStopping when the gateway stops, for
// requests that may wait for most of a minute. Their callers get a response at once that says to
// repeat the request, instead of being disconnected after drainTime. release must be called.
func (g *Service) endedByStop(ctx context.Context) (ended context.Context, release func()) {
	leaveSoon(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.life, func() { cancel(errStopping) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// waiting is the middleware for handlers outside the mux that ends the contexts of requests as
// endedByStop does.
func (g *Service) waiting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := g.endedByStop(r.Context())
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// stopped returns err, or NOT_READY if errStopping ended the request's ctx. The outcome of a call
// that writes is then unknown (SPEC X1).
func stopped(ctx context.Context, httpMethod string, err error) error {
	if !errors.Is(context.Cause(ctx), errStopping) {
		return err
	}
	e := fault.NotReady.New("the server is stopping; repeat the request in a moment, with the same request_id")
	if httpMethod != http.MethodGet {
		e = e.With("outcome", "unknown")
	}
	return e
}
