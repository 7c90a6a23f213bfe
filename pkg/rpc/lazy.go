package rpc

import (
	"context"

	"google.golang.org/grpc"
)

// Lazy is a connection that is dialled for each call, so that clients can be made before the service can be reached. It
// is for functions that return the same connection again without effort, such as one that calls Network.Dial.
type Lazy func() (grpc.ClientConnInterface, error)

// Invoke implements grpc.ClientConnInterface.
func (dial Lazy) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := dial()
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (dial Lazy) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}
