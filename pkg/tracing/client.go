package tracing

import (
	"context"
	"os"
	"time"

	"quartet/pkg/version"
)

// flushTerm bounds sending the last spans of a client when its process ends.
const flushTerm = 5 * time.Second

// ForClient returns the tracer of a worker or runner that is a process of its own, nil if OpenTelemetry's variables
// (OTEL_EXPORTER_OTLP_ENDPOINT) name no collector. All traces that begin in the process are sampled; those that began
// elsewhere are if their parent is. service is not used if OTEL_SERVICE_NAME is set. flush, which is never nil, sends
// the remaining spans, for at most flushTerm, also after ctx has ended.
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
