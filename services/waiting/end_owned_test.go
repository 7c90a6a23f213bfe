package waiting

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
)

// tooMuch is how many intents and timers with long texts are more than the events of one command may hold.
const tooMuch = 250

// much gives an item, or for "" the agent, n intents, n timers, and a fifth as many triggers, with long texts. It
// returns the address of the last trigger.
func (r *rig) much(item string, n int) (token string) {
	r.t.Helper()
	long := strings.Repeat("x", 16<<10)
	for range n {
		must.Value(r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{
			AgentId: "keeper", WorkItemId: item, Condition: long,
		}))(r.t)
		must.Value(r.service.CreateTimer(r.agent(), &waitingv1.CreateTimerRequest{
			AgentId: "keeper", WorkItemId: item, Every: seconds(60), Description: long,
		}))(r.t)
	}
	for range n / 5 {
		token = must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
			AgentId: "keeper", WorkItemId: item, Description: long,
		}))(r.t).GetToken()
	}
	return token
}

// living returns how many waits, triggers and timers of the agent have not ended.
func (r *rig) living() (n [3]int) {
	r.read(func(a *agentWaits) {
		n = [3]int{len(a.waits.Living()), len(a.triggers.Living()), len(a.timers.Living())}
	})
	return n
}

// remembered returns how many completed items are remembered.
func (r *rig) remembered() (n int) {
	r.read(func(a *agentWaits) { n = len(a.items.IDs()) })
	return n
}

// read calls fn with what the agent has, while nothing changes it.
func (r *rig) read(fn func(a *agentWaits)) {
	_, _, _ = plane.View(r.agent(), r.service.engine, "keeper", func(st *State) (struct{}, error) {
		fn(st.agents.Get(plane.KeyOf("acme", "keeper")))
		return struct{}{}, nil
	})
}

// An agent may have more than one command can end. All of it ends nevertheless, over several
// commands and a restart in between, and until then it accepts and does nothing (SPEC A8.3).
func TestA8_ADeletedAgentHadMuch(t *testing.T) {
	r := newRig(t)
	token := r.much("", tooMuch)
	r.service.due.Stop() // what the first command leaves stays until the restart
	before := len(r.events())
	r.hear("", &agentv1.AgentDeleting{
		Agent: &agentv1.Agent{AgentId: "keeper", Lifecycle: agentv1.Lifecycle_LIFECYCLE_DELETING},
	})
	require.Greater(t, len(r.events()), before+1)
	left := r.living()
	require.Less(t, left[0], 250)
	require.Equal(t, [2]int{50, 250}, [2]int(left[1:]))
	require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: token}), fault.TriggerRevoked)
	_, err := r.service.CheckDelivery(r.agent(), &waitingv1.CheckDeliveryRequest{Token: token})
	require.ErrorIs(t, err, fault.TriggerRevoked)
	r.clk.Advance(seconds(60).AsDuration())
	r.restart()
	r.eventually(func() bool { return r.living() == [3]int{} })
	r.idle()
	require.Zero(t, r.service.due.Len())
	for _, ev := range r.since(before) {
		require.NotContains(t, []string{"timer_fired", "trigger_delivered", "deliveries_counted"}, ev)
	}
	for _, ev := range r.events()[before:] {
		if c, ok := ev.Payload.(*waitingv1.WaitCancelled); ok {
			require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_AGENT_DELETED, c.GetReason())
		}
	}
}

// A trigger of a completed item ignores what it receives for as long as it lives, however many items were
// completed since; and the end of that item goes on after a restart (SPEC P3.5, P9).
func TestP3_ATriggerOfACompletedItemStaysSo(t *testing.T) {
	r := newRig(t)
	hint, content := r.trigger(itemA, wakeHint), r.trigger(itemA, contentful)
	r.much(itemB, 25)
	r.service.due.Stop() // of itemB the first command leaves something until the restart
	complete := func(item string) {
		r.hear(item, &workv1.WorkItemCompleted{WorkItem: &workv1.WorkItemRecord{WorkItemId: item}})
	}
	complete(itemA)
	complete(itemB)
	for i := range 300 {
		complete(fmt.Sprintf("wi_00000000000000000000000%03d", i))
	}
	for range 2 {
		for _, to := range []string{hint.GetToken(), content.GetToken()} {
			before := len(r.events())
			out := r.deliver(to, "late")
			require.Equal(t, waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_IGNORED, out.GetOutcome())
			require.Equal(t, "work_item_completed", out.GetReason())
			require.Equal(t, []string{"deliveries_counted"}, r.since(before))
		}
		r.restart()
		r.eventually(func() bool { return r.living() == [3]int{0, 7, 0} })
		r.idle()
	}
	require.Equal(t, 258, r.remembered())
	must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
		AgentId: "keeper", TriggerId: hint.GetTrigger().GetTriggerId(),
	}))(t)
	must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
		AgentId: "keeper", TriggerId: content.GetTrigger().GetTriggerId(),
	}))(t)
	complete("wi_0000000000000000000000000z")
	require.Equal(t, 257, r.remembered(), "itemB has triggers, itemA has none any more")
}

// An item may have more than one command can end: the first command is followed by others (SPEC P9).
func TestP9_ACompletedItemHadMuch(t *testing.T) {
	r := newRig(t)
	r.much(itemA, tooMuch)
	must.Value(r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{AgentId: "keeper", WorkItemId: itemB}))(t)
	before := len(r.events())
	r.hear(itemA, &workv1.WorkItemCompleted{WorkItem: &workv1.WorkItemRecord{WorkItemId: itemA}})
	r.eventually(func() bool { return r.living() == [3]int{1, 50, 0} })
	r.idle()
	require.Len(t, r.events(), before+501)
	for _, ev := range r.events()[before:] {
		require.Equal(t, itemA, ev.WorkItemID)
	}
}

// No event of this plane is needed once it is old: its records have all that it reads (SPEC P10).
func TestP10_NoOldEventIsNeeded(t *testing.T) {
	r := newRig(t)
	trigger := r.trigger("", waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED)
	wait := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput}).GetWait()
	events := r.events()
	require.NotEmpty(t, events)
	require.Len(t, planetest.Forget(t, r.journals, Plane, registry, NewState(), r.clk.Now().Add(time.Hour)),
		len(events))
	require.Equal(t, wait.GetRevision(), r.wait(wait.GetWaitId()).GetRevision())
	r.deliver(trigger.GetToken(), "hello")
	list, err := r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{AgentId: "keeper"})
	require.NoError(t, err)
	require.Len(t, list.GetWaits(), 2, "with that of the trigger")
}
