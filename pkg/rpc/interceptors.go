package rpc

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

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

	// Admit the caller, unless arrive did.
	if !needsNoCredential(info.FullMethod) {
		if !arrived(ctx) {
			// ctx stays that of the call after an error, because the deferred function uses it.
			admitted, err := s.admit(ctx, info.FullMethod)
			if err != nil {
				return nil, err
			}
			ctx = admitted
		}
		if s.cfg.Tracer.On() {
			ctx, span = s.traced(ctx, m, req, start)
		}
		if err := s.cfg.Admission.Fence(ctx, info.FullMethod, ActorFrom(ctx)); err != nil {
			return nil, err
		}
	}
	if err := s.checkLimits(ctx, info.FullMethod, req); err != nil {
		return nil, err
	}
	if err := knownEnums(req); err != nil {
		return nil, err
	}

	// Run the handler until the deadline, and a long poll only while its credential is valid.
	limit, longPoll := s.cfg.Deadlines[info.FullMethod]
	if _, hasDeadline := ctx.Deadline(); !hasDeadline {
		if !longPoll {
			limit = s.cfg.Deadline
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

// serve runs the handler of a unary call, or refuses the call, as Admission.Unary says.
func (s *server) serve(ctx context.Context, req any, method string, handle grpc.UnaryHandler) (any, error) {
	if needsNoCredential(method) {
		return handle(ctx, req)
	}
	return s.cfg.Admission.Unary(ctx, method, req, handle)
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

	// Admit the caller. ctx stays that of the call after an error, because the deferred function uses it.
	admitted, err := s.admit(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	ctx = admitted
	if s.cfg.Tracer.On() && !forwarded { // the process that serves a forwarded stream records its span
		ctx, span = s.continued(ctx, m, start)
	}
	if err := s.cfg.Admission.Fence(ctx, info.FullMethod, ActorFrom(ctx)); err != nil {
		return err
	}

	// Take a turn, and count the stream, unless the process to which it is forwarded does.
	if !forwarded {
		turn, err := s.enter(ctx, true)
		if err != nil {
			return err
		}
		defer turn.Leave()
		release, err := s.cfg.Admission.Stream(ActorFrom(ctx))
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

// checkLimits returns an error if a message is beyond what the key of the caller is limited to. It passes messages that
// services send.
func (s *server) checkLimits(ctx context.Context, method string, req any) error {
	if Via(ctx) != "" {
		return nil
	}
	return s.cfg.Admission.Within(ActorFrom(ctx), method, req)
}

// needsNoCredential reports whether a method needs no credential. Only health checks need none.
func needsNoCredential(method string) bool {
	return method == grpc_health_v1.Health_Check_FullMethodName || method == grpc_health_v1.Health_Watch_FullMethodName
}

// panicked returns INTERNAL for a panic of a handler, and logs it with its stack.
func (s *server) panicked(ctx context.Context, method string, p any) error {
	e := fault.Internal(fmt.Errorf("panic: %v", p))
	s.cfg.Log.With(tracing.Fields(ctx)...).Error("panic", zap.String("method", method), zap.Any("panic", p),
		zap.String("error_id", e.Metadata()[fault.ErrorIDKey]), zap.ByteString("stack", debug.Stack()))
	return e
}

// refused returns err as a fault, and logs the cause if it is an error of the server.
func (s *server) refused(ctx context.Context, method string, err error) *fault.Error {
	e := fault.From(err)
	switch e.Code() {
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unavailable, codes.Unimplemented:
		s.cfg.Log.With(tracing.Fields(ctx)...).Warn("rpc failed", zap.String("method", method),
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
	if entry := s.cfg.Log.Check(zap.DebugLevel, "rpc"); entry != nil {
		entry.Write(append(tracing.Fields(ctx), zap.String("method", m.full), zap.String("code", code.String()),
			zap.Duration("took", took))...)
	}
}
