package rpc

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

// DefaultDeadline is the deadline of a unary call that has none.
const DefaultDeadline = 30 * time.Second

// streamWorkers is how many handler goroutines a server keeps. Calls beyond it
// (watches, long polls) get a goroutine of their own, so it limits nothing. As
// a call waits for its frame, there is one for each of the callers that a server
// has at once: with 64 of them 256 callers spent 4 % on growing stacks.
const streamWorkers = 512

var (
	quickBackoff   = backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond}
	patientBackoff = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}
)

// Config of a server.
type Config struct {
	Auth Authenticator // required
	// Log gets every call at debug, and what is the server's fault at warn.
	// Never a body. nil is silent.
	Log *zap.Logger
	// Metrics gets grpc_server_… of every call and quartet_refusals_total. Several servers
	// may share one. Optional.
	Metrics prometheus.Registerer
	// Ready is called by health checks; nil: always ready.
	Ready func() error
	// Deadline of unary calls that bring none, by default DefaultDeadline.
	Deadline time.Duration
	// Deadlines are exceptions by full method: long polls outlive the default. If Auth is a
	// Holder, calls of these methods and streams also end when their credential does.
	Deadlines map[string]time.Duration
	// Fence refuses calls of a run that does not hold its agent any more (SPEC X12). It is
	// called, after Permit, for every actor with a run. Optional.
	Fence func(ctx context.Context, method string, a Actor) error
	// Permit refuses methods that a role may not call (SPEC X15). It is called for every
	// call except probes and must be fast. Optional.
	Permit func(ctx context.Context, method string, a Actor) error
	// Around wraps the handler of every unary call except probes. Optional.
	Around func(ctx context.Context, method string, req any, handle grpc.UnaryHandler) (any, error)
	// Elsewhere returns the connection to a service that this server does not serve, by its
	// full name, or nil. It must send no credential of its own, because the caller's is
	// forwarded. Without it such calls are UNIMPLEMENTED.
	Elsewhere func(service string) grpc.ClientConnInterface
	// Transport secures TCP; nil is plain text.
	Transport credentials.TransportCredentials
	// Tracer gets the spans of calls. Optional.
	Tracer *tracing.Tracer
	// Quiet are the methods, by full name, that begin no trace: polls and heartbeats.
	// They continue the caller's.
	Quiet map[string]bool
	// Mutual accepts credentials of services over TCP only with a verified certificate.
	Mutual bool
}

// server holds what the interceptors share.
type server struct {
	log       *zap.Logger
	identity  *identity
	meters    *meters
	deadline  time.Duration
	deadlines map[string]time.Duration
	fence     func(ctx context.Context, method string, a Actor) error
	permit    func(ctx context.Context, method string, a Actor) error
	around    func(ctx context.Context, method string, req any, handle grpc.UnaryHandler) (any, error)
	elsewhere func(service string) grpc.ClientConnInterface
	tracer    *tracing.Tracer
	quiet     map[string]bool
}

func (s *server) fenced(ctx context.Context, method string) error {
	a := ActorFrom(ctx)
	if s.permit != nil {
		if err := s.permit(ctx, method, a); err != nil {
			return err
		}
	}
	if s.fence != nil && a.RunID != "" {
		return s.fence(ctx, method, a)
	}
	return nil
}

