package rpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	"quartet/pkg/rpc"
)

// door returns a client of a server that serves nothing itself and forwards all calls to target.
func door(t *testing.T, keys *rpc.Keyring, metrics *prometheus.Registry,
	target func(service string) grpc.ClientConnInterface,
) (pb.TestServiceClient, string) {
	return doorWith(t, rpc.Config{Auth: keys, Metrics: metrics, Elsewhere: target})
}

func doorWith(t *testing.T, cfg rpc.Config) (pb.TestServiceClient, string) {
	server := rpc.NewServer(cfg)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(rpc.FaultsUnary), grpc.WithStreamInterceptor(rpc.FaultsStream))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		require.NoError(t, <-served)
	})
	return pb.NewTestServiceClient(conn), lis.Addr().String()
}

func (s *site) door(t *testing.T) pb.TestServiceClient {
	n := rpc.NewNetwork(rpc.NetworkConfig{
		Service: "door", Token: s.keys.MintService("door"),
		Addresses: map[string]string{"probe": s.address},
	})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	c, _ := door(t, s.keys, prometheus.NewRegistry(), func(service string) grpc.ClientConnInterface {
		if service != pb.TestService_ServiceDesc.ServiceName {
			return nil
		}
		return n.Bare("probe")
	})
	return c
}

// A call through a process that does not serve it is the caller's own: its
// credential, metadata, deadline, answer and error are what they would be at once.
func TestForwardedCallsAreTheCallers(t *testing.T) {
	s := newSite(t, false)
	c := s.door(t)
	agent := rpc.Actor{Namespace: "ns", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper"}
	var got rpc.Actor
	var via, kept string
	var deadline time.Time
	s.probe.unary = func(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		got, via = rpc.ActorFrom(ctx), rpc.Via(ctx)
		deadline, _ = ctx.Deadline()
		md, _ := metadata.FromIncomingContext(ctx)
		kept = strings.Join(md.Get("x-mine"), ",")
		if err := grpc.SetHeader(ctx, metadata.Pairs("x-header", "h")); err != nil {
			return nil, err
		}
		if err := grpc.SetTrailer(ctx, metadata.Pairs("x-trailer", "t")); err != nil {
			return nil, err
		}
		if in.GetResponseSize() < 0 {
			return nil, fault.NotFound.New("no such thing", "thing", "x")
		}
		return &pb.SimpleResponse{Payload: in.GetPayload()}, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	until, _ := ctx.Deadline()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.keys.Mint(agent), "x-mine", "1", "x-mine",
		"2")
	var header, trailer metadata.MD
	body := []byte(strings.Repeat("0123456789", 100_000))
	resp, err := c.UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: body}}, grpc.Header(&header),
		grpc.Trailer(&trailer))
	require.NoError(t, err)
	require.Equal(t, body, resp.GetPayload().GetBody())
	require.Equal(t, agent, got)
	require.Empty(t, via, "it is no service's call")
	require.Equal(t, "1,2", kept)
	require.WithinDuration(t, until, deadline, time.Second)
	require.Equal(t, []string{"h"}, header.Get("x-header"))
	require.Equal(t, []string{"t"}, trailer.Get("x-trailer"))

	_, err = c.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: -1})
	require.ErrorIs(t, err, fault.NotFound)
	require.Equal(t, "x", fault.From(err).Metadata()["thing"])

	_, err = c.UnaryCall(t.Context(), &pb.SimpleRequest{})
	require.Equal(t, codes.Unauthenticated, fault.From(err).Code(),
		"who has no credential comes no further than the door")
}

// limitedKey authenticates one key, which is limited to one agent.
type limitedKey struct{ rpc.Actor }

func (k limitedKey) Authenticate(context.Context, string) (rpc.Actor, error) { return k.Actor, nil }

// namesAgent refuses each message whose payload does not name an agent of the key, also one that it cannot read.
type namesAgent struct{ rpc.Unlimited }

func (namesAgent) Within(a rpc.Actor, _ string, req any) error {
	if m, ok := req.(interface{ GetPayload() *pb.Payload }); ok && a.Agents.Has(string(m.GetPayload().GetBody())) {
		return nil
	}
	return fault.PermissionDenied.New("beyond the limits of the key")
}

// TestI17_ForwardedMessagesAreCheckedWhereTheyAreDecoded: a process that forwards a call cannot read which agent its
// messages name. The process that serves it checks each of them by the limits of the caller's key.
func TestI17_ForwardedMessagesAreCheckedWhereTheyAreDecoded(t *testing.T) {
	auth := limitedKey{rpc.Actor{Namespace: "ns", Principal: "ci", Role: rpc.RoleOperator, Agents: "one"}}
	target := rpc.NewServer(rpc.Config{Auth: auth, Admission: namesAgent{}})
	pb.RegisterTestServiceServer(target, &probe{
		unary: func(_ context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			return &pb.SimpleResponse{Payload: in.GetPayload()}, nil
		},
		duplex: echo{}.FullDuplexCall,
	})
	lis := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	go func() { _ = target.Serve(lis) }() // ends with Stop
	t.Cleanup(target.Stop)
	n := rpc.NewNetwork(rpc.NetworkConfig{Addresses: map[string]string{"probe": lis.Addr().String()}})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	c, _ := doorWith(t, rpc.Config{
		Auth: auth, Admission: namesAgent{}, Elsewhere: func(string) grpc.ClientConnInterface { return n.Bare("probe") },
	})
	named := func(agent string) *pb.Payload { return &pb.Payload{Body: []byte(agent)} }

	resp := must.Value(c.UnaryCall(t.Context(), &pb.SimpleRequest{Payload: named("one")}))(t)
	require.Equal(t, "one", string(resp.GetPayload().GetBody()))
	for _, agent := range []string{"two", ""} {
		request := &pb.SimpleRequest{Payload: named(agent)}
		must.Refuse(c.UnaryCall(t.Context(), request))(t, fault.PermissionDenied, agent)
	}

	s := must.Value(c.FullDuplexCall(t.Context()))(t)
	require.NoError(t, s.Send(&pb.StreamingOutputCallRequest{Payload: named("one")}))
	require.Equal(t, "one", string(must.Value(s.Recv())(t).GetPayload().GetBody()))
	require.NoError(t, s.Send(&pb.StreamingOutputCallRequest{Payload: named("two")}))
	must.Refuse(s.Recv())(t, fault.PermissionDenied, "the second message is checked like the first")
}

