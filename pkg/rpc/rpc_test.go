package rpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// probe is a service whose answers the test decides.
type probe struct {
	pb.UnimplementedTestServiceServer
	unary  func(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error)
	stream func(out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error
	duplex func(grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error
	input  func(grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error
}

func (p *probe) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest,
	pb.StreamingOutputCallResponse],
) error {
	return p.duplex(s)
}

func (p *probe) StreamingInputCall(s grpc.ClientStreamingServer[pb.StreamingInputCallRequest,
	pb.StreamingInputCallResponse],
) error {
	return p.input(s)
}

func (p *probe) UnaryCall(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return p.unary(ctx, in)
}

func (p *probe) StreamingOutputCall(_ *pb.StreamingOutputCallRequest,
	out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse],
) error {
	return p.stream(out)
}

// site is a server with both ways in.
type site struct {
	probe   *probe
	keys    *rpc.Keyring
	address string
	server  *rpc.Server
	ready   atomic.Bool
	metrics *prometheus.Registry
	logs    *observer.ObservedLogs
	memory  *rpc.Network
	tcp     *rpc.Network
}

func newSite(t testing.TB, keyless bool) *site {
	core, logs := observer.New(zap.DebugLevel)
	s := &site{
		probe: &probe{}, keys: rpc.NewKeyring([]byte("k"), keyless), metrics: prometheus.NewRegistry(),
		logs: logs,
	}
	s.server = rpc.NewServer(rpc.Config{
		Auth: s.keys, Metrics: s.metrics, Log: zap.New(core),
		Deadlines: map[string]time.Duration{pb.TestService_EmptyCall_FullMethodName: time.Hour},
		Ready: func() error {
			if s.ready.Load() {
				return nil
			}
			return errors.New("catching up")
		},
	})
	pb.RegisterTestServiceServer(s.server, s.probe)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.address = lis.Addr().String()
	go func() { _ = s.server.Serve(lis) }()
	token := s.keys.MintService("caller")
	s.memory = rpc.NewNetwork(rpc.NetworkConfig{Service: "caller", Token: token})
	require.NoError(t, s.memory.Listen("probe", s.server))
	require.ErrorContains(t, s.memory.Listen("probe", s.server), "twice")
	s.tcp = rpc.NewNetwork(rpc.NetworkConfig{Service: "caller", Token: token, Addresses: map[string]string{
		"probe": s.address,
	}})
	t.Cleanup(func() {
		require.NoError(t, s.memory.Close())
		require.NoError(t, s.tcp.Close())
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		rpc.Drain(ctx, s.server)
	})
	return s
}

// both runs body over memory and over TCP: it must not be able to tell.
func (s *site) both(t *testing.T, body func(t *testing.T, c pb.TestServiceClient)) {
	for name, n := range map[string]*rpc.Network{"memory": s.memory, "tcp": s.tcp} {
		t.Run(name, func(t *testing.T) {
			conn, err := n.Dial("probe")
			require.NoError(t, err)
			again, err := n.Dial("probe")
			require.NoError(t, err)
			require.Same(t, conn, again)
			body(t, pb.NewTestServiceClient(conn))
		})
	}
}

// bare connects without any interceptor that attaches credentials.
func (s *site) bare(t testing.TB) pb.TestServiceClient {
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(rpc.FaultsUnary), grpc.WithStreamInterceptor(rpc.FaultsStream))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewTestServiceClient(conn)
}

// byService refuses a call that no service makes.
func byService(ctx context.Context) error {
	if rpc.Via(ctx) == "" {
		return fault.PermissionDenied.New("no service makes the call")
	}
	return nil
}

