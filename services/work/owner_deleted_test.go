package work

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// A8: the open items of a deleted agent stay open and say why nobody works on
// them; it gets no new ones.
func TestA8_ItemsOfADeletedAgent(t *testing.T) {
	r := newRig(t)
	writer := r.journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto)
	first, second, finished := r.create("one").GetWorkItemId(), r.create("two").GetWorkItemId(), r.create("three").GetWorkItemId()
	_, err := r.service.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: finished})
	require.NoError(t, err)
	r.pick(second)
	before := len(r.events())
	deleting := &journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentDeleting{Agent: &agentv1.Agent{AgentId: "keeper"}}}
	writer.Write(deleting)
	writer.Write(deleting)
	eventually(t, func() bool { return r.get(second).GetBlockedBy() == ownerDeleted })
	require.Equal(t, ownerDeleted, r.get(first).GetBlockedBy())
	require.Equal(t, workv1.WorkItemState_WORK_ITEM_STATE_OPEN, r.get(first).GetState())
	require.False(t, r.get(second).GetIsCurrent(), "the focus is released")
	require.Empty(t, r.get(finished).GetBlockedBy())
	for range 2 {
		_, err := r.service.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: "four"})
		require.ErrorIs(t, err, fault.AgentDeleted)
		_, err = r.service.WriteFile(r.ctx, &workv1.WriteFileRequest{AgentId: "keeper", Path: "x", Text: "y"})
		require.ErrorIs(t, err, fault.AgentDeleted)
		_, err = r.service.ListFiles(r.ctx, &workv1.ListFilesRequest{AgentId: "keeper"})
		require.NoError(t, err, "what it left can be read")
		r.restart()
	}
	types := []string{}
	for _, ev := range r.events()[before:] {
		types = append(types, ev.Type)
	}
	require.Equal(t, []string{"owner_deleted", "work_item_updated", "work_item_updated", "focus_released"}, types)
	// An operator may still finish what it left.
	_, err = r.service.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: first})
	require.NoError(t, err)
}

// A8: more than goes into one frame is left to who deletes the agent.
func TestA8_ManyItemsOfADeletedAgent(t *testing.T) {
	r := newRig(t)
	for range 400 {
		r.create(strings.Repeat("x", 1900))
	}
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentDeleting{Agent: &agentv1.Agent{AgentId: "keeper"}}})
	blocked := 0
	l, err := r.service.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", PageSize: 500})
	require.NoError(t, err)
	for _, it := range l.GetWorkItems() {
		if it.GetBlockedBy() == ownerDeleted {
			blocked++
		}
	}
	require.Greater(t, blocked, 100)
	require.Less(t, blocked, 400)
}
