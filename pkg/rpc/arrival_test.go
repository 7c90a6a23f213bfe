package rpc_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// begin begins a call without sending its message.
func begin(t *testing.T, conn *grpc.ClientConn, method, token string) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	require.NoError(t, err)
	return s
}

// noWorkers permits a worker nothing.
type noWorkers struct{ rpc.Unlimited }

func (noWorkers) Permit(_ context.Context, _ string, a rpc.Actor) error {
	if a.Role == rpc.RoleWorker {
		return fault.PermissionDenied.New("not a worker")
	}
	return nil
}

// arrivals is a server with bounded connections that permits a worker nothing.
func arrivals(t *testing.T, limits connlimit.Limits) (conn *grpc.ClientConn, keys *rpc.Keyring, address string) {
	t.Helper()
	keys = rpc.NewKeyring([]byte("k"), false)
	server := rpc.NewServer(rpc.Config{
		Auth: keys, ReceiveTime: 5 * time.Second, Admission: noWorkers{},
	})
	pb.RegisterTestServiceServer(server, &probe{
		unary: func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			return &pb.SimpleResponse{Username: rpc.ActorFrom(ctx).Principal}, nil
		},
		stream: func(grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error { return nil },
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	lis = server.Bound(lis, limits)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	conn, err = grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(rpc.FaultsStream))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, keys, lis.Addr().String()
}

// TestG8_CallsAreAuthorizedBeforeTheirMessage: a caller is refused without having sent anything.
func TestG8_CallsAreAuthorizedBeforeTheirMessage(t *testing.T) {
	conn, keys, _ := arrivals(t, connlimit.Limits{})
	worker := keys.Mint(rpc.Actor{Namespace: "a", Principal: "w", Role: rpc.RoleWorker})
	operator := keys.Mint(rpc.Actor{Namespace: "a", Principal: "o", Role: rpc.RoleOperator})
	for _, method := range []string{
		pb.TestService_UnaryCall_FullMethodName,
		pb.TestService_StreamingOutputCall_FullMethodName,
	} {
		require.ErrorIs(t, begin(t, conn, method, "").RecvMsg(&pb.SimpleResponse{}), fault.Unauthenticated)
		require.ErrorIs(t, begin(t, conn, method, "guessed").RecvMsg(&pb.SimpleResponse{}), fault.Unauthenticated)
		require.ErrorIs(t, begin(t, conn, method, worker).RecvMsg(&pb.SimpleResponse{}), fault.PermissionDenied)
	}
	s := begin(t, conn, pb.TestService_UnaryCall_FullMethodName, operator)
	require.NoError(t, s.SendMsg(&pb.SimpleRequest{}))
	require.NoError(t, s.CloseSend())
	var resp pb.SimpleResponse
	require.NoError(t, s.RecvMsg(&resp))
	require.Equal(t, "o", resp.GetUsername())
}

// TestG8_ProbesMustArrive: a method without a credential does not wait for its message.
func TestG8_ProbesMustArrive(t *testing.T) {
	conn, _, _ := arrivals(t, connlimit.Limits{})
	err := begin(t, conn, grpc_health_v1.Health_Check_FullMethodName, "").RecvMsg(&grpc_health_v1.HealthCheckResponse{})
	require.ErrorIs(t, err, fault.Deadline)
	require.ErrorContains(t, err, "did not arrive within 5s")
}

// TestG8_RequestsMustArrive: a call whose only message does not arrive in time ends, be its response one message
// or a stream.
func TestG8_RequestsMustArrive(t *testing.T) {
	conn, keys, _ := arrivals(t, connlimit.Limits{})
	operator := keys.Mint(rpc.Actor{Namespace: "a", Principal: "o", Role: rpc.RoleOperator})
	calls := map[string]grpc.ClientStream{}
	for _, method := range []string{
		pb.TestService_UnaryCall_FullMethodName,
		pb.TestService_StreamingOutputCall_FullMethodName,
	} {
		calls[method] = begin(t, conn, method, operator)
	}
	for method, call := range calls {
		err := call.RecvMsg(&pb.SimpleResponse{})
		require.ErrorIs(t, err, fault.Deadline, method)
		require.ErrorContains(t, err, "did not arrive within 5s")
	}
}

// TestG8_ManyCallsOfANewConnection: those of a valid credential are no burst of refusals, though
// more begin at once than a connection without one may have.
func TestG8_ManyCallsOfANewConnection(t *testing.T) {
	conn, keys, _ := arrivals(t, connlimit.Limits{Calls: 1, Refusals: 1})
	operator := keys.Mint(rpc.Actor{Namespace: "a", Principal: "o", Role: rpc.RoleOperator})
	var streams []grpc.ClientStream
	for range 200 {
		streams = append(streams, begin(t, conn, pb.TestService_UnaryCall_FullMethodName, operator))
	}
	for _, s := range streams {
		require.NoError(t, s.SendMsg(&pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, 2<<10)}}))
		require.NoError(t, s.CloseSend())
	}
	for _, s := range streams {
		require.NoError(t, s.RecvMsg(&pb.SimpleResponse{}))
	}
	// A wrong credential beside them closes nothing.
	require.ErrorIs(t, begin(t, conn, pb.TestService_UnaryCall_FullMethodName, "guessed").RecvMsg(&pb.SimpleResponse{}),
		fault.Unauthenticated)
	s := begin(t, conn, pb.TestService_UnaryCall_FullMethodName, operator)
	require.NoError(t, s.SendMsg(&pb.SimpleRequest{}))
	require.NoError(t, s.CloseSend())
	require.NoError(t, s.RecvMsg(&pb.SimpleResponse{}))
}