func TestForwardedStreams(t *testing.T) {
	s := newSite(t, true)
	c := s.door(t)
	gone := make(chan struct{})
	s.probe.stream = func(out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
		for range 3 {
			if err := out.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: []byte("x")}}); err != nil {
				return err
			}
		}
		return fault.NotReady.New("no more")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, err := c.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{})
	require.NoError(t, err)
	for range 3 {
		m, err := in.Recv()
		require.NoError(t, err)
		require.Equal(t, "x", string(m.GetPayload().GetBody()))
	}
	_, err = in.Recv()
	require.ErrorIs(t, err, fault.NotReady)

	// Who goes away takes the call with him.
	s.probe.stream = func(out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
		defer close(gone)
		if err := out.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
		<-out.Context().Done()
		return out.Context().Err()
	}
	aside, leave := context.WithCancel(ctx)
	in, err = c.StreamingOutputCall(aside, &pb.StreamingOutputCallRequest{})
	require.NoError(t, err)
	_, err = in.Recv()
	require.NoError(t, err)
	leave()
	select {
	case <-gone:
	case <-ctx.Done():
		require.FailNow(t, "the call went on without its caller")
	}
}

// echo answers both ways at once.
type echo struct {
	pb.UnimplementedTestServiceServer
}

func (echo) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest,
	pb.StreamingOutputCallResponse],
) error {
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: m.GetPayload()}); err != nil {
			return err
		}
	}
}

func TestForwardedConversations(t *testing.T) {
	keys := rpc.NewKeyring([]byte("k"), true)
	target := rpc.NewServer(rpc.Config{Auth: keys})
	pb.RegisterTestServiceServer(target, echo{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = target.Serve(lis) }() // ends with Stop
	t.Cleanup(target.Stop)
	n := rpc.NewNetwork(rpc.NetworkConfig{Addresses: map[string]string{"probe": lis.Addr().String()}})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	c, _ := door(t, keys, prometheus.NewRegistry(), func(string) grpc.ClientConnInterface { return n.Bare("probe") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := c.FullDuplexCall(ctx)
	require.NoError(t, err)
	for range 20 {
		require.NoError(t, s.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: []byte("hi")}}))
		m, err := s.Recv()
		require.NoError(t, err)
		require.Equal(t, "hi", string(m.GetPayload().GetBody()))
	}
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)

	// A message that the door refuses ends the call with the reason, and not as one that the caller cancelled.
	s = must.Value(c.FullDuplexCall(ctx))(t)
	large := &pb.Payload{Body: make([]byte, fault.MaxRequestBytes+1)}
	require.NoError(t, s.Send(&pb.StreamingOutputCallRequest{Payload: large}))
	must.Refuse(s.Recv())(t, fault.TooLarge)
}

// A server that forwards to itself, a service that no process serves, and names that callers invented.
func TestForwardingEnds(t *testing.T) {
	keys := rpc.NewKeyring([]byte("k"), true)
	metrics := prometheus.NewRegistry()
	var n *rpc.Network
	c, address := door(t, keys, metrics, func(service string) grpc.ClientConnInterface {
		if service != pb.TestService_ServiceDesc.ServiceName {
			return nil
		}
		return n.Bare("probe")
	})
	n = rpc.NewNetwork(rpc.NetworkConfig{Addresses: map[string]string{"probe": address}})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
	require.ErrorIs(t, err, fault.Unimplemented)
	require.ErrorContains(t, err, "fix its addresses")
	_, err = pb.NewReconnectServiceClient(n.Bare("probe")).Stop(ctx, &pb.Empty{})
	require.Equal(t, codes.Unimplemented, fault.From(err).Code())
	require.Nil(t, n.Bare("nobody"))

	// A service that is away is named.
	n2 := rpc.NewNetwork(rpc.NetworkConfig{Addresses: map[string]string{"probe": "127.0.0.1:1"}})
	t.Cleanup(func() { require.NoError(t, n2.Close()) })
	c, _ = door(t, keys, prometheus.NewRegistry(), func(string) grpc.ClientConnInterface { return n2.Bare("probe") })
	_, err = c.UnaryCall(ctx, &pb.SimpleRequest{})
	require.ErrorIs(t, err, fault.NotReady)
	require.ErrorContains(t, err, "grpc.testing.TestService cannot be reached from here")

	families, err := metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				require.NotContains(t, l.GetValue(), "grpc.testing", "callers must not make series")
			}
		}
	}
}
