package rpc

import (
	"cmp"
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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

// DefaultDeadline is the deadline of a unary call that has none.
const DefaultDeadline = 30 * time.Second

// defaultSendTime is the default of Config.SendTime.
const defaultSendTime = time.Minute

// streamWorkers is how many handler goroutines a server keeps. Calls beyond it
// (watches, long polls) get a goroutine of their own, so it limits nothing. As
// a call waits for its frame, there is one for each of the callers that a server
// has at once: with 64 of them 256 callers spent 4 % on growing stacks.
const streamWorkers = 512

var (
	quickBackoff = backoff.Config{
		BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: 250 * time.Millisecond,
	}
	patientBackoff = backoff.Config{
		BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: 5 * time.Second,
	}
)

// Config of a server.
type Config struct {
	Auth Authenticator // required
	// Log gets every call at level debug and the errors of the server at level warn, never
	// a message's contents. Optional.
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
	// Stream counts a stream of an actor until release is called, or refuses it. It is not called for
	// probes and for streams that are forwarded. Optional.
	Stream func(a Actor) (release func(), err error)
	// Within refuses a request that is beyond what the actor's key is limited to. It is called with each
	// message of a call that no service makes. Optional.
	Within func(a Actor, method string, req any) error
	// Enter waits until a call or stream of an actor that came over a connection may run; the turn ends with
	// the call, and soon after the beginning of streams and methods in Deadlines. Optional.
	Enter func(ctx context.Context, a Actor) (*admission.Turn, error)
	// Step waits a little until a stream of a namespace may handle one more message of its caller; the turn
	// ends when it receives the next one, or soon. Optional.
	Step func(ctx context.Context, namespace string) *admission.Turn
	// ReceiveTime is how long the only message of a caller's side may take to arrive, by default
	// defaultReceiveTime.
	ReceiveTime time.Duration
	// SendTime is how long a message of a stream may wait for the caller to receive it, by default
	// defaultSendTime. After that the call is ended with OVERLOADED.
	SendTime time.Duration
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
	log                   *zap.Logger
	identity              *identity
	meters                *meters
	deadline              time.Duration
	deadlines             map[string]time.Duration
	fence                 func(ctx context.Context, method string, a Actor) error
	permit                func(ctx context.Context, method string, a Actor) error
	around                func(ctx context.Context, method string, req any, handle grpc.UnaryHandler) (any, error)
	streams               func(a Actor) (release func(), err error)
	enter                 func(ctx context.Context, a Actor) (*admission.Turn, error)
	step                  func(ctx context.Context, namespace string) *admission.Turn
	within                func(a Actor, method string, req any) error
	receiveTime, sendTime time.Duration
	elsewhere             func(service string) grpc.ClientConnInterface
	tracer                *tracing.Tracer
	quiet                 map[string]bool
}

// checkLimits returns an error if a request is beyond what the key of the caller is limited to.
func (s *server) checkLimits(ctx context.Context, method string, req any) error {
	if s.within == nil || needsNoCredential(method) || Via(ctx) != "" {
		return nil
	}
	return s.within(ActorFrom(ctx), method, req)
}

// checkFence returns an error if the caller is a run that does not hold its agent any more.
func (s *server) checkFence(ctx context.Context, method string) error {
	if a := ActorFrom(ctx); s.fence != nil && a.RunID != "" {
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
		streams: cfg.Stream, enter: cfg.Enter, step: cfg.Step, within: cfg.Within,
		tracer: cfg.Tracer, quiet: cfg.Quiet,
	}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	s.sendTime = cmp.Or(cfg.SendTime, defaultSendTime)
	s.receiveTime = cmp.Or(cfg.ReceiveTime, defaultReceiveTime)
	s.deadline = cmp.Or(s.deadline, DefaultDeadline)

	opts := []grpc.ServerOption{
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(fault.MaxRequestBytes),
		grpc.MaxHeaderListSize(headerMax),
		grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.InTapHandle(tapUnproven),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             5 * time.Second,
			PermitWithoutStream: true,
		}),
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
	transport := cfg.Transport
	if transport == nil {
		transport = plain{insecure.NewCredentials()}
	}
	opts = append(opts, grpc.Creds(newEdge(transport)))
	srv := newLocalServer(grpc.NewServer(opts...), s)
	grpc_health_v1.RegisterHealthServer(srv, &health{ready: cfg.Ready})
	reflection.Register(srv)
	return srv
}

