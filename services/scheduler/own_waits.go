package scheduler

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// Waiting is the part of the waiting plane that the scheduler reads, only to explain: a
// wait of the agent itself stops nothing, and counts when it wakes the agent.
type Waiting interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (*waitingv1.ListWaitsResponse, error)
}

// waitsLookedAt bounds how many waits are read to explain a decision.
const waitsLookedAt = 200

// ownWaits returns the agent's waits that belong to none of its items.
func (s *Service) ownWaits(ctx context.Context, agentID string) ([]*waitingv1.Wait, error) {
	got, err := s.deps.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: agentID, PageSize: waitsLookedAt})
	if err != nil {
		return nil, err
	}
	var own []*waitingv1.Wait
	for _, w := range got.GetWaits() {
		if w.GetWorkItemId() == "" && w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			own = append(own, w)
		}
	}
	return own, nil
}

// alsoWaits returns what an idle agent itself waits for.
func alsoWaits(own []*waitingv1.Wait, now time.Time) string {
	if len(own) == 0 {
		return ""
	}
	w := own[0]
	return fmt.Sprintf("; the agent itself waits for %s, %s: %s", awaited(w.GetKind(), w.GetResource()), since(w.GetCreatedAt().AsTime(), now), w.GetReason())
}
