package journal

import (
	"go.opentelemetry.io/otel/trace"

	"quartet/pkg/journal/spans"
)

// endSpan ends the span of a command; nil: it has none.
func (p *Partition[S]) endSpan(span trace.Span, c *command[S]) {
	if span == nil {
		return
	}
	select {
	case <-c.done:
		spans.End(span, len(c.events), c.seq, c.replayed, c.err != nil)
	default: // the caller stopped waiting; the loop may still write to c
		spans.Unknown(span)
	}
}
