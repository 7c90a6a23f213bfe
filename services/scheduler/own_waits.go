package scheduler

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// Waiting is the part of the waiting plane that the scheduler reads, only to explain: a
// wait of the agent itself stops nothing, and counts when it wakes the agent.
type Waiting interface {
	ListWaits(ctx context.Context, in *waitingv1.ListWaitsRequest, opts ...grpc.CallOption) (
		*waitingv1.ListWaitsResponse, error)
}

// waitsLookedAt bounds how many waits are read to explain a decision, as many as a turn reads.
const waitsLookedAt = 500

// waits returns the active waits and intents of the agent itself, none of its items', among
// the first waitsLookedAt of them all.
func (s *Service) waits(ctx context.Context, agentID string) ([]*waitingv1.Wait, error) {
	got, err := s.deps.Waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: agentID, PageSize: waitsLookedAt})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(got.GetWaits(), func(w *waitingv1.Wait) bool { return w.GetWorkItemId() != "" }), nil
}

// ownWaits returns the waits that have the mode wait, so it leaves out intents.
func ownWaits(waits []*waitingv1.Wait) []*waitingv1.Wait {
	var own []*waitingv1.Wait
	for _, w := range waits {
		if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			own = append(own, w)
		}
	}
	return own
}

// ownTriggered reports whether a wait of the agent itself has deliveries that no turn has
// shown.
func ownTriggered(waits []*waitingv1.Wait) bool {
	return slices.ContainsFunc(waits, func(w *waitingv1.Wait) bool { return w.GetTriggered() })
}

// alsoWaits returns what an idle agent itself waits for, as a clause; empty if own is.
func alsoWaits(own []*waitingv1.Wait, f Facts) string {
	if len(own) == 0 {
		return ""
	}
	return "; the agent itself waits for " + waited(own[0], f)
}

// waitRecord is a wait as the waiting plane or its item shows it.
type waitRecord interface {
	GetKind() waitingv1.WaitKind
	GetResource() string
	GetReason() string
	GetCreatedAt() *timestamppb.Timestamp
}

// waited returns what a wait is for, since when, and why. A wait for the task of a child that
// asks something goes on until the child is answered, and a child's wait for an operator until
// its supervisor answers, so both say so (SPEC A14.3).
func waited(w waitRecord, f Facts) string {
	sinceWhen := since(w.GetCreatedAt().AsTime(), f.Now)
	supervisor := f.Agent.GetAgent().GetSupervisorAgentId()
	if w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR && supervisor != "" {
		return fmt.Sprintf("its supervisor %s, %s: %s", supervisor, sinceWhen, w.GetReason())
	}
	if w.GetKind() == waitingv1.WaitKind_WAIT_KIND_TASK {
		for _, d := range f.Agent.GetAskingChildren() {
			if d.GetTaskId() == w.GetResource() {
				return fmt.Sprintf("task %s, whose child %s asks: %s (%s: %s)", d.GetTaskId(), d.GetChildAgentId(),
					d.GetQuestions()[0].GetText(), sinceWhen, w.GetReason())
			}
		}
	}
	return fmt.Sprintf("%s, %s: %s", awaited(w.GetKind(), w.GetResource()), sinceWhen, w.GetReason())
}
