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

// Header is the name of W3C Trace Context's header, and of what carries the same
// elsewhere: gRPC's metadata, a journal's envelope, a CloudEvent.
const Header = "traceparent"

// Tracer makes spans. All of its methods take nil.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  sdktrace.Sampler
}

// On says whether anything is traced.
func (t *Tracer) On() bool { return t != nil }

// Begin begins a span under the one in ctx, or a trace where there is none: at the
// edge. The caller ends it.
func (t *Tracer) Begin(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t == nil {
		return ctx, noop.Span{}
	}
	return t.tracer.Start(ctx, name, opts...)
}

// Start begins a span under the one in ctx, and none where ctx is not traced. The
// caller ends it.
func (t *Tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, noop.Span{}
	}
	return t.tracer.Start(ctx, name, opts...)
}

// Under begins a span under the one of a traceparent; under none, if the
// traceparent is empty or unreadable, there is nothing to begin.
func (t *Tracer) Under(ctx context.Context, traceparent, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t == nil || traceparent == "" {
		return ctx, noop.Span{}
	}
	return t.Start(Continue(ctx, traceparent), name, opts...)
}

// Continue makes what is started under ctx continue a traceparent. One that
// cannot be read changes nothing (W3C Trace Context: it is ignored).
func Continue(ctx context.Context, traceparent string) context.Context {
	if sc, ok := Parse(traceparent); ok {
		return trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	return ctx
}

// Carried is the traceparent of what ctx is part of; "" if that is no trace, or
// one that is not sampled, which nobody need hear of.
func Carried(ctx context.Context) string { return Format(trace.SpanContextFromContext(ctx)) }

// Format writes a span's context as a traceparent; "" for one that is invalid or
// not sampled.
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

// Parse reads a traceparent of any version that is laid out as version 00 is.
func Parse(s string) (sc trace.SpanContext, ok bool) {
	if len(s) < traceparentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return sc, false
	}
	var version, flags [1]byte
	var tid trace.TraceID
	var sid trace.SpanID
	if !lowerHex(version[:], s[:2]) || !lowerHex(tid[:], s[3:35]) || !lowerHex(sid[:], s[36:52]) || !lowerHex(flags[:], s[53:55]) {
		return sc, false
	}
	if version[0] == 0xff || version[0] == 0 && len(s) != traceparentLen || len(s) > traceparentLen && s[traceparentLen] != '-' {
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

// SameTrace says whether two traceparents are of one trace.
func SameTrace(a, b string) bool {
	return len(a) >= traceparentLen && len(b) >= traceparentLen && a[3:35] == b[3:35]
}

// LinkTo is a link to a traceparent's span; none if it cannot be read.
func LinkTo(traceparents ...string) trace.SpanStartOption {
	links := make([]trace.Link, 0, len(traceparents))
	for _, tp := range traceparents {
		if sc, ok := Parse(tp); ok {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	return trace.WithLinks(links...)
}

// Reserve gives the traceparent of a span that is told of when it is over, by
// Told: such as a turn, which begins in one call, ends in another, and may
// outlive the process. The span is the child of parent, or with fresh the root of
// a trace of its own, which is sampled for itself. "": it is not traced.
func (t *Tracer) Reserve(parent string, fresh bool) string {
	p, ok := Parse(parent)
	if t == nil || !ok || !p.IsSampled() {
		return ""
	}
	ctx := context.Background()
	tid, sid := p.TraceID(), ids{}.NewSpanID(ctx, p.TraceID())
	if fresh {
		tid, sid = ids{}.NewIDs(ctx)
		if t.sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: ctx, TraceID: tid}).Decision != sdktrace.RecordAndSample {
			return ""
		}
	}
	return Format(trace.NewSpanContext(trace.SpanContextConfig{TraceID: tid, SpanID: sid, TraceFlags: trace.FlagsSampled}))
}

// Told tells of a span that Reserve gave and that is over: the child of parent if
// that is of the same trace, else a root that links to it. failed, if not empty,
// says in a word that it went wrong.
func (t *Tracer) Told(traceparent, parent, name string, from, to time.Time, failed string, attrs ...attribute.KeyValue) {
	own, ok := Parse(traceparent)
	if t == nil || !ok {
		return
	}
	ctx := context.WithValue(context.Background(), reservedKey{}, own)
	opts := []trace.SpanStartOption{trace.WithTimestamp(from), trace.WithAttributes(attrs...), trace.WithSpanKind(trace.SpanKindInternal)}
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

// Fields are trace_id and span_id for a log entry of what ctx is part of; none
// where it is not traced.
func Fields(ctx context.Context) []zap.Field { return fields(trace.SpanContextFromContext(ctx)) }

// FieldsOf are the same for a traceparent.
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

// Stop sends what was not sent yet, as long as ctx lasts.
func (t *Tracer) Stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}
