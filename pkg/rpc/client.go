package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
)

// FaultsUnary rebuilds faults from the wire, for connections that Network did not make: of a CLI, runner or worker.
func FaultsUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	return rebuild(invoke(ctx, method, req, reply, cc, opts...))
}

// FaultsStream does what FaultsUnary does, for streams: it rebuilds the fault of a stream that
// could not be opened, and those that Header, SendMsg and RecvMsg of the stream return.
func FaultsStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, rebuild(err)
	}
	return clientStream{s}, nil
}

func (c *credential) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	return rebuild(invoke(c.attach(ctx), method, req, reply, cc, opts...))
}

func (c *credential) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return FaultsStream(c.attach(ctx), desc, cc, method, open, opts...)
}

type clientStream struct{ grpc.ClientStream }

func (s clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, rebuild(err)
}

func (s clientStream) SendMsg(m any) error { return rebuild(s.ClientStream.SendMsg(m)) }
func (s clientStream) RecvMsg(m any) error { return rebuild(s.ClientStream.RecvMsg(m)) }

// rebuild converts the error of a call to a fault. It returns nil and io.EOF, which is the normal
// end of a stream, unchanged.
func rebuild(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return fault.From(err)
}
