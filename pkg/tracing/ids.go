package tracing

import (
	"context"
	"encoding/binary"
	"math/rand/v2"

	"go.opentelemetry.io/otel/trace"
)

type reservedKey struct{}

// ids generates random ids. For a span that was reserved (see Tracer.Reserve), whose context Finish puts into ctx, it
// returns the reserved ids.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator. The SDK calls it for the root of a trace.
func (ids) NewIDs(ctx context.Context) (tid trace.TraceID, sid trace.SpanID) {
	if own, ok := ctx.Value(reservedKey{}).(trace.SpanContext); ok {
		return own.TraceID(), own.SpanID()
	}
	for !tid.IsValid() {
		binary.BigEndian.PutUint64(tid[:8], rand.Uint64()) //nolint:gosec // ids of traces are no secrets
		binary.BigEndian.PutUint64(tid[8:], rand.Uint64()) //nolint:gosec // ids of traces are no secrets
	}
	return tid, newSpanID()
}

// NewSpanID implements sdktrace.IDGenerator. The SDK calls it for a span that has a parent.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if own, ok := ctx.Value(reservedKey{}).(trace.SpanContext); ok {
		return own.SpanID()
	}
	return newSpanID()
}

func newSpanID() (sid trace.SpanID) {
	for !sid.IsValid() {
		binary.BigEndian.PutUint64(sid[:], rand.Uint64()) //nolint:gosec // ids of traces are no secrets
	}
	return sid
}
