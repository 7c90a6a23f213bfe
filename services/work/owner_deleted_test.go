package work

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// A8: the open items of a deleted agent stay open and say why nobody works on
// them; it gets no new ones.
func TestA8_ItemsOfADeletedAgent(t *testing.T) {
	r := newRig(t)
	writer := r.journals.NewWriter(t, "agent", agentv1.File_quartet_agent_v1_agent_event_proto)
	first, second, finished := r.create("one").GetWorkItemId(), r.create("two").GetWorkItemId(), r.create("three").
		GetWorkItemId()
	must.Value(r.service.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{
		AgentId: "keeper", WorkItemId: finished,
	}))(t)
	r.pick(second)
	before := len(r.events())
	deleting := &journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentDeleting{
		Agent: &agentv1.Agent{AgentId: "keeper"},
	}}
	writer.Write(deleting)
	writer.Write(deleting)
	eventually(t, func() bool { return r.get(second).GetBlockedBy() == blockerOwnerDeleted })
	require.Equal(t, blockerOwnerDeleted, r.get(first).GetBlockedBy())
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
}

// Nobody changes an item of a deleted agent any more, open or completed; everybody may read it. Only
// the deletion itself goes on blocking what it left out (SPEC A8.4).
func TestA8_ItemsOfADeletedAgentAreReadOnly(t *testing.T) {
	r := newRig(t)
	open, finished := r.create("one").GetWorkItemId(), r.create("two").GetWorkItemId()
	_, err := r.client.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: finished})
	require.NoError(t, err)
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentDeleting{
		Agent: &agentv1.Agent{AgentId: "keeper"},
	}})
	wait := &waitingv1.Wait{
		WaitId: "wt_00000000000000000000000001", AgentId: "keeper", WorkItemId: open,
		Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
		Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE, Revision: 1,
	}
	text := "x"
	before := len(r.events())
	for range 2 {
		for _, item := range []string{open, finished} {
			for _, ctx := range []context.Context{
				r.ctx, planetest.As(t.Context(), rpc.RoleOperator),
				planetest.As(t.Context(), rpc.RoleAdmin), planetest.As(t.Context(), rpc.RoleService),
			} {
				_, err := r.client.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
					AgentId: "keeper", WorkItemId: item, Objective: &text,
				})
				require.ErrorIs(t, fault.From(err), fault.AgentDeleted)
				require.ErrorContains(t, err, item)
				_, err = r.client.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
					AgentId: "keeper", WorkItemId: item, ClearBlockedBy: true,
				})
				require.ErrorIs(t, fault.From(err), fault.AgentDeleted)
				_, err = r.client.CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{
					AgentId: "keeper", WorkItemId: item,
				})
				require.ErrorIs(t, fault.From(err), fault.AgentDeleted)
			}
			_, err := r.client.PickWorkItem(r.ctx, &workv1.PickWorkItemRequest{AgentId: "keeper", WorkItemId: item})
			require.ErrorIs(t, fault.From(err), fault.AgentDeleted)
			_, err = r.client.AttachWait(planetest.As(t.Context(), rpc.RoleService), &workv1.AttachWaitRequest{
				AgentId: "keeper", WorkItemId: item, Wait: AttachedWaitOf(wait),
			})
			require.ErrorIs(t, fault.From(err), fault.AgentDeleted)
		}
		r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitRegistered{Wait: wait}})
		_, err = r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: open, BlockedBy: proto.String(blockerOwnerDeleted),
		})
		require.ErrorIs(t, fault.From(err), fault.AgentDeleted, "an agent does not delete")
		require.Equal(t, blockerOwnerDeleted, r.get(open).GetBlockedBy())
		require.Empty(t, r.get(open).GetWaits())
		require.Len(t, r.events(), before, "a refusal changes nothing")
		r.restart()
	}
	must.Value(r.client.UpdateWorkItem(planetest.As(t.Context(), rpc.RoleService), &workv1.UpdateWorkItemRequest{
		AgentId: "keeper", WorkItemId: open, BlockedBy: proto.String(blockerOwnerDeleted),
	}))(t, "the deletion may be repeated")
}

// A8: more than goes into one frame is left to who deletes the agent.
func TestA8_ManyItemsOfADeletedAgent(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r := newRig(t)
	for range 400 {
		r.create(strings.Repeat("x", 1900))
	}
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentDeleting{
		Agent: &agentv1.Agent{AgentId: "keeper"},
	}})
	blocked := 0
	l := must.Value(r.service.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", PageSize: 500}))(t)
	for _, it := range l.GetWorkItems() {
		if it.GetBlockedBy() == blockerOwnerDeleted {
			blocked++
		}
	}
	require.Greater(t, blocked, 100)
	require.Less(t, blocked, 400)
	for _, it := range l.GetWorkItems() {
		must.Value(r.client.UpdateWorkItem(planetest.As(t.Context(), rpc.RoleService), &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: it.GetWorkItemId(), BlockedBy: proto.String(blockerOwnerDeleted),
		}))(t)
		require.Equal(t, blockerOwnerDeleted, r.get(it.GetWorkItemId()).GetBlockedBy())
	}
}

// What is remembered of an agent that exists is forgotten once its deletion is known: a repeated creation is answered
// as before, another one is refused as by a server that never heard of the agent, and the name is kept nowhere (SPEC
// X16.2).
func TestA8_ADeletedAgentIsNotRemembered(t *testing.T) {
	r := newRig(t)
	req := &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: "one", RequestId: "r1"}
	first := must.Value(r.client.CreateWorkItem(r.ctx, req))(t)
	remembered := func() int {
		r.service.knownMu.RLock()
		defer r.service.knownMu.RUnlock()
		return len(r.service.known)
	}
	require.Equal(t, 1, remembered())
	r.agents["keeper"] = false
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentDeleting{
		Agent: &agentv1.Agent{AgentId: "keeper"},
	}})
	for range 2 {
		eventually(t, func() bool { return remembered() == 0 })
		again := must.Value(r.client.CreateWorkItem(r.ctx, req))(t)
		require.Equal(t, first.GetWorkItem().GetWorkItemId(), again.GetWorkItem().GetWorkItemId())
		_, err := r.client.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: "two"})
		require.ErrorIs(t, fault.From(err), fault.AgentDeleted)
		must.Value(r.client.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
		require.Zero(t, remembered())
		r.restart()
	}
}
