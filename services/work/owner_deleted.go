package work

import (
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

const (
	// blockerOwnerDeleted is the blocker of the open items of a deleted agent (SPEC A8).
	blockerOwnerDeleted = "owner_deleted"
	// deletedBytes bounds the size of the records that one frame blocks. The agent plane,
	// which deletes the agent, blocks the others one by one (completesDeletion).
	deletedBytes = 512 << 10
)

// ownerDeleted is the rule for the deletion of an agent: nothing can be created for it any
// more, and its open items get the blocker owner_deleted and stay open, the oldest first, as
// many as deletedBytes allows. It returns no events if the deletion is recorded already.
func (s *State) ownerDeleted(env journal.Env, namespace, agentID string) []*journal.Event {
	k := plane.KeyOf(namespace, agentID)
	a := s.ByOwner.Get(k)
	if a != nil && a.deleted {
		return nil
	}
	events := []*journal.Event{
		{Namespace: namespace, AgentID: agentID, Payload: &workv1.OwnerDeleted{AgentId: agentID}},
	}
	if a == nil {
		return events
	}
	current, size := a.current, 0
	a.open.each(byCreation, nil, func(old *workv1.WorkItemRecord) bool {
		if size += proto.Size(old); size > deletedBytes {
			return false
		}
		it := next(old, env)
		it.BlockedBy, it.BlockedByWaitId = blockerOwnerDeleted, ""
		release := current == it.GetWorkItemId()
		if release {
			current = ""
		}
		ev := itemEvent(it, old, &workv1.WorkItemUpdated{
			WorkItem: it, ChangedFields: []string{"blocked_by"},
			CurrentWorkItemId: current,
		})
		ev.Namespace = namespace
		events = append(events, ev)
		if release {
			rel := focusReleased(it, workv1.FocusReleaseReason_FOCUS_RELEASE_REASON_BLOCKED)
			rel.Namespace = namespace
			events = append(events, rel)
		}
		return true
	})
	return events
}

// ownerAlive returns AGENT_DELETED for an agent that is deleted or being deleted, nil for any
// other.
func (s *State) ownerAlive(namespace, agentID string) error {
	if s.ownerIsDeleted(namespace, agentID) {
		return fault.AgentDeleted.Newf("agent %q is deleted; no item can be created for it", agentID).
			With("agent_id", agentID)
	}
	return nil
}

// ownerIsDeleted reports whether this plane has read that an agent is deleted or being
// deleted.
func (s *State) ownerIsDeleted(namespace, agentID string) bool {
	return s.isDeleted(plane.KeyOf(namespace, agentID)) || s.WasErased(namespace, agentID)
}

// mutable is owned for callers that change the item. It returns AGENT_DELETED for an item of a
// deleted agent (SPEC A8.4). It returns a completed item; the caller must check that.
func (s *State) mutable(namespace, agentID, itemID string) (*workv1.WorkItemRecord, error) {
	it, err := s.owned(namespace, agentID, itemID)
	if err == nil && s.ownerIsDeleted(namespace, agentID) {
		return nil, fault.AgentDeleted.Newf("agent %q is deleted, so its work item %q is read-only; create an item "+
			"of another agent for what is left to do", agentID, itemID).
			With("agent_id", agentID).With("work_item_id", itemID)
	}
	return it, err
}

// completesDeletion reports whether a request is the one by which the agent plane blocks the items
// that ownerDeleted left out. It is repeated after a crash, until every open item is blocked.
func completesDeletion(actor journal.Actor, req *workv1.UpdateWorkItemRequest) bool {
	fields := changedFields(req)
	return actor.Role == rpc.RoleService && req.GetBlockedBy() == blockerOwnerDeleted && len(fields) == 1
}
