package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// watchEvery is how often a health watch checks readiness, which is a function and not a flag
// whose changes could be observed.
const watchEvery = time.Second

// health responds for the whole process, whichever service is named.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	ready func() error
}

func (h *health) status() *grpc_health_v1.HealthCheckResponse {
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if h.ready != nil && h.ready() != nil {
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: status}
}

// Check returns SERVING or NOT_SERVING.
func (h *health) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse,
	error,
) {
	return h.status(), nil
}

// List returns the status of the process under the empty name.
func (h *health) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	return &grpc_health_v1.HealthListResponse{Statuses: map[string]*grpc_health_v1.HealthCheckResponse{"": h.status()}},
		nil
}

// Watch sends the status now and after each change, which it notices within watchEvery.
func (h *health) Watch(_ *grpc_health_v1.HealthCheckRequest,
	out grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse],
) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var last grpc_health_v1.HealthCheckResponse_ServingStatus
	for {
		if now := h.status(); now.GetStatus() != last {
			last = now.GetStatus()
			if err := out.Send(now); err != nil {
				return err
			}
		}
		select {
		case <-out.Context().Done():
			return out.Context().Err()
		case <-ticker.C:
		}
	}
}
