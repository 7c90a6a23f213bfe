package app

import (
	"context"

	"google.golang.org/grpc"

	"quartet/pkg/rpc"
)

// limitedConn is a connection by which the gateway makes its callers' requests, and the agent plane the calls of tools. Planes
// take them for a service's and do not check what the key of the caller is limited to, so limitedConn does (SPEC I17).
type limitedConn struct {
	grpc.ClientConnInterface
	check func(a rpc.Actor, method string, req any) error
}

// limited returns connections to services as conn does, whose requests are checked.
func limited(conn func(service string) (grpc.ClientConnInterface, error), check func(a rpc.Actor, method string, req any) error) func(service string) (grpc.ClientConnInterface, error) {
	return func(service string) (grpc.ClientConnInterface, error) {
		c, err := conn(service)
		if err != nil {
			return nil, err
		}
		return limitedConn{c, check}, nil
	}
}

// Invoke implements grpc.ClientConnInterface.
func (c limitedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := c.check(rpc.ActorFrom(ctx), method, args); err != nil {
		return err
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c limitedConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
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

// SendMsg implements grpc.ClientStream.
func (s limitedStream) SendMsg(m any) error {
	if err := s.check(m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}
