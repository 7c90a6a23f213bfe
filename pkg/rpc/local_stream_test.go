package rpc_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

type (
	duplex       = grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]
	duplexClient = grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]
)

func request(body string) *pb.StreamingOutputCallRequest {
	return &pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: []byte(body)}}
}

func response(body []byte) *pb.StreamingOutputCallResponse {
	return &pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: body}}
}

// echoes sends each message back until the caller ends its side.
func echoes(s duplex) error {
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(response(in.GetPayload().GetBody())); err != nil {
			return err
		}
	}
}

// streams runs a test over memory and over TCP: a stream within the process behaves as one over a connection.
func streams(t *testing.T, handle func(duplex) error,
	body func(t *testing.T, open func(ctx context.Context) duplexClient),
) {
	s := newSite(t, false)
	s.probe.duplex = handle
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		body(t, func(ctx context.Context) duplexClient {
			stream, err := c.FullDuplexCall(ctx)
			require.NoError(t, err)
			return stream
		})
	})
}

func TestStreams_Echo(t *testing.T) {
	streams(t, echoes, func(t *testing.T, open func(context.Context) duplexClient) {
		s := open(t.Context())
		sent := request("0")
		for i := range 100 {
			sent.Payload.Body = []byte{byte(i)}
			require.NoError(t, s.Send(sent))
			sent.Payload.Body[0] = 0xff // what was sent is not shared
			got, err := s.Recv()
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i)}, got.GetPayload().GetBody())
		}
		require.NoError(t, s.CloseSend())
		_, err := s.Recv()
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestStreams_HeaderAndTrailer(t *testing.T) {
	waits := make(chan struct{})
	handle := func(s duplex) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		if out, ok := metadata.FromOutgoingContext(s.Context()); ok && len(out) > 0 {
			return errors.New("what was sent would be sent on")
		}
		if err := s.SetHeader(metadata.Pairs("first", md.Get("mine")[0])); err != nil {
			return err
		}
		if err := s.SendHeader(metadata.Pairs("second", "2")); err != nil {
			return err
		}
		<-waits
		s.SetTrailer(metadata.Pairs("at-last", "3"))
		return fault.NotReady.New("not today")
	}
	streams(t, handle, func(t *testing.T, open func(context.Context) duplexClient) {
		s := open(metadata.AppendToOutgoingContext(t.Context(), "mine", "1"))
		header, err := s.Header()
		require.NoError(t, err)
		require.Equal(t, []string{"1"}, header.Get("first"))
		require.Equal(t, []string{"2"}, header.Get("second"))
		waits <- struct{}{}
		_, err = s.Recv()
		require.ErrorIs(t, err, fault.NotReady)
		require.Equal(t, []string{"3"}, s.Trailer().Get("at-last"))
		for err = nil; err == nil; err = s.Send(request("late")) {
		}
		require.ErrorIs(t, err, io.EOF, "RecvMsg says why")
	})
}

// What a handler sent before it failed arrives before the error.
func TestStreams_MessagesBeforeTheError(t *testing.T) {
	handle := func(s duplex) error {
		for range 10 {
			if err := s.Send(response([]byte("x"))); err != nil {
				return err
			}
		}
		return fault.TooLarge.New("enough")
	}
	streams(t, handle, func(t *testing.T, open func(context.Context) duplexClient) {
		s := open(t.Context())
		for range 10 {
			_, err := s.Recv()
			require.NoError(t, err)
		}
		_, err := s.Recv()
		require.ErrorIs(t, err, fault.TooLarge)
	})
}

// The handler's context ends with the caller's, and so do all calls of both sides.
func TestStreams_TheCallerLeaves(t *testing.T) {
	ended := make(chan error, 1)
	handle := func(s duplex) error {
		_, err := s.Recv()
		<-s.Context().Done()
		ended <- err
		return err
	}
	streams(t, handle, func(t *testing.T, open func(context.Context) duplexClient) {
		ctx, leave := context.WithCancel(t.Context())
		s := open(ctx)
		leave()
		_, err := s.Recv()
		require.Equal(t, codes.Canceled, fault.From(err).Code())
		require.Equal(t, codes.Canceled, status.Code(<-ended))
	})
}

