package work

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
)

// FindWorkItem returns the agent that an item belongs to. Only services may call it. It searches the
// partitions that this process holds: with several instances, NOT_FOUND means that the caller must
// ask the next one.
func (s *Service) FindWorkItem(ctx context.Context, req *workv1.FindWorkItemRequest) (*workv1.FindWorkItemResponse,
	error,
) {
	if err := fault.ID("work_item_id", req.GetWorkItemId(), "wi_"); err != nil {
		return nil, err
	}
	namespace := rpc.ActorFrom(ctx).Namespace
	var unread error // of a partition that is damaged
	for _, p := range s.engine.All() {
		owner, _, err := journal.View(ctx, p, func(st *State) (string, error) {
			return st.record(namespace, req.GetWorkItemId()).GetAgentId(), nil
		})
		if p.Damage() != nil {
			unread = err // another partition may have the item
			continue
		}
		if err != nil {
			return nil, err
		}
		if owner != "" {
			return &workv1.FindWorkItemResponse{AgentId: owner}, nil
		}
	}
	if unread != nil {
		return nil, unread
	}
	return nil, fault.NotFound.Newf("work item %q does not exist", req.GetWorkItemId()).
		With("work_item_id", req.GetWorkItemId())
}
