package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
)

// conn is the connection by which the gateway calls a plane for its callers. To the plane these calls are a service's,
// whose messages it does not check against the limits of the caller's key, so conn does (SPEC I17). It drops the
// metadata that the generated REST handlers make of the caller's headers, because the caller's Authorization must not
// reach a plane beside the gateway's own (SPEC X4). It lets a stream that is refused have the HTTP status of its
// refusal.
type conn struct {
	plane     grpc.ClientConnInterface
	admission rpc.Admission
}

// conn returns the connection to a service.
func (g *Service) conn(service string) (grpc.ClientConnInterface, error) {
	plane, err := g.deps.Conn(service)
	if err != nil {
		return nil, fmt.Errorf("gateway: %s: %w", service, err)
	}
	return conn{plane, g.deps.Admission}, nil
}

// Invoke implements grpc.ClientConnInterface.
func (c conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := c.admission.Within(rpc.ActorFrom(ctx), method, args); err != nil {
		return err
	}
	return c.plane.Invoke(onward(ctx), method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	s, err := c.plane.NewStream(onward(ctx), desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &stream{ClientStream: s, method: method, check: func(m any) error {
		return c.admission.Within(rpc.ActorFrom(ctx), method, m)
	}}, nil
}

// traceMetadata returns the caller's trace as metadata. It is the only header of the caller that
// reaches a plane.
func traceMetadata(_ context.Context, r *http.Request) metadata.MD {
	if t := r.Header.Get(tracing.Header); t != "" {
		return metadata.Pairs(tracing.Header, t)
	}
	return nil
}

// onward returns ctx with the caller's trace as its only outgoing metadata, or with none if the
// gateway has a span of its own: the connection then sends that one.
func onward(ctx context.Context) context.Context {
	md := metadata.MD{}
	if out, ok := metadata.FromOutgoingContext(ctx); ok && !trace.SpanContextFromContext(ctx).IsValid() {
		if t := out.Get(tracing.Header); len(t) > 0 {
			md.Set(tracing.Header, t[0])
		}
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// stream receives the first response with its header, before the HTTP header is written, so that
// a stream which is refused gets the status of its refusal. RecvMsg then returns that response
// first.
type stream struct {
	grpc.ClientStream
	method string
	check  func(m any) error // refuses a message of the caller
	first  proto.Message     // the first response, until RecvMsg has returned it
	err    error             // what receiving the first response returned
}

// SendMsg implements grpc.ClientStream.
func (s *stream) SendMsg(m any) error {
	if err := s.check(m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}

// Header implements grpc.ClientStream. It must be called before RecvMsg, and returns the error of a
// refused stream.
func (s *stream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if err != nil {
		return md, err
	}
	_, reply, err := rpc.MessageTypes(s.method)
	if err != nil {
		return md, fault.Internal(err)
	}
	s.first = reply.New().Interface()
	if s.err = s.ClientStream.RecvMsg(s.first); s.err != nil && s.err != io.EOF { //nolint:errorlint // grpc gives it bare
		return md, s.err
	}
	return md, nil
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	if s.err != nil {
		return s.err
	}
	if s.first == nil {
		return s.ClientStream.RecvMsg(m)
	}
	if out, ok := m.(proto.Message); ok {
		proto.Merge(out, s.first)
	}
	s.first = nil
	return nil
}
