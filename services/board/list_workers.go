package board

import (
	"context"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
	"quartet/services/board/patch"
)

// ListWorkers reads the workers that are connected now.
func (s *Service) ListWorkers(ctx context.Context, req *boardv1.ListWorkersRequest) (*boardv1.ListWorkersResponse,
	error,
) {
	if err := patch.OptionalName("worker_pool_id", req.GetWorkerPoolId()); err != nil {
		return nil, err
	}
	return &boardv1.ListWorkersResponse{Workers: s.workers.List(rpc.ActorFrom(ctx).Namespace, req.GetWorkerPoolId())},
		nil
}