func TestX4_ActorTravelsWithTheCall(t *testing.T) {
	s := newSite(t, false)
	var got rpc.Actor
	var via string
	s.probe.unary = func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		got, via = rpc.ActorFrom(ctx), rpc.Via(ctx)
		return &pb.SimpleResponse{}, byService(ctx)
	}
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		agent := rpc.Actor{
			Namespace: "ns", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper",
			RunID: "run_1",
		}
		for range 2 { // the second call comes from the caches
			_, err := c.UnaryCall(rpc.WithActor(t.Context(), agent), &pb.SimpleRequest{})
			require.NoError(t, err)
			require.Equal(t, agent, got)
			require.Equal(t, "caller", via)
		}
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
		require.NoError(t, err)
		require.Equal(t, rpc.Actor{Namespace: "default", Principal: "caller", Role: rpc.RoleService}, got)
	})
}

func TestX4_ActorHeaderNeedsAServiceCredential(t *testing.T) {
	s := newSite(t, false)
	var got rpc.Actor
	s.probe.unary = func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		got = rpc.ActorFrom(ctx)
		return &pb.SimpleResponse{}, byService(ctx)
	}
	c := s.bare(t)
	forged := "eyJucyI6ImRlZmF1bHQiLCJzdWIiOiJ4Iiwicm9sZSI6ImFkbWluIn0" // {"ns":"default","sub":"x","role":"admin"}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+s.keys.MintRun("ns", "keeper",
		"run_1"), "quartet-actor", forged)
	_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
	require.ErrorIs(t, err, fault.PermissionDenied)
	require.Equal(t, rpc.RoleAgent, got.Role)

	ctx = metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+s.keys.MintService("x"),
		"quartet-actor", "junk")
	_, err = c.UnaryCall(ctx, &pb.SimpleRequest{})
	require.ErrorIs(t, err, fault.Unauthenticated)
}

func TestWrongCredentialNeverFallsBack(t *testing.T) {
	s := newSite(t, true)
	s.probe.unary = func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		return &pb.SimpleResponse{Username: rpc.ActorFrom(ctx).Role}, nil
	}
	s.probe.stream = func(grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error { return nil }
	c := s.bare(t)
	resp, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
	require.NoError(t, err)
	require.Equal(t, rpc.RoleInstallationAdmin, resp.GetUsername())
	good := s.keys.MintRun("ns", "a", "r")
	foreign := rpc.NewKeyring([]byte("other"), false).MintRun("ns", "a", "r")
	for _, header := range []string{
		"", "Bearer", "Bearer ", "Basic abc", "Bearer x", "Bearer " + foreign,
		"Bearer " + good + "x", "Bearer qsv_" + good[4:],
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", header)
		_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
		require.ErrorIs(t, err, fault.Unauthenticated, header)
		stream, err := c.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorIs(t, err, fault.Unauthenticated, header)
	}
	resp, err = c.UnaryCall(metadata.AppendToOutgoingContext(t.Context(), "authorization", "bearer "+good),
		&pb.SimpleRequest{})
	require.NoError(t, err)
	require.Equal(t, rpc.RoleAgent, resp.GetUsername())
}

func TestX5_FaultsCrossBothWays(t *testing.T) {
	s := newSite(t, false)
	s.probe.unary = func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		return nil, fault.WorkItemCompleted.New("wi_1 is completed", "work_item_id", "wi_1")
	}
	s.probe.stream = func(out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
		if err := out.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
		return fault.CursorOutOfRange.New("too old")
	}
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
		require.ErrorIs(t, err, fault.WorkItemCompleted)
		require.Equal(t, "wi_1", fault.From(err).Metadata()["work_item_id"])
		stream, err := c.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorIs(t, err, fault.CursorOutOfRange)
		_, err = c.EmptyCall(t.Context(), &pb.Empty{})
		require.ErrorIs(t, err, fault.Unimplemented)
	})
	s.probe.stream = func(grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error { return nil }
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		stream, err := c.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, io.EOF, err)
	})
}