// unary is the interceptor of unary calls. It admits the caller, unless arrive did, bounds the call's time, and turns
// every error, and a panic, into a *fault.Error.
func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any,
	err error,
) {
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

	// Admit the caller.
	if !needsNoCredential(info.FullMethod) {
		if !arrived(ctx) {
			// The context of an error is that of the call.
			admitted, err := s.admit(ctx, info.FullMethod)
			if err != nil {
				return nil, err
			}
			ctx = admitted
		}
		if s.tracer.On() {
			ctx, span = s.traced(ctx, m, req, start)
		}
		if err = s.checkFence(ctx, info.FullMethod); err != nil {
			return nil, err
		}
	}
	if err = s.checkLimits(ctx, info.FullMethod, req); err != nil {
		return nil, err
	}

	// Run the handler until the deadline, and a long poll only while its credential is valid.
	limit, longPoll := s.deadlines[info.FullMethod]
	if _, hasDeadline := ctx.Deadline(); !hasDeadline {
		if !longPoll {
			limit = s.deadline
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if longPoll && s.identity.holder != nil {
		held, release := s.identity.hold(ctx)
		defer release()
		resp, err = s.serve(held, req, info.FullMethod, handle)
		return resp, ended(held, err)
	}
	return s.serve(ctx, req, info.FullMethod, handle)
}

// serve runs the handler of a unary call, within Config.Around.
func (s *server) serve(ctx context.Context, req any, method string, handle grpc.UnaryHandler) (any, error) {
	if s.around == nil || needsNoCredential(method) {
		return handle(ctx, req)
	}
	return s.around(ctx, method, req, handle)
}

// stream is the interceptor of streams, those that are forwarded to another process too; srv is nil for these. It does
// for a stream what unary does for a call, except that a stream has no deadline. It counts the stream of an actor.
func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (
	err error,
) {
	start := time.Now()
	name := info.FullMethod
	forwarded := srv == nil
	if forwarded { // a name that the caller chose must not become a label of a metric
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
	if needsNoCredential(info.FullMethod) {
		return handle(srv, s.newServerStream(ctx, ss, info))
	}

	// Admit the caller. The context of an error is that of the call.
	admitted, err := s.admit(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	ctx = admitted
	if s.tracer.On() && !forwarded { // the process that serves a forwarded stream records its span
		ctx, span = s.continued(ctx, m, start)
	}
	if err = s.checkFence(ctx, info.FullMethod); err != nil {
		return err
	}

	// Take a turn, and count the stream, unless the process to which it is forwarded does.
	if !forwarded {
		turn, err := s.awaitShortTurn(ctx)
		if err != nil {
			return err
		}
		defer turn.Leave()
	}
	if s.streams != nil && !forwarded {
		release, err := s.streams(ActorFrom(ctx))
		if err != nil {
			return err
		}
		defer release()
	}

	// Run the handler while the credential is valid.
	held, release := s.identity.hold(ctx)
	defer release()
	return ended(held, handle(srv, s.newServerStream(held, ss, info)))
}

// needsNoCredential reports whether a method needs no credential. Only health checks need none.
func needsNoCredential(method string) bool {
	return method == grpc_health_v1.Health_Check_FullMethodName || method == grpc_health_v1.Health_Watch_FullMethodName
}

type serverStream struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // grpc.ServerStream hands its context out by a method
	server *server
	method string // its full name
	// single says that the stream has one message of the caller, which must arrive in time.
	single bool
	// turn is that of the last message of the caller if single is false. Only RecvMsg uses it.
	turn *admission.Turn
}

func (s *server) newServerStream(ctx context.Context, ss grpc.ServerStream, info *grpc.StreamServerInfo) *serverStream {
	return &serverStream{ServerStream: ss, ctx: ctx, server: s, method: info.FullMethod, single: !info.IsClientStream}
}

func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream. It refuses a message that is beyond what the caller's key is limited to, and
// waits a little for its turn if the stream has many.
func (s *serverStream) RecvMsg(m any) error {
	receive := s.ServerStream.RecvMsg
	if s.single {
		receive = func(m any) error { return s.server.receive(s.ServerStream, s.method, m) }
	}
	s.turn.Leave()
	if err := receive(m); err != nil {
		return err
	}
	if !s.single && s.server.step != nil {
		s.turn = s.server.step(s.ctx, ActorFrom(s.ctx).Namespace)
		s.turn.LeaveSoon()
	}
	return s.server.checkLimits(s.ctx, s.method, m)
}

// SendMsg implements grpc.ServerStream. It ends the call if the caller does not receive within sendTime, so
// that what a slow caller has not read is held for that long at most.
func (s *serverStream) SendMsg(m any) error {
	// Only the stream of the transport can be ended from another goroutine than the handler's.
	stream, ok := grpc.ServerTransportStreamFromContext(s.ServerStream.Context()).(interface {
		WriteStatus(st *status.Status) error
	})
	if !ok {
		return s.ServerStream.SendMsg(m)
	}
	limit := s.server.sendTime
	late := time.AfterFunc(limit, func() { _ = stream.WriteStatus(readTooSlowly(limit).GRPCStatus()) })
	err := s.ServerStream.SendMsg(m)
	if !late.Stop() && err != nil {
		return readTooSlowly(limit)
	}
	return err
}

// Abort ends a stream with an error, also while its handler sends. ctx is that of the stream; streams in memory
// are not ended.
func Abort(ctx context.Context, err error) {
	// Only the stream of the transport can be ended from another goroutine than the handler's.
	if stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface {
		WriteStatus(st *status.Status) error
	}); ok {
		_ = stream.WriteStatus(fault.From(err).GRPCStatus())
	}
}

// readTooSlowly returns the error that ends a stream whose caller has received nothing for d.
func readTooSlowly(d time.Duration) *fault.Error {
	return fault.Overloaded.New("the stream was read too slowly: nothing was received for "+d.String()+
		"; open it again from where it was read to", "bound", "reader")
}

// panicked returns INTERNAL for a panic of a handler, and logs it with its stack.
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
		s.log.With(tracing.Fields(ctx)...).Warn("rpc failed", zap.String("method", method),
			zap.String("code", e.Code().String()),
			zap.String("reason", string(e.Reason())), zap.String("message", e.Message()),
			zap.String("error_id", e.Metadata()[fault.ErrorIDKey]), zap.NamedError("cause", e.Unwrap()))
	}
	return e
}

// finish counts and logs a call that has ended with err, which is nil or a *fault.Error.
func (s *server) finish(ctx context.Context, m *method, err error, start time.Time) {
	took := time.Since(start)
	code := codes.OK
	if e, ok := err.(*fault.Error); ok { //nolint:errorlint // refused has just made it one
		code = e.Code()
		s.meters.refusals.WithLabelValues(string(e.Reason())).Inc()
	}
	m.observe(code, took)
	if entry := s.log.Check(zap.DebugLevel, "rpc"); entry != nil {
		entry.Write(append(tracing.Fields(ctx), zap.String("method", m.full), zap.String("code", code.String()),
			zap.Duration("took", took))...)
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
