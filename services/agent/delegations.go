package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// keptDelegations is how many completed delegations of an agent stay in
	// memory. Older ones are in the event stream.
	keptDelegations = 256
	// maxResultBytes bounds what a child hands to its parent: it stands in three
	// journals and in the parent's lane.
	maxResultBytes = fault.MaxFreeTextBytes
)

// The outcomes of a delegation.
const (
	outcomeCompleted = "completed"
	outcomeFailed    = "failed"
	outcomeCancelled = "cancelled"
)

// delegation is a parent's record of a child, with all that is needed to make
// the child while it is not known to exist.
type delegation struct {
	rec       *agentv1.Delegation
	child     *agentv1.Agent
	message   string
	inherited string
}

func isOpen(d *agentv1.Delegation) bool {
	return d.GetState() == agentv1.DelegationState_DELEGATION_STATE_OPEN
}

// delegation finds one of an agent's delegations, nil if it is none of them or
// left the memory, which only completed ones do.
func (a *agentState) delegation(delegationID string) *delegation {
	if a == nil {
		return nil
	}
	for _, d := range slices.Backward(a.delegations) {
		if d.rec.GetDelegationId() == delegationID {
			return d
		}
	}
	return nil
}

func (a *agentState) openDelegations() []*delegation {
	var open []*delegation
	for _, d := range a.delegations {
		if isOpen(d.rec) {
			open = append(open, d)
		}
	}
	return open
}

// applyDelegation folds the next record of a delegation in.
func (a *agentState) applyDelegation(rec *agentv1.Delegation) error {
	i := slices.IndexFunc(a.delegations, func(d *delegation) bool { return d.rec.GetDelegationId() == rec.GetDelegationId() })
	if i < 0 || !isOpen(a.delegations[i].rec) {
		return fmt.Errorf("agent: delegation %q of %q is not open", rec.GetDelegationId(), a.rec.GetAgentId())
	}
	a.delegations = slices.Clone(a.delegations)
	next := &delegation{rec: rec}
	if was := a.delegations[i]; isOpen(rec) {
		next.child, next.message, next.inherited = was.child, was.message, was.inherited
	}
	a.delegations[i] = next
	if n := len(a.delegations) - len(a.openDelegations()); n > keptDelegations {
		oldest := slices.IndexFunc(a.delegations, func(d *delegation) bool { return !isOpen(d.rec) })
		a.delegations = slices.Delete(a.delegations, oldest, oldest+1)
	}
	return nil
}

func delegationEvent(d *agentv1.Delegation, payload proto.Message) *journal.Event {
	return &journal.Event{AgentID: d.GetParentAgentId(), WorkItemID: d.GetParentWorkItemId(), TaskID: d.GetTaskId(), Payload: payload}
}

// stopDelegation notes that the parent asked to stop a child's task. What ends
// the child is the supervision, which finds the note however often it crashes.
func (a *agentState) stopDelegation(namespace, delegationID string) []*journal.Event {
	d := a.delegation(delegationID)
	if d == nil || !isOpen(d.rec) || d.rec.GetStopRequested() {
		return nil
	}
	next := proto.CloneOf(d.rec)
	next.StopRequested = true
	ev := delegationEvent(next, &agentv1.DelegationUpdated{Delegation: next})
	ev.Namespace = namespace
	return []*journal.Event{ev}
}

// childItem notes the first item that a child made.
func (a *agentState) childItem(delegationID, itemID string) []*journal.Event {
	d := a.delegation(delegationID)
	if d == nil || !isOpen(d.rec) || d.rec.GetChildWorkItemId() != "" || itemID == "" {
		return nil
	}
	next := proto.CloneOf(d.rec)
	next.ChildWorkItemId = itemID
	return []*journal.Event{delegationEvent(next, &agentv1.DelegationUpdated{Delegation: next})}
}