func TestX5_PanicsAndInternalTextStayInside(t *testing.T) {
	s := newSite(t, false)
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		for _, breakage := range []func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error){
			func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) { panic("private words") },
			func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				return nil, errors.New("private words")
			},
		} {
			s.logs.TakeAll()
			s.probe.unary = breakage
			_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
			require.ErrorIs(t, err, fault.InternalError)
			require.NotContains(t, err.Error(), "private")
			id := fault.From(err).Metadata()[fault.ErrorIDKey]
			require.NotEmpty(t, id)
			failed := s.logs.FilterMessage("rpc failed").All()
			require.Len(t, failed, 1)
			require.Equal(t, id, failed[0].ContextMap()["error_id"])
			require.Contains(t, failed[0].ContextMap()["cause"], "private words")
		}
		s.probe.stream = func(grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error { panic("private") }
		stream, err := c.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.ErrorIs(t, err, fault.InternalError)
	})
}

func TestDeadlines(t *testing.T) {
	s := newSite(t, false)
	var left time.Duration
	s.probe.unary = func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		at, ok := ctx.Deadline()
		require.True(t, ok)
		left = time.Until(at)
		return &pb.SimpleResponse{}, nil
	}
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
		require.NoError(t, err)
		require.InDelta(t, rpc.DefaultDeadline.Seconds(), left.Seconds(), 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err = c.UnaryCall(ctx, &pb.SimpleRequest{})
		require.NoError(t, err)
		require.Greater(t, left, 10*time.Minute)
	})
	s.probe.stream = func(out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
		if _, has := out.Context().Deadline(); has {
			return errors.New("a stream has no deadline of ours")
		}
		return byService(out.Context())
	}
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		stream, err := c.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, io.EOF, err)
	})
}

func TestX8_OversizeRequestIsTooLarge(t *testing.T) {
	s := newSite(t, false)
	s.probe.unary = func(_ context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		return &pb.SimpleResponse{Payload: &pb.Payload{Body: make([]byte, 5<<20)}}, nil
	}
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		_, err := c.UnaryCall(t.Context(),
			&pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, fault.MaxRequestBytes+1)}})
		require.ErrorIs(t, err, fault.TooLarge)
		_, err = c.UnaryCall(t.Context(),
			&pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, fault.MaxRequestBytes-100)}})
		require.NoError(t, err)
	})
}

func TestX2_ReplayedHeader(t *testing.T) {
	s := newSite(t, false)
	s.probe.unary = func(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		if in.GetFillUsername() {
			rpc.Replayed(ctx)
		}
		return &pb.SimpleResponse{}, nil
	}
	rpc.Replayed(t.Context()) // outside of a call: nothing happens
	s.both(t, func(t *testing.T, c pb.TestServiceClient) {
		for _, replay := range []bool{true, false} {
			var header metadata.MD
			_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{FillUsername: replay}, grpc.Header(&header))
			require.NoError(t, err)
			require.Equal(t, replay, rpc.WasReplayed(header))
		}
	})
}

func TestX15_Roles(t *testing.T) {
	own := rpc.Actor{Role: rpc.RoleAgent, AgentID: "a"}
	require.NoError(t, rpc.CheckAgent(own, "a"))
	require.ErrorIs(t, rpc.CheckAgent(own, "b"), fault.PermissionDenied)
	require.NoError(t, rpc.CheckAgent(rpc.Actor{Role: rpc.RoleOperator}, "b"))
}

func TestHealthFollowsReadinessAndNeedsNoCredential(t *testing.T) {
	s := newSite(t, false)
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	c := grpc_health_v1.NewHealthClient(conn)
	watch, err := c.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	first, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, first.GetStatus())
	s.ready.Store(true)
	next, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, next.GetStatus())
	now, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "work"})
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, now.GetStatus())
}

