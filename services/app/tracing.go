package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/tracing"
)

// quiet has the methods of long polls and heartbeats. They continue a trace but do not
// start one.
var quiet = map[string]bool{
	agentv1.AgentService_AcquireTurn_FullMethodName:    true,
	agentv1.AgentService_RenewTurn_FullMethodName:      true,
	boardv1.BoardService_ClaimStep_FullMethodName:      true,
	boardv1.BoardService_RenewWorkerRun_FullMethodName: true,
}

// flushTerm bounds sending the last spans when a process ends.
const flushTerm = 5 * time.Second

// tracing returns the configuration of the tracer.
func (c *Config) tracing(logger *zap.Logger, metrics prometheus.Registerer, version string) tracing.Config {
	return tracing.Config{
		Endpoint: c.OTLPEndpoint, Protocol: c.OTLPProtocol, Ratio: c.TraceRatio, Service: c.ServiceName,
		Instance: c.ServiceInstance,
		Version:  version, Logger: logger.Named("tracing"), Metrics: metrics,
	}
}

// flush sends the last spans. An unreachable collector is logged and is not an error.
func (a *App) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTerm)
	defer cancel()
	if err := a.tracer.Stop(ctx); err != nil {
		a.logger.Warn("the last traces could not be sent", zap.Error(err))
	}
}