func TestStreams_Sizes(t *testing.T) {
	streams(t, echoes, func(t *testing.T, open func(context.Context) duplexClient) {
		frame := len(request("").String()) + 16
		for size, large := range map[int]bool{fault.MaxRequestBytes - frame: false, fault.MaxRequestBytes: true} {
			ctx, leave := context.WithCancel(t.Context())
			s := open(ctx)
			require.NoError(t, s.Send(request(string(make([]byte, size)))))
			got, err := s.Recv()
			if large {
				require.ErrorIs(t, err, fault.TooLarge)
			} else {
				require.NoError(t, err)
				require.Len(t, got.GetPayload().GetBody(), size)
			}
			leave()
		}
	})
}

// A call with one answer has it only if it succeeds.
// Who sends one message only is refused by RecvMsg, also when the refusal was there before the message.
func TestStreams_RefusedBeforeTheMessage(t *testing.T) {
	s := newSite(t, false)
	s.probe.duplex = func(duplex) error { return fault.NotReady.New("not today") }
	for name, n := range map[string]*rpc.Network{"memory": s.memory, "tcp": s.tcp} {
		t.Run(name, func(t *testing.T) {
			conn, err := n.Dial("probe")
			require.NoError(t, err)
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true},
				pb.TestService_FullDuplexCall_FullMethodName)
			require.NoError(t, err)
			_, _ = stream.Header() // it has ended
			require.NoError(t, stream.SendMsg(request("late")))
			require.NoError(t, stream.CloseSend())
			require.ErrorIs(t, stream.RecvMsg(&pb.StreamingOutputCallResponse{}), fault.NotReady)
		})
	}
}

func TestStreams_OneAnswer(t *testing.T) {
	s := newSite(t, false)
	var fail error
	s.probe.input = func(in grpc.ClientStreamingServer[pb.StreamingInputCallRequest,
		pb.StreamingInputCallResponse],
	) error {
		n := int32(0)
		for {
			_, err := in.Recv()
			if errors.Is(err, io.EOF) {
				return errors.Join(in.SendMsg(&pb.StreamingInputCallResponse{AggregatedPayloadSize: n}), fail)
			}
			if err != nil {
				return err
			}
			n++
		}
	}
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		for _, fail = range []error{nil, fault.NotReady.New("not today")} {
			call, err := c.StreamingInputCall(t.Context())
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, call.Send(&pb.StreamingInputCallRequest{}))
			}
			got, err := call.CloseAndRecv()
			if fail != nil {
				require.ErrorIs(t, err, fault.NotReady)
				continue
			}
			require.NoError(t, err)
			require.EqualValues(t, 3, got.GetAggregatedPayloadSize())
		}
	})
}

// A stop waits for streams of this process as for others, and ends them when its patience does.
func TestStreams_AStopEndsThem(t *testing.T) {
	for name, over := range map[string]func(*site) *rpc.Network{
		"memory": func(s *site) *rpc.Network { return s.memory }, "tcp": func(s *site) *rpc.Network { return s.tcp },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, false)
			started := make(chan struct{})
			s.probe.duplex = func(s duplex) error {
				close(started)
				<-s.Context().Done()
				return s.Context().Err()
			}
			conn, err := over(s).Dial("probe")
			require.NoError(t, err)
			stream, err := pb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
			require.NoError(t, err)
			<-started
			patience, lose := context.WithCancel(t.Context())
			drained := make(chan struct{})
			go func() {
				rpc.Drain(patience, s.server)
				close(drained)
			}()
			require.Never(t, func() bool { return closed(drained) }, 20*time.Millisecond, time.Millisecond)
			lose()
			_, err = stream.Recv()
			require.Error(t, err)
			<-drained
		})
	}
}
