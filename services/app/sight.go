package app

import (
	"context"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/tracing"
	"quartet/pkg/version"
)

// quiet are the calls that wait or keep something alive: they continue a trace,
// and begin none.
var quiet = map[string]bool{
	agentv1.AgentService_AcquireTurn_FullMethodName:    true,
	agentv1.AgentService_RenewTurn_FullMethodName:      true,
	boardv1.BoardService_ClaimStep_FullMethodName:      true,
	boardv1.BoardService_RenewWorkerRun_FullMethodName: true,
}

// flushTerm is how long the last spans may take to be sent when a process ends.
const flushTerm = 5 * time.Second

// tracing is what is traced and where to.
func (c *Config) tracing(logger *zap.Logger, metrics prometheus.Registerer, version string) tracing.Config {
	return tracing.Config{
		Endpoint: c.OTLPEndpoint, Protocol: c.OTLPProtocol, Ratio: c.TraceRatio, Service: c.ServiceName, Instance: c.ServiceInstance,
		Version: version, Logger: logger.Named("tracing"), Metrics: metrics,
	}
}

// flush sends the spans of what has just ended. A collector that is away is not
// waited for, and no reason to fail.
func (a *App) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTerm)
	defer cancel()
	if err := a.tracer.Stop(ctx); err != nil {
		a.logger.Warn("the last traces could not be sent", zap.Error(err))
	}
}

// ClientTracer is the tracer of a worker or runner that is a process of its own. It
// is off unless OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT) name a
// collector. flush sends what is left.
func ClientTracer(ctx context.Context, service, instance string) (t *tracing.Tracer, flush func(), err error) {
	if os.Getenv("OTEL_SERVICE_NAME") != "" {
		service = "" // it says so itself
	}
	t, err = tracing.New(ctx, tracing.Config{Ratio: 1, Service: service, Instance: instance, Version: version.Get().String()})
	return t, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTerm)
		defer cancel()
		_ = t.Stop(ctx) // a collector that is away is no reason to fail
	}, err
}
