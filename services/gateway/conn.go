package gateway

import (
	"context"
	"io"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

// conn stands between the generated REST handlers and a plane. They hand over
// requests that hold the path only; it completes them. It also drops the
// metadata they made of the caller's headers: the caller's Authorization must
// not reach a plane beside the gateway's own (SPEC X4).
type conn struct{ plane grpc.ClientConnInterface }

// Invoke implements grpc.ClientConnInterface.
func (c conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	req, err := complete(ctx, args)
	if err != nil {
		return err
	}
	route(ctx)
	return c.plane.Invoke(onward(ctx), method, req, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	route(ctx)
	s, err := c.plane.NewStream(onward(ctx), desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &stream{ClientStream: s, ctx: ctx, method: method}, nil
}

func complete(ctx context.Context, args any) (proto.Message, error) {
	m, ok := args.(proto.Message)
	if !ok {
		return nil, fault.InternalError.Newf("a request of type %T is no message", args)
	}
	return callFrom(ctx).fill(m)
}

func onward(ctx context.Context) context.Context {
	md := metadata.MD{}
	// With a span of the gateway's own the connection sends that.
	if t := callFrom(ctx).traceparent; t != "" && !trace.SpanContextFromContext(ctx).IsValid() {
		md.Set(tracing.Header, t)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// stream takes the first answer before the HTTP header is written, so that a
// stream which is refused is refused with its status.
type stream struct {
	grpc.ClientStream
	ctx    context.Context //nolint:containedctx // of the stream, which has one anyway
	method string
	first  proto.Message
	err    error
}

func (s *stream) SendMsg(m any) error {
	req, err := complete(s.ctx, m)
	if err != nil {
		return err
	}
	return s.ClientStream.SendMsg(req)
}

func (s *stream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if err != nil {
		return md, err
	}
	if s.first, err = newReply(s.method); err != nil {
		return md, err
	}
	if s.err = s.ClientStream.RecvMsg(s.first); s.err != nil && s.err != io.EOF { //nolint:errorlint // grpc gives it bare
		return md, s.err
	}
	return md, nil
}

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

// newReply makes an empty answer of a method given as "/package.Service/Method".
func newReply(method string) (proto.Message, error) {
	name := []byte(method[1:])
	for i, c := range name {
		if c == '/' {
			name[i] = '.'
		}
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil, fault.Internal(err)
	}
	md, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fault.InternalError.New(string(name) + " is no method")
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(md.Output().FullName())
	if err != nil {
		return nil, fault.Internal(err)
	}
	return t.New().Interface(), nil
}
