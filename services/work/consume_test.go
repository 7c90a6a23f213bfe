package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// The waiting plane is heard through its journal, and once: after a restart
// what was heard is not heard again (SPEC R8).
func TestX14_WaitsAreHeardOnceAcrossRestarts(t *testing.T) {
	r := newRig(t)
	writer := r.journals.NewWriter(t, "waiting", waitingv1.File_quartet_waiting_v1_waiting_event_proto)
	itemID := r.create("ship").GetWorkItemId()
	r.pick(itemID)
	w := &waitingv1.Wait{
		WaitId: "wt_00000000000000000000000001", AgentId: "keeper", WorkItemId: itemID,
		Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Reason: "a reply",
		Revision: 1, Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
	}
	say := func(payload *waitingv1.WaitRegistered) {
		writer.Write(&journal.Event{Namespace: "acme", AgentID: "keeper", WorkItemID: itemID, Payload: payload})
	}
	say(&waitingv1.WaitRegistered{Wait: w})
	eventually(t, func() bool { return r.get(itemID).GetBlockedBy() == "a reply" })
	require.False(t, r.get(itemID).GetIsCurrent())

	seen := len(r.events())
	r.restart()
	say(&waitingv1.WaitRegistered{Wait: w}) // known by its revision
	writer.Write(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitResolved{
		Wait: &waitingv1.Wait{
			WaitId: w.GetWaitId(), AgentId: "keeper", WorkItemId: itemID, Revision: 2,
			Status: waitingv1.WaitStatus_WAIT_STATUS_RESOLVED,
		}, Cause: waitingv1.WaitCause_WAIT_CAUSE_TASK_RESULT,
	}})
	eventually(t, func() bool { return r.get(itemID).GetBlockedBy() == "" })
	require.Len(t, r.events(), seen+1)
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 2*time.Millisecond)
}

// Whether the direct call or the event comes first, what an item's history says
// of a wait names who made it and who ended it; what the system did by itself
// is the system's (SPEC X4, W11).
func TestX4_WhatFollowsFromAnActIsTheActors(t *testing.T) {
	r := newRig(t)
	writer := r.journals.NewWriter(t, "waiting", waitingv1.File_quartet_waiting_v1_waiting_event_proto)
	itemID := r.create("ship").GetWorkItemId()
	keeper := journal.Actor{
		Namespace: "acme", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper", RunID: "run_1",
	}
	operator := journal.Actor{Namespace: "acme", Principal: "ann", Role: rpc.RoleOperator}
	outside := journal.Actor{Namespace: "acme", Principal: "trigger/trg_1", Role: rpc.RoleIntegration}
	system := *plane.System("acme")
	first := func(id string) *waitingv1.Wait {
		return &waitingv1.Wait{
			WaitId: "wt_0000000000000000000000000" + id, AgentId: "keeper", WorkItemId: itemID,
			Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Reason: "a reply",
			Revision: 1, Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
		}
	}
	later := func(id string, revision int64, status waitingv1.WaitStatus) *waitingv1.Wait {
		w := first(id)
		w.Revision, w.TriggerCount, w.Status = revision, revision-1, status
		return w
	}
	stands, ended := waitingv1.WaitStatus_WAIT_STATUS_ACTIVE, waitingv1.WaitStatus_WAIT_STATUS_CANCELLED
	for _, c := range []struct {
		by, want journal.Actor
		payload  proto.Message
		types    []string
	}{
		{keeper, keeper, &waitingv1.WaitRegistered{Wait: first("1")}, []string{"wait_attached", "focus_released"}},
		{outside, system, &waitingv1.WaitTriggered{Wait: later("1", 2, stands)}, []string{"wait_attached"}},
		{operator, operator, &waitingv1.WaitCancelled{Wait: later("1", 3, ended)}, []string{"wait_detached"}},
		{keeper, keeper, &waitingv1.WaitRegistered{Wait: first("2")}, []string{"wait_attached", "focus_released"}},
		{system, system, &waitingv1.WaitResolved{
			Wait:  later("2", 2, ended),
			Cause: waitingv1.WaitCause_WAIT_CAUSE_TIMER,
		}, []string{"wait_detached"}},
	} {
		if r.get(itemID).GetBlockedBy() == "" {
			r.pick(itemID)
		}
		before := len(r.events())
		writer.WriteAs(c.by, &journal.Event{
			Namespace: "acme", AgentID: "keeper", WorkItemID: itemID, Payload: c.payload,
		})
		eventually(t, func() bool { return len(r.events()) == before+len(c.types) })
		r.restart()
		require.Equal(t, c.types, planetest.Types(r.events()[before:]))
		for _, ev := range r.events()[before:] {
			require.Equal(t, c.want, journal.Actor{
				Namespace: ev.Namespace, Principal: ev.Principal, Role: ev.Role,
				AgentID: ev.ActorAgentID, RunID: ev.ActorRunID,
			}, ev.Type)
			require.Equal(t, "consume", ev.Method)
			require.Empty(t, ev.RequestHash, "it is no request of the actor's")
		}
	}
}
