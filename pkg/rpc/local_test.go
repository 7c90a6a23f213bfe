package rpc_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// A handler sees of its caller what came with the call, and nothing that lies
// in the caller's context; what it keeps is its own.
func TestCallsShareNothing(t *testing.T) {
	s := newSite(t, false)
	type private struct{}
	var kept *pb.SimpleRequest
	answer := &pb.SimpleResponse{Payload: &pb.Payload{Body: []byte("answer")}}
	s.probe.unary = func(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		kept = in
		out, _ := metadata.FromOutgoingContext(ctx)
		require.Empty(t, out, "it would be sent on")
		in1, _ := metadata.FromIncomingContext(ctx)
		require.Equal(t, []string{"1"}, in1.Get("mine"))
		require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("said", "so")))
		require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("at-last", "that")))
		_, has := ctx.Deadline()
		require.True(t, has)
		return answer, nil
	}
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		ctx := metadata.AppendToOutgoingContext(context.WithValue(t.Context(), private{}, 1), "mine", "1")
		req := &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("request")}}
		var header, trailer metadata.MD
		got, err := c.UnaryCall(ctx, req, grpc.Header(&header), grpc.Trailer(&trailer))
		require.NoError(t, err)
		require.Equal(t, []string{"so"}, header.Get("said"))
		require.Equal(t, []string{"that"}, trailer.Get("at-last"))
		got.Payload.Body[0], req.Payload.Body[0] = 'X', 'X'
		require.Equal(t, "answer", string(answer.GetPayload().GetBody()))
		require.Equal(t, "request", string(kept.GetPayload().GetBody()))
	})
}

func TestBadTextIsNoMessage(t *testing.T) {
	s := newSite(t, false)
	s.probe.unary = func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		return &pb.SimpleResponse{Username: "\xff"}, nil
	}
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
		require.Equal(t, codes.Internal, fault.From(err).Code())
		_, err = c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Message: "\xff"}})
		require.Equal(t, codes.Internal, fault.From(err).Code())
	})
}

// A stop waits for calls of this process as for others, and ends them when its
// patience does.
func TestStopEndsCallsInTheProcess(t *testing.T) {
	s := newSite(t, false)
	started := make(chan struct{})
	s.probe.unary = func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		close(started)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := s.memory.Dial("probe")
	require.NoError(t, err)
	c := pb.NewTestServiceClient(conn)
	answered, drained := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := c.UnaryCall(context.Background(), &pb.SimpleRequest{})
		answered <- err
	}()
	<-started
	patience, lose := context.WithCancel(context.Background())
	go func() {
		rpc.Drain(patience, s.server)
		close(drained)
	}()
	require.Never(t, func() bool { return len(answered) > 0 || closed(drained) }, 20*time.Millisecond, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = c.UnaryCall(ctx, &pb.SimpleRequest{})
	require.Equal(t, codes.Unavailable, fault.From(err).Code(), "no new calls")
	lose()
	require.Error(t, <-answered)
	<-drained
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
