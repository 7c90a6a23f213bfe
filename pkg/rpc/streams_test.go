package rpc_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// streaming starts a server with a stream, and returns a client that has no credential.
func streaming(t *testing.T, cfg rpc.Config,
	stream func(out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error,
) (tcp, memory pb.TestServiceClient) {
	t.Helper()
	keys := rpc.NewKeyring([]byte("k"), true)
	cfg.Auth = keys
	server := rpc.NewServer(cfg)
	pb.RegisterTestServiceServer(server, &probe{stream: stream})
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(rpc.FaultsStream))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	network := rpc.NewNetwork(rpc.NetworkConfig{Service: "caller", Token: keys.MintService("caller")})
	t.Cleanup(func() { _ = network.Close() })
	require.NoError(t, network.Listen("probe", server))
	within, err := network.Dial("probe")
	require.NoError(t, err)
	return pb.NewTestServiceClient(conn), pb.NewTestServiceClient(within)
}

// TestG10_ASlowReaderIsEnded: a stream whose caller receives nothing ends with a reason, and its handler with
// it; one that is read goes on.
func TestG10_ASlowReaderIsEnded(t *testing.T) {
	ended := make(chan error, 1)
	body := make([]byte, 64<<10)
	tcp, memory := streaming(t, rpc.Config{SendTime: 200 * time.Millisecond},
		func(out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
			for {
				if err := out.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: body}}); err != nil {
					ended <- err
					return err
				}
			}
		})
	for name, client := range map[string]pb.TestServiceClient{"tcp": tcp, "memory": memory} {
		t.Run(name, func(t *testing.T) {
			slow, err := client.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
			require.NoError(t, err)
			require.ErrorIs(t, <-ended, fault.Overloaded)
			for err == nil { // what was sent before arrives, and then the reason
				_, err = slow.Recv()
			}
			require.ErrorIs(t, err, fault.Overloaded)
			require.Equal(t, "reader", fault.From(err).Metadata()["bound"])
		})
	}
}

// streamLimit counts streams.
type streamLimit struct {
	rpc.Unlimited
	count func() (release func(), err error)
}

func (s streamLimit) Stream(rpc.Actor) (release func(), err error) { return s.count() }

// TestG10_StreamsAreCounted: each stream is counted until it ends; one that is refused is not executed.
func TestG10_StreamsAreCounted(t *testing.T) {
	var open atomic.Int64
	full := fault.Overloaded.New("full").WithRetryAfter(time.Second)
	started, end := make(chan struct{}, 8), make(chan struct{})
	client, _ := streaming(t, rpc.Config{Admission: streamLimit{count: func() (func(), error) {
		if open.Add(1) > 2 {
			open.Add(-1)
			return nil, full
		}
		return func() { open.Add(-1) }, nil
	}}}, func(grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
		started <- struct{}{}
		<-end
		return nil
	})
	call := func() error {
		s, err := client.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	results := make(chan error, 2)
	for range 2 {
		go func() { results <- call() }()
		<-started
	}
	err := call()
	require.ErrorIs(t, err, fault.Overloaded)
	require.Equal(t, time.Second, fault.From(err).RetryAfter())
	close(end)
	for range 2 {
		require.Error(t, <-results) // io.EOF
	}
	require.Eventually(t, func() bool { return open.Load() == 0 }, time.Minute, time.Millisecond)
}