// NewServer returns a server with all interceptors, health and reflection. The caller
// registers services, and then serves it in memory by Network.Listen, on TCP, or both.
func NewServer(cfg Config) *Server {
	s := &server{
		log: cfg.Log, identity: newIdentity(cfg.Auth, cfg.Mutual), meters: newMeters(cfg.Metrics),
		deadline: cfg.Deadline, deadlines: cfg.Deadlines, fence: cfg.Fence, permit: cfg.Permit, around: cfg.Around,
		tracer: cfg.Tracer, quiet: cfg.Quiet,
	}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.deadline == 0 {
		s.deadline = DefaultDeadline
	}
	opts := []grpc.ServerOption{
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(fault.MaxRequestBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		// Handlers run on goroutines that are kept: their stacks have grown already,
		// which saves copying them on every call.
		grpc.NumStreamWorkers(streamWorkers),
		// Forwarded messages are copied as bytes.
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.WaitForHandlers(true), // Stop returns when all handlers have returned
	}
	if cfg.Elsewhere != nil {
		s.elsewhere = cfg.Elsewhere
		opts = append(opts, grpc.UnknownServiceHandler(s.forward))
	}
	if cfg.Transport != nil {
		opts = append(opts, grpc.Creds(newEdge(cfg.Transport)))
	}
	srv := newLocalServer(grpc.NewServer(opts...), s.unary)
	grpc_health_v1.RegisterHealthServer(srv, &health{ready: cfg.Ready})
	reflection.Register(srv)
	return srv
}

func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	start := time.Now()
	m := s.meters.method(info.FullMethod, "unary")
	m.started.Inc()
	var span trace.Span
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(ctx, info.FullMethod, p)
		}
		if err != nil {
			resp, err = nil, s.refused(ctx, info.FullMethod, err)
		}
		s.finish(ctx, m, err, start)
		if span != nil {
			endSpan(span, err)
		}
	}()
	if !open(info.FullMethod) {
		if ctx, err = s.identity.admit(ctx); err != nil {
			return nil, err
		}
		if s.tracer.On() {
			ctx, span = s.traced(ctx, m, req, start)
		}
		if err = s.fenced(ctx, info.FullMethod); err != nil {
			return nil, err
		}
	}
	if _, has := ctx.Deadline(); !has {
		limit, own := s.deadlines[info.FullMethod]
		if !own {
			limit = s.deadline
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if s.identity.holder != nil {
		if _, long := s.deadlines[info.FullMethod]; long {
			held, release := s.identity.hold(ctx)
			defer release()
			resp, err = s.serve(held, req, info.FullMethod, handle)
			return resp, ended(held, err)
		}
	}
	return s.serve(ctx, req, info.FullMethod, handle)
}

func (s *server) serve(ctx context.Context, req any, method string, handle grpc.UnaryHandler) (any, error) {
	if s.around == nil || open(method) {
		return handle(ctx, req)
	}
	return s.around(ctx, method, req, handle)
}

func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	start := time.Now()
	name := info.FullMethod
	if srv == nil { // callers choose the names of what is elsewhere
		name = "/elsewhere/any"
	}
	m := s.meters.method(name, kindOf(info))
	m.started.Inc()
	ctx := ss.Context()
	var span trace.Span
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(ctx, info.FullMethod, p)
		}
		if err != nil {
			err = s.refused(ctx, info.FullMethod, err)
		}
		s.finish(ctx, m, err, start)
		if span != nil {
			endSpan(span, err)
		}
	}()
	if !open(info.FullMethod) {
		if ctx, err = s.identity.admit(ctx); err != nil {
			return err
		}
		if s.tracer.On() && srv != nil { // what is elsewhere is told of there
			ctx, span = s.continued(ctx, m, start)
		}
		if err = s.fenced(ctx, info.FullMethod); err != nil {
			return err
		}
		held, release := s.identity.hold(ctx)
		defer release()
		return ended(held, handle(srv, &serverStream{ss, held}))
	}
	return handle(srv, &serverStream{ss, ctx})
}

// open reports whether a method needs no credential, which is for probes.
func open(method string) bool {
	return method == grpc_health_v1.Health_Check_FullMethodName || method == grpc_health_v1.Health_Watch_FullMethodName
}

type serverStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // grpc.ServerStream hands its context out by a method
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *server) panicked(ctx context.Context, method string, p any) error {
	e := fault.Internal(fmt.Errorf("panic: %v", p))
	s.log.With(tracing.Fields(ctx)...).Error("panic", zap.String("method", method), zap.Any("panic", p),
		zap.String("error_id", e.Metadata()[fault.ErrorIDKey]), zap.ByteString("stack", debug.Stack()))
	return e
}

// refused returns err as a fault, and logs the cause if it is an error of the server.
func (s *server) refused(ctx context.Context, method string, err error) *fault.Error {
	e := fault.From(err)
	switch e.Code() {
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unavailable, codes.Unimplemented:
		s.log.With(tracing.Fields(ctx)...).Warn("rpc failed", zap.String("method", method), zap.String("code", e.Code().String()),
			zap.String("reason", string(e.Reason())), zap.String("message", e.Message()),
			zap.String("error_id", e.Metadata()[fault.ErrorIDKey]), zap.NamedError("cause", e.Unwrap()))
	}
	return e
}

func (s *server) finish(ctx context.Context, m *method, err error, start time.Time) {
	took := time.Since(start)
	code := codes.OK
	if e, ok := err.(*fault.Error); ok { //nolint:errorlint // refused has just made it one
		code = e.Code()
		s.meters.refusals.WithLabelValues(string(e.Reason())).Inc()
	}
	m.observe(code, took)
	if entry := s.log.Check(zap.DebugLevel, "rpc"); entry != nil {
		entry.Write(append(tracing.Fields(ctx), zap.String("method", m.full), zap.String("code", code.String()), zap.Duration("took", took))...)
	}
}

// Drain stops srv after its running calls have ended, or at once when ctx ends, because
// watches and long polls may not end by themselves.
func Drain(ctx context.Context, srv *Server) {
	done := make(chan struct{})
	go func() {
		srv.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		srv.Stop()
		<-done
	}
}
