package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// The waiting plane is heard through its journal, and once: after a restart
// what was heard is not heard again (ARCHITECTURE R8).
func TestX14_WaitsAreHeardOnceAcrossRestarts(t *testing.T) {
	r := newRig(t)
	voice := r.journals.NewVoice(t, "waiting", waitingv1.File_quartet_waiting_v1_waiting_event_proto)
	itemID := r.create("ship").GetWorkItemId()
	r.pick(itemID)
	w := &waitingv1.Wait{
		WaitId: "wt_00000000000000000000000001", AgentId: "keeper", WorkItemId: itemID, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
		Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Reason: "a reply", Revision: 1, Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
	}
	say := func(payload *waitingv1.WaitRegistered) {
		voice.Say(&journal.Event{Namespace: "acme", AgentID: "keeper", WorkItemID: itemID, Payload: payload})
	}
	say(&waitingv1.WaitRegistered{Wait: w})
	eventually(t, func() bool { return r.get(itemID).GetBlockedBy() == "a reply" })
	require.False(t, r.get(itemID).GetIsCurrent())

	seen := len(r.events())
	r.restart()
	say(&waitingv1.WaitRegistered{Wait: w}) // known by its revision
	voice.Say(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitResolved{Wait: &waitingv1.Wait{
		WaitId: w.GetWaitId(), AgentId: "keeper", WorkItemId: itemID, Revision: 2, Status: waitingv1.WaitStatus_WAIT_STATUS_RESOLVED,
	}, Cause: "task_result"}})
	eventually(t, func() bool { return r.get(itemID).GetBlockedBy() == "" })
	require.Len(t, r.events(), seen+1)
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 10*time.Second, 2*time.Millisecond)
}