// complete says what came of a child, and of its worktree if it had one. The
// first word counts (SPEC X7).
func (a *agentState) complete(env journal.Env, delegationID string, end *agentv1.AgentDeleting, wt *taskv1.Worktree) []*journal.Event {
	d := a.delegation(delegationID)
	if d == nil || !isOpen(d.rec) {
		return nil
	}
	next := proto.CloneOf(d.rec)
	next.State = agentv1.DelegationState_DELEGATION_STATE_COMPLETED
	next.Outcome, next.ResultSummary = end.GetOutcome(), end.GetResultSummary()
	if end.GetWorkItemId() != "" {
		next.ChildWorkItemId = end.GetWorkItemId()
	}
	if wt != nil {
		next.Worktree, next.ResultSummary = wt, withWorktree(next.GetResultSummary(), wt)
	}
	next.CompletedAt = timestamppb.New(env.Now)
	return []*journal.Event{delegationEvent(next, &agentv1.DelegationCompleted{Delegation: next})}
}

// clipped is a result within its bound; what is cut is said.
func clipped(text string) string { return clippedTo(text, maxResultBytes) }

func clippedTo(text string, most int) string {
	const note = "\n[cut: the report is longer than what a child hands over]"
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	cut := most - len(note)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + note
}

// GetDelegation reads one delegation of a parent (SPEC A3).
func (s *Service) GetDelegation(ctx context.Context, req *agentv1.GetDelegationRequest) (*agentv1.GetDelegationResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(admitRead(actor, req.GetAgentId()), fault.ID("delegation_id", req.GetDelegationId(), "dlg_")); err != nil {
		return nil, err
	}
	d, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*agentv1.Delegation, error) {
		a, err := st.agent(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		if d := a.delegation(req.GetDelegationId()); d != nil {
			return d.rec, nil
		}
		return nil, fault.NotFound.Newf("agent %q has no delegation %q in memory; old ones are in the event stream", req.GetAgentId(), req.GetDelegationId()).
			With("delegation_id", req.GetDelegationId())
	})
	if err != nil {
		return nil, err
	}
	return &agentv1.GetDelegationResponse{Delegation: d}, nil
}

// ListDelegations reads a parent's delegations, newest first: all open ones and
// the newest completed ones (SPEC A3, X9).
func (s *Service) ListDelegations(ctx context.Context, req *agentv1.ListDelegationsRequest) (*agentv1.ListDelegationsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if req.GetWorkItemId() != "" {
		if err := fault.ID("work_item_id", req.GetWorkItemId(), "wi_"); err != nil {
			return nil, err
		}
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	from, err := page.Position("delegations", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	resp, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*agentv1.ListDelegationsResponse, error) {
		a, err := st.agent(actor.Namespace, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		before := ""
		if from != nil {
			before = from[0]
		}
		return a.delegationsBefore(before, size, req), nil
	})
	return resp, err
}

// delegationsBefore is a page of those that are older than one. Ids grow with
// time, so the position stays what it is whatever leaves the memory.
func (a *agentState) delegationsBefore(before string, size int, req *agentv1.ListDelegationsRequest) *agentv1.ListDelegationsResponse {
	resp := &agentv1.ListDelegationsResponse{}
	bytes := 0
	for _, d := range slices.Backward(a.delegations) {
		switch {
		case before != "" && d.rec.GetDelegationId() >= before,
			req.GetOpenOnly() && !isOpen(d.rec),
			req.GetWorkItemId() != "" && d.rec.GetParentWorkItemId() != req.GetWorkItemId():
			continue
		}
		bytes += proto.Size(d.rec)
		if n := len(resp.GetDelegations()); n == size || n > 0 && bytes > page.MaxBytes {
			resp.NextPageToken = page.Token("delegations", resp.GetDelegations()[n-1].GetDelegationId())
			return resp
		}
		resp.Delegations = append(resp.Delegations, d.rec)
	}
	return resp
}
