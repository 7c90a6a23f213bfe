package app

import (
	"context"

	"google.golang.org/grpc"

	"quartet/pkg/rpc"
)

// limitedConn is a connection for requests that the gateway makes for its callers, and tool calls of the agent plane.
// To planes they are a service's: these do not check the limits of the caller's key, so limitedConn does (SPEC I17).
type limitedConn struct {
	grpc.ClientConnInterface
	check func(a rpc.Actor, method string, req any) error
}

// limited returns connections to services as conn does, whose requests are checked.
func limited(conn func(service string) (grpc.ClientConnInterface, error), check func(a rpc.Actor, method string,
	req any) error,
) func(service string) (grpc.ClientConnInterface, error) {
	return func(service string) (grpc.ClientConnInterface, error) {
		c, err := conn(service)
		if err != nil {
			return nil, err
		}
		return limitedConn{c, check}, nil
	}
}

// Invoke makes a call, unless check refuses it.
func (c limitedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := c.check(rpc.ActorFrom(ctx), method, args); err != nil {
		return err
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a stream that checks each message before it sends it.
func (c limitedConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	s, err := c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return limitedStream{s, func(req any) error { return c.check(rpc.ActorFrom(ctx), method, req) }}, nil
}

// limitedStream is a stream of a limitedConn.
type limitedStream struct {
	grpc.ClientStream
	check func(req any) error
}

// SendMsg sends a message, unless check refuses it.
func (s limitedStream) SendMsg(m any) error {
	if err := s.check(m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}
