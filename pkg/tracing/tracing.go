package tracing

import (
	"context"
	"encoding/hex"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
)

// Header is the name of the header of W3C Trace Context, and of the same field in gRPC
// metadata, in the envelope of journal lines and in CloudEvents.
const Header = "traceparent"

// Tracer creates spans. A nil Tracer is valid and traces nothing.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  sdktrace.Sampler
}

// On reports whether anything is traced.
func (t *Tracer) On() bool { return t != nil }

// Begin starts a span, as a child of the span in ctx or else as the root of a trace. It must be called
// only at the edge (see the package). The caller must end the span.
func (t *Tracer) Begin(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t == nil {
		return ctx, noop.Span{}
	}
	return t.tracer.Start(ctx, name, opts...)
}

// Start starts a span as a child of the span in ctx, and returns a context with it. The caller must end
// it. If ctx has no span, or a span that is not sampled, Start returns ctx and a span that records nothing.
func (t *Tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, noop.Span{}
	}
	return t.tracer.Start(ctx, name, opts...)
}

// Under starts a span as a child of the span that traceparent names. If traceparent is empty or not
// sampled, it starts none, as Start does. If traceparent is invalid, the parent is the span in ctx, if
// there is one. The caller must end the span.
func (t *Tracer) Under(ctx context.Context, traceparent, name string, opts ...trace.SpanStartOption) (context.Context,
	trace.Span,
) {
	if t == nil || traceparent == "" {
		return ctx, noop.Span{}
	}
	return t.Start(Continue(ctx, traceparent), name, opts...)
}

// Continue returns a context whose spans continue the trace of a traceparent. An invalid
// traceparent is ignored, as W3C Trace Context requires.
func Continue(ctx context.Context, traceparent string) context.Context {
	if sc, ok := Parse(traceparent); ok {
		return trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	return ctx
}

// Carried returns the traceparent of the span in ctx, or "" if there is none or it is not
// sampled.
func Carried(ctx context.Context) string { return Format(trace.SpanContextFromContext(ctx)) }

// Format returns the traceparent of a span's context, or "" if it is invalid or not sampled.
func Format(sc trace.SpanContext) string {
	if !sc.IsValid() || !sc.IsSampled() {
		return ""
	}
	var b [traceparentLen]byte
	tid, sid := sc.TraceID(), sc.SpanID()
	copy(b[:], "00-")
	hex.Encode(b[3:35], tid[:])
	b[35] = '-'
	hex.Encode(b[36:52], sid[:])
	copy(b[52:], "-01")
	return string(b[:])
}

const traceparentLen = 55

// Parse parses a traceparent of version 00, and one of a later version by its first fields, which must have the form
// of version 00. ok is false if it is not valid.
func Parse(s string) (sc trace.SpanContext, ok bool) {
	if len(s) < traceparentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return sc, false
	}
	var version, flags [1]byte
	var tid trace.TraceID
	var sid trace.SpanID
	if !lowerHex(version[:], s[:2]) || !lowerHex(tid[:], s[3:35]) || !lowerHex(sid[:], s[36:52]) ||
		!lowerHex(flags[:], s[53:55]) {
		return sc, false
	}
	if version[0] == 0xff || version[0] == 0 && len(s) != traceparentLen || len(s) > traceparentLen &&
		s[traceparentLen] != '-' {
		return sc, false
	}
	sc = trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: tid, SpanID: sid, TraceFlags: trace.TraceFlags(flags[0]) & trace.FlagsSampled, Remote: true,
	})
	return sc, sc.IsValid()
}

func lowerHex(dst []byte, s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	_, err := hex.Decode(dst, []byte(s))
	return err == nil
}

// SameTrace reports whether two traceparents are of one trace.
func SameTrace(a, b string) bool {
	return len(a) >= traceparentLen && len(b) >= traceparentLen && a[3:35] == b[3:35]
}

// LinkTo returns links to the spans of traceparents. Invalid ones are ignored.
func LinkTo(traceparents ...string) trace.SpanStartOption {
	links := make([]trace.Link, 0, len(traceparents))
	for _, tp := range traceparents {
		if sc, ok := Parse(tp); ok {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	return trace.WithLinks(links...)
}

// Reserve returns the traceparent of a span that begins now and that Finish records once it has ended. It is
// for a span such as that of a turn, which begins in one call, ends in another, and may outlive the process.
// The span is a child of parent or, with fresh, the root of a new trace with its own sampling decision.
// Reserve returns "" if parent is not sampled, also with fresh, and if the new trace is not sampled.
func (t *Tracer) Reserve(parent string, fresh bool) string {
	p, ok := Parse(parent)
	if t == nil || !ok || !p.IsSampled() {
		return ""
	}
	ctx := context.Background()
	tid, sid := p.TraceID(), ids{}.NewSpanID(ctx, p.TraceID())
	if fresh {
		tid, sid = ids{}.NewIDs(ctx)
		if t.sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: ctx, TraceID: tid}).Decision !=
			sdktrace.RecordAndSample {
			return ""
		}
	}
	return Format(trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: tid, SpanID: sid,
		TraceFlags: trace.FlagsSampled,
	}))
}

// Finish records a span that Reserve returned and that has ended: as a child of parent if that
// is of the same trace, otherwise as a root that links to parent. failed, if not empty, is the
// description of its failure.
func (t *Tracer) Finish(traceparent, parent, name string, from, to time.Time, failed string,
	attrs ...attribute.KeyValue,
) {
	own, ok := Parse(traceparent)
	if t == nil || !ok {
		return
	}
	ctx := context.WithValue(context.Background(), reservedKey{}, own)
	opts := []trace.SpanStartOption{
		trace.WithTimestamp(from), trace.WithAttributes(attrs...),
		trace.WithSpanKind(trace.SpanKindInternal),
	}
	if SameTrace(traceparent, parent) {
		ctx = Continue(ctx, parent)
	} else {
		opts = append(opts, LinkTo(parent))
	}
	_, span := t.tracer.Start(ctx, name, opts...)
	if failed != "" {
		span.SetStatus(codes.Error, failed)
	}
	span.End(trace.WithTimestamp(to))
}

// Fields returns the log fields trace_id and span_id of the span in ctx, or none if there is
// no span.
func Fields(ctx context.Context) []zap.Field { return fields(trace.SpanContextFromContext(ctx)) }

// FieldsOf is Fields for a traceparent.
func FieldsOf(traceparent string) []zap.Field {
	sc, _ := Parse(traceparent)
	return fields(sc)
}

func fields(sc trace.SpanContext) []zap.Field {
	if !sc.IsValid() {
		return nil
	}
	return []zap.Field{zap.String("trace_id", sc.TraceID().String()), zap.String("span_id", sc.SpanID().String())}
}

// Stop exports the remaining spans, until ctx ends.
func (t *Tracer) Stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}
