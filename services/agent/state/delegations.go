package state

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/utf8cut"
)

const (
	// keptDelegations is how many completed delegations of an agent stay in memory. Older
	// ones are in the event stream.
	keptDelegations = 256
	// maxResultBytes bounds a child's result, which is stored in three journals and in
	// the parent's lane.
	maxResultBytes = fault.MaxFreeTextBytes
)

// Delegation is a parent's record of a child, with everything that is needed to make the
// child while it does not exist.
type Delegation struct {
	Record           *agentv1.Delegation
	Child            *agentv1.Agent
	InitialMessage   string
	InheritedContext string
	MaxAuthority     agentv1.Authority // of the initial message; unspecified: as its origin says
}

// IsOpen reports whether a delegation has not completed.
func IsOpen(d *agentv1.Delegation) bool {
	return d.GetState() == agentv1.DelegationState_DELEGATION_STATE_OPEN
}

// Delegation returns the delegation with an id, or nil if the agent has none with this id in
// memory. Open delegations are always in memory, and the newest completed ones.
func (a *Agent) Delegation(delegationID string) *Delegation {
	if a == nil {
		return nil
	}
	for _, d := range slices.Backward(a.Delegations) {
		if d.Record.GetDelegationId() == delegationID {
			return d
		}
	}
	return nil
}

// OpenDelegations returns the delegations of an agent that have not completed, oldest first.
func (a *Agent) OpenDelegations() []*Delegation {
	var open []*Delegation
	for _, d := range a.Delegations {
		if IsOpen(d.Record) {
			open = append(open, d)
		}
	}
	return open
}

// applyDelegation replaces the record of an open delegation; any other one is an error. Of the completed
// delegations it keeps the newest keptDelegations.
func (a *Agent) applyDelegation(rec *agentv1.Delegation) error {
	i := slices.IndexFunc(a.Delegations, func(d *Delegation) bool {
		return d.Record.GetDelegationId() == rec.GetDelegationId()
	})
	if i < 0 || !IsOpen(a.Delegations[i].Record) {
		return fmt.Errorf("agent: delegation %q of %q is not open", rec.GetDelegationId(), a.Record.GetAgentId())
	}
	a.Delegations = slices.Clone(a.Delegations)
	next := &Delegation{Record: rec}
	if was := a.Delegations[i]; IsOpen(rec) {
		next.Child, next.InitialMessage, next.InheritedContext, next.MaxAuthority = was.Child, was.InitialMessage,
			was.InheritedContext, was.MaxAuthority
	}
	a.Delegations[i] = next
	if n := len(a.Delegations) - len(a.OpenDelegations()); n > keptDelegations {
		oldest := slices.IndexFunc(a.Delegations, func(d *Delegation) bool { return !IsOpen(d.Record) })
		a.Delegations = slices.Delete(a.Delegations, oldest, oldest+1)
	}
	return nil
}

// DelegationEvent returns an event of the parent, with the item and the task of a delegation.
func DelegationEvent(d *agentv1.Delegation, payload proto.Message) *journal.Event {
	return &journal.Event{
		AgentID: d.GetParentAgentId(), WorkItemID: d.GetParentWorkItemId(), TaskID: d.GetTaskId(),
		Payload: payload,
	}
}

// requestStop records that the parent asked to stop a child's task. The supervisor reads
// the record and ends the child. requestStop returns no events if that is recorded already or the
// delegation is not open.
func (a *Agent) requestStop(namespace, delegationID string) []*journal.Event {
	d := a.Delegation(delegationID)
	if d == nil || !IsOpen(d.Record) || d.Record.GetStopRequested() {
		return nil
	}
	next := proto.CloneOf(d.Record)
	next.StopRequested = true
	ev := DelegationEvent(next, &agentv1.DelegationUpdated{Delegation: next})
	ev.Namespace = namespace
	return []*journal.Event{ev}
}

// NoteChildItem records the first item that a child made. It returns no events if the delegation has an
// item already or is not open.
func (a *Agent) NoteChildItem(delegationID, itemID string) []*journal.Event {
	d := a.Delegation(delegationID)
	if d == nil || !IsOpen(d.Record) || d.Record.GetChildWorkItemId() != "" || itemID == "" {
		return nil
	}
	next := proto.CloneOf(d.Record)
	next.ChildWorkItemId = itemID
	return []*journal.Event{DelegationEvent(next, &agentv1.DelegationUpdated{Delegation: next})}
}

