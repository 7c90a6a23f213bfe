package projection

import (
	"context"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// OverQuestion returns why a child's question must not be shown to its parent any more, or ""
// if it is still open or m is no question (SPEC A14.1). The supervisor withdraws a question a
// moment after the child's wait has ended, and a parent that has just answered must not be asked
// again in that moment. So the wait is read here, after the waiting plane has consumed the newest
// message to the child. If the waiting plane cannot be read, the question is shown.
func (s *Service) OverQuestion(ctx context.Context, k plane.Key, m *agentv1.Message) (string, error) {
	if !state.IsQuestion(m) {
		return "", nil
	}
	d, err := s.delegation(ctx, k, m.GetDelegationId())
	if err != nil {
		return "", err
	}
	if d == nil || !state.IsOpen(d) {
		return state.OverReason + ": the child has ended", nil
	}
	child := plane.Key{Namespace: k.Namespace, ID: d.GetChildAgentId()}
	answered, _, err := journal.View(ctx, s.engine.For(child.Namespace, child.ID),
		func(st *state.State) (plane.Position, error) {
			return s.engine.At(child.Namespace, child.ID, st.Lookup(child).LastArrival()), nil
		})
	if err != nil {
		return "", err
	}
	conn, err := s.deps.Conn("waiting")
	if err != nil {
		return "", nil //nolint:nilerr // shown if the waiting plane cannot be asked
	}
	r, err := waitingv1.NewWaitingServiceClient(conn).GetWait(plane.After(access.AsPlane(ctx, k.Namespace), answered),
		&waitingv1.GetWaitRequest{AgentId: child.ID, WaitId: m.GetCausationId()})
	switch {
	// NOT_FOUND: it ended so long ago that it is no longer in memory
	case err != nil && fault.From(err).Code() != codes.NotFound:
		return "", nil
	case err == nil && r.GetWait().GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE:
		return "", nil
	}
	return state.OverReason + ": the child no longer waits for the answer", nil
}

// delegation reads a delegation of a parent; nil if it is no longer in memory.
func (s *Service) delegation(ctx context.Context, k plane.Key, delegationID string) (*agentv1.Delegation, error) {
	d, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (*agentv1.Delegation, error) {
		if d := st.Lookup(k).Delegation(delegationID); d != nil {
			return d.Record, nil
		}
		return nil, nil
	})
	return d, err
}
