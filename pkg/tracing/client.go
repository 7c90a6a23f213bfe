package tracing

import (
	"context"
	"os"
	"time"

	"quartet/pkg/version"
)

// flushTerm bounds sending the last spans of a client when its process ends.
const flushTerm = 5 * time.Second

// ForClient returns the tracer of a worker or runner that is a process of its own. It
// is off unless OpenTelemetry's variables (OTEL_EXPORTER_OTLP_ENDPOINT) name a collector.
// flush sends the remaining spans.
func ForClient(ctx context.Context, service, instance string) (t *Tracer, flush func(), err error) {
	if os.Getenv("OTEL_SERVICE_NAME") != "" {
		service = "" // the tracer reads that variable
	}
	t, err = New(ctx, Config{Ratio: 1, Service: service, Instance: instance, Version: version.Get().String()})
	return t, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTerm)
		defer cancel()
		_ = t.Stop(ctx) // an unreachable collector is not an error
	}, err
}