func TestMetrics(t *testing.T) {
	s := newSite(t, false)
	n := 0
	s.probe.unary = func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		if n++; n%2 == 0 {
			return nil, fault.NotFound.New("no")
		}
		return &pb.SimpleResponse{}, nil
	}
	// Two servers may share a registry.
	rpc.NewServer(rpc.Config{Auth: s.keys, Metrics: s.metrics}).Stop()
	conn, err := s.memory.Dial("probe")
	require.NoError(t, err)
	for range 5 {
		_, _ = pb.NewTestServiceClient(conn).UnaryCall(t.Context(), &pb.SimpleRequest{})
	}
	families, err := s.metrics.Gather()
	require.NoError(t, err)
	counts, seconds := map[string]float64{}, uint64(0)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "quartet_refusals_total" {
				require.Equal(t, "NOT_FOUND", labels["reason"])
				require.InDelta(t, 2, m.GetCounter().GetValue(), 0)
				continue
			}
			require.Equal(t, "grpc.testing.TestService", labels["grpc_service"])
			require.Equal(t, "UnaryCall", labels["grpc_method"])
			require.Equal(t, "unary", labels["grpc_type"])
			switch f.GetName() {
			case "grpc_server_handled_total":
				counts[labels["grpc_code"]] = m.GetCounter().GetValue()
			case "grpc_server_handling_seconds":
				seconds += m.GetHistogram().GetSampleCount()
			default:
				require.Equal(t, "grpc_server_started_total", f.GetName())
				require.InDelta(t, 5, m.GetCounter().GetValue(), 0)
			}
		}
	}
	require.Equal(t, map[string]float64{"OK": 3, "NotFound": 2}, counts)
	require.EqualValues(t, 5, seconds)
}

func TestAServiceMayBeServedAfterItWasDialled(t *testing.T) {
	n := rpc.NewNetwork(rpc.NetworkConfig{Service: "caller"})
	conn, err := n.Dial("late")
	require.NoError(t, err)
	c := grpc_health_v1.NewHealthClient(conn)
	_, err = c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.ErrorIs(t, err, fault.NotReady)
	require.ErrorContains(t, err, "late")
	srv := rpc.NewServer(rpc.Config{Auth: rpc.NewKeyring(nil, true)})
	require.NoError(t, n.Listen("late", srv))
	_, err = c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	rpc.Drain(t.Context(), srv)
	require.NoError(t, n.Close())
	require.NoError(t, n.Close())
	_, err = n.Dial("late")
	require.Error(t, err)
	require.Error(t, n.Listen("late", srv))
}

// BenchmarkUnary is the whole way with all interceptors, within the process
// and over TCP; Bare is grpc alone over TCP, for comparison. Busy has 64
// callers a core, Alone one.
func BenchmarkUnary(b *testing.B) {
	keys := rpc.NewKeyring([]byte("k"), false)
	answer := &probe{unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
		return &pb.SimpleResponse{}, nil
	}}
	srv, bare := rpc.NewServer(rpc.Config{Auth: keys, Metrics: prometheus.NewRegistry()}), grpc.NewServer()
	address := map[grpc.ServiceRegistrar]string{}
	for _, s := range []interface {
		grpc.ServiceRegistrar
		Serve(lis net.Listener) error
		Stop()
	}{srv, bare} {
		pb.RegisterTestServiceServer(s, answer)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		address[s] = lis.Addr().String()
		go func() { _ = s.Serve(lis) }()
		defer s.Stop()
	}
	for name, cfg := range map[string]rpc.NetworkConfig{
		"Near": {Service: "bench", Token: keys.MintService("bench")},
		"TCP": {Service: "bench", Token: keys.MintService("bench"), Addresses: map[string]string{
			"probe": address[srv],
		}},
		"Bare": {Service: "bench", Addresses: map[string]string{"probe": address[bare]}},
	} {
		n := rpc.NewNetwork(cfg)
		if name == "Near" {
			require.NoError(b, n.Listen("probe", srv))
		}
		conn, err := n.Dial("probe")
		require.NoError(b, err)
		c := pb.NewTestServiceClient(conn)
		ctx := rpc.WithActor(b.Context(), rpc.Actor{Namespace: "ns", Principal: "p", Role: rpc.RoleOperator})
		call := func(b *testing.B) bool {
			_, err := c.UnaryCall(ctx, &pb.SimpleRequest{FillUsername: true})
			if err != nil {
				b.Error(err)
			}
			return err == nil
		}
		b.Run(name+"/Busy", func(b *testing.B) {
			b.SetParallelism(64)
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() && call(b) {
				}
			})
		})
		b.Run(name+"/Alone", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() && call(b) {
			}
		})
		require.NoError(b, n.Close())
	}
}