// CompleteDelegation records the outcome of a child, and the state of its worktree if it
// had one, and withdraws its questions. The first outcome counts (SPEC X7).
func (a *Agent) CompleteDelegation(env journal.Env, delegationID string, end *agentv1.AgentDeleting,
	wt *taskv1.Worktree,
) []*journal.Event {
	d := a.Delegation(delegationID)
	if d == nil || !IsOpen(d.Record) {
		return nil
	}
	next := proto.CloneOf(d.Record)
	next.State = agentv1.DelegationState_DELEGATION_STATE_COMPLETED
	next.Outcome, next.ResultSummary = end.GetOutcome(), end.GetResultSummary()
	if end.GetWorkItemId() != "" {
		next.ChildWorkItemId = end.GetWorkItemId()
	}
	if wt != nil {
		next.Worktree, next.ResultSummary = wt, withWorktree(next.GetResultSummary(), wt)
	}
	next.CompletedAt = timestamppb.New(env.Now)
	next.Questions = nil
	events := []*journal.Event{DelegationEvent(next, &agentv1.DelegationCompleted{Delegation: next})}
	for _, q := range d.Record.GetQuestions() {
		events = append(events, a.dropQuestion(env, q, "the child has ended")...)
	}
	return events
}

// ClipReport returns a result without the white space around it. If it has more than
// maxResultBytes, it is cut to at most that, with a note at its end that says so.
func ClipReport(text string) string { return clipReportTo(text, maxResultBytes) }

func clipReportTo(text string, most int) string {
	const note = "\n[cut: the report is longer than what a child hands over]"
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	return utf8cut.Bytes(text, most-len(note)) + note
}

// DelegationsBefore returns a page of the delegations that are older than a given one.
// Ids grow with time, so a page token stays valid whatever leaves the memory.
func (a *Agent) DelegationsBefore(before string, size int,
	req *agentv1.ListDelegationsRequest,
) *agentv1.ListDelegationsResponse {
	resp := &agentv1.ListDelegationsResponse{}
	bytes := 0
	for _, d := range slices.Backward(a.Delegations) {
		switch {
		case before != "" && d.Record.GetDelegationId() >= before,
			req.GetOpenOnly() && !IsOpen(d.Record),
			req.GetWorkItemId() != "" && d.Record.GetParentWorkItemId() != req.GetWorkItemId():
			continue
		}
		bytes += proto.Size(d.Record)
		if n := len(resp.GetDelegations()); n == size || n > 0 && bytes > page.MaxBytes {
			resp.NextPageToken = page.Token("delegations", resp.GetDelegations()[n-1].GetDelegationId())
			return resp
		}
		resp.Delegations = append(resp.Delegations, d.Record)
	}
	return resp
}

// WorktreePending reports whether the child of a delegation has to wait for its worktree.
func WorktreePending(d *agentv1.Delegation) bool {
	return d.GetWorktree().GetState() == taskv1.WorktreeState_WORKTREE_STATE_PREPARING
}

// WorktreeReady records the worktree of a child that waits for one. It returns no events if
// the delegation has completed or waits for none.
func (a *Agent) WorktreeReady(delegationID string, wt *taskv1.Worktree) []*journal.Event {
	d := a.Delegation(delegationID)
	if d == nil || !IsOpen(d.Record) || !WorktreePending(d.Record) {
		return nil
	}
	next := proto.CloneOf(d.Record)
	next.Worktree = wt
	return []*journal.Event{DelegationEvent(next, &agentv1.DelegationUpdated{Delegation: next})}
}

// withWorktree adds to a result where a worktree is that was kept.
func withWorktree(result string, wt *taskv1.Worktree) string {
	if wt.GetState() != taskv1.WorktreeState_WORKTREE_STATE_KEPT {
		return result
	}
	note := fmt.Sprintf("[worktree kept: %s on worker %s, branch %s, from commit %s: %s]",
		wt.GetPath(), wt.GetWorkerId(), wt.GetBranch(), wt.GetBaseCommit(), cmp.Or(wt.GetReason(), "it was changed"))
	if strings.TrimSpace(result) == "" {
		return note
	}
	return clipReportTo(result, maxResultBytes-len(note)-2) + "\n\n" + note
}
