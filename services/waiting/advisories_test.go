package waiting

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// A wait that nothing can end says so, where it is made and where it is read
// (SPEC P8).
func TestP8_WeakWaits(t *testing.T) {
	cancel := func(r *rig, id string) {
		must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
			AgentId: "keeper", TriggerId: id,
		}))(r.t)
	}
	for name, c := range map[string]struct {
		setup func(r *rig) string // gives the resource
		req   *waitingv1.WaitForRequest
		want  waitingv1.WeakReason
	}{
		"an operator comes by himself": {nil, &waitingv1.WaitForRequest{Wake: operatorInput}, notWeak},
		"a task ends by itself":        {nil, &waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX}, notWeak},
		"a time comes":                 {nil, &waitingv1.WaitForRequest{Wake: timer, After: seconds(9)}, notWeak},
		"no trigger at all":            {nil, &waitingv1.WaitForRequest{Wake: external}, weakNoTrigger},
		"a recheck": {
			nil, &waitingv1.WaitForRequest{Wake: external, RecheckAfter: seconds(9)},
			notWeak,
		},
		"its item's trigger": {
			func(r *rig) string { r.trigger(itemA, wakeHint); return "" },
			&waitingv1.WaitForRequest{Wake: external}, notWeak,
		},
		"the agent's trigger": {
			func(r *rig) string { r.trigger("", wakeHint); return "" },
			&waitingv1.WaitForRequest{Wake: external}, notWeak,
		},
		"another item's trigger": {
			func(r *rig) string { r.trigger(itemB, wakeHint); return "" },
			&waitingv1.WaitForRequest{Wake: external}, weakNoTrigger,
		},
		"the trigger": {
			func(r *rig) string { return r.trigger(itemB, wakeHint).GetTrigger().GetTriggerId() },
			&waitingv1.WaitForRequest{Wake: external}, notWeak,
		},
		"a revoked trigger": {func(r *rig) string {
			id := r.trigger(itemA, wakeHint).GetTrigger().GetTriggerId()
			cancel(r, id)
			return id
		}, &waitingv1.WaitForRequest{Wake: external}, weakTriggerDead},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if c.setup != nil {
				c.req.Resource = c.setup(r)
			}
			c.req.WorkItemId = itemA
			resp := r.waitFor(c.req)
			require.Equal(t, c.want, resp.GetWait().GetWeakReason())
			require.Equal(t, c.want, r.wait(resp.GetWait().GetWaitId()).GetWeakReason())
			l := must.Value(r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{AgentId: "keeper"}))(t)
			require.Equal(t, c.want, l.GetWaits()[0].GetWeakReason())
			if c.want == notWeak {
				require.Empty(t, resp.GetWarnings())
				return
			}
			require.Len(t, resp.GetWarnings(), 1)
			require.Equal(t, waitingv1.WaitWarningKind_WAIT_WARNING_KIND_WEAK_WAIT, resp.GetWarnings()[0].GetKind())
			require.NotEmpty(t, resp.GetWarnings()[0].GetMessage())
			events := r.events()
			require.Equal(t, c.want, events[len(events)-1].Payload.(*waitingv1.WaitRegistered).GetWeakReason())
		})
	}
}

// Weakness follows the facts: a trigger made later strengthens a wait, its end
// weakens it again and says whom, and a reminder that is over is none.
func TestP8_WeaknessIsDerived(t *testing.T) {
	r := newRig(t)
	intent, err := r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{AgentId: "keeper", WorkItemId: itemA})
	require.NoError(t, err)
	require.Equal(t, weakNoTrigger, intent.GetWait().GetWeakReason())
	require.Len(t, intent.GetWarnings(), 1)
	reminded := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, RecheckAfter: seconds(60)}).
		GetWait().GetWaitId()
	ids := []string{intent.GetWait().GetWaitId(), reminded}
	weak := func() []waitingv1.WeakReason {
		return []waitingv1.WeakReason{r.wait(ids[0]).GetWeakReason(), r.wait(ids[1]).GetWeakReason()}
	}
	require.Equal(t, []waitingv1.WeakReason{weakNoTrigger, notWeak}, weak())

	one, two := r.trigger(itemA, wakeHint).GetTrigger().GetTriggerId(), r.trigger("", wakeHint).GetTrigger().
		GetTriggerId()
	r.clk.Advance(time.Minute)
	require.Equal(t, []waitingv1.WeakReason{notWeak, notWeak}, weak())
	end := func(id string) []string {
		must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
			AgentId: "keeper", TriggerId: id,
		}))(t)
		events := r.events()
		return events[len(events)-1].Payload.(*waitingv1.ExternalTriggerCancelled).GetWeakenedWaitIds()
	}
	require.Empty(t, end(one), "the other one can still end them")
	require.Equal(t, ids, end(two))
	require.Equal(t, []waitingv1.WeakReason{weakNoTrigger, weakNoTrigger}, weak())

	must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", ExpiresAt: timestamppb.New(r.clk.Now().Add(time.Second)),
	}))(t)
	require.Equal(t, []waitingv1.WeakReason{notWeak, notWeak}, weak())
	r.clk.Advance(time.Second)
	require.Equal(t, []waitingv1.WeakReason{weakNoTrigger, weakNoTrigger}, weak(),
		"at its time, whether or not its end was written")
}

// A namespace's default recheck goes with every wait that does not say.
func TestP8_DefaultRecheck(t *testing.T) {
	r := newRig(t)
	r.down()
	r.cfg.DefaultRecheck = time.Hour
	r.up()
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA})
	require.Equal(t, epoch.Add(time.Hour), w.GetWait().GetRecheckAt().AsTime())
	require.Empty(t, w.GetWarnings(), "it is no weak wait then")
	told := r.others.attaches()
	require.Equal(t, epoch.Add(time.Hour), told[len(told)-1].GetWait().GetRecheckAt().AsTime())
	require.Equal(t, epoch.Add(time.Second),
		r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, RecheckAfter: seconds(1)}).GetWait().
			GetRecheckAt().AsTime())

	r.down()
	r.cfg.NamespaceRechecks = map[string]time.Duration{"acme": 2 * time.Hour, "other": 0}
	r.up()
	require.Equal(t, epoch.Add(2*time.Hour),
		r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemB}).GetWait().GetRecheckAt().AsTime())
	require.Nil(t, r.service.recheck("other", &waitingv1.WaitForRequest{}))
	for _, bad := range []Config{
		{DefaultRecheck: -1},
		{DefaultRecheck: fault.Horizon + 1},
		{NamespaceRechecks: map[string]time.Duration{"a": -1}},
	} {
		must.Fail(New(bad, r.service.deps))(t, "default recheck")
	}
}

// An agent is reminded of its own wait once, and the wait stays active (SPEC P5). The work
// plane sends the reminders of items.
func TestP5_AnAgentIsRemindedOfItsOwnWait(t *testing.T) {
	r := newRig(t)
	own := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, RecheckAfter: seconds(60)}).GetWait().GetWaitId()
	r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, RecheckAfter: seconds(60), WorkItemId: itemA})
	reminders := func() (ids []string) {
		for _, ev := range r.events() {
			if p, ok := ev.Payload.(*waitingv1.WaitRechecked); ok {
				ids = append(ids, p.GetWait().GetWaitId())
			}
		}
		return ids
	}
	r.clk.Advance(time.Minute - time.Microsecond)
	r.service.fire([]string{dueKey(dueRecheck, "acme", "keeper", own)})
	require.Empty(t, reminders(), "not before its time")
	r.down()
	r.clk.Advance(time.Hour)
	r.up()
	r.eventually(func() bool { return len(reminders()) == 1 })
	require.Equal(t, []string{own}, reminders())
	require.Equal(t, stands, r.wait(own).GetStatus())
	require.Equal(t, r.clk.Now(), r.wait(own).GetRecheckConsumedAt().AsTime())
	r.service.fire([]string{
		dueKey(dueRecheck, "acme", "keeper", own),
		dueKey(dueRecheck, "acme", "keeper", "wt_unknown"),
	})
	r.restart()
	r.clk.Advance(time.Hour)
	require.Len(t, reminders(), 1, "once")

	ended := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, RecheckAfter: seconds(60)}).GetWait().GetWaitId()
	must.Value(r.service.CancelWait(r.agent(), &waitingv1.CancelWaitRequest{AgentId: "keeper", WaitId: ended}))(t)
	_, set := r.service.due.At(dueKey(dueRecheck, "acme", "keeper", ended))
	require.False(t, set)
}

// A wait of an item that reminds of itself is not weak: not when it is made, nor
// when the reminder is set later, until it was given (SPEC P5, P8).
func TestP8_AnItemsReminderIsAWayOut(t *testing.T) {
	r := newRig(t)
	remind := func(it *workv1.WorkItem) { r.others.set(func() { r.others.recheck = it }) }
	at := timestamppb.New(epoch.Add(time.Minute))
	remind(&workv1.WorkItem{RecheckAt: at})
	made := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA})
	require.Empty(t, made.GetWarnings())
	intent, err := r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{AgentId: "keeper", WorkItemId: itemA})
	require.NoError(t, err)
	require.Empty(t, intent.GetWarnings())
	own := r.waitFor(&waitingv1.WaitForRequest{Wake: external})
	require.Len(t, own.GetWarnings(), 1, "the agent's own wait has no item")

	weak := func() []waitingv1.WeakReason {
		l := must.Value(r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{AgentId: "keeper"}))(t)
		var all []waitingv1.WeakReason
		for _, w := range l.GetWaits() {
			require.Equal(t, w.GetWeakReason(), r.wait(w.GetWaitId()).GetWeakReason())
			all = append(all, w.GetWeakReason())
		}
		return all
	}
	reminded, forgotten := []waitingv1.WeakReason{notWeak, notWeak, weakNoTrigger}, []waitingv1.WeakReason{
		weakNoTrigger, weakNoTrigger, weakNoTrigger,
	}
	require.Equal(t, reminded, weak())
	remind(&workv1.WorkItem{RecheckAt: at, RecheckConsumedAt: at})
	require.Equal(t, forgotten, weak(), "it was given")
	remind(nil)
	require.Equal(t, forgotten, weak())
	require.Len(t, r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemB}).GetWarnings(), 1)
	remind(&workv1.WorkItem{RecheckAt: at})
	require.Equal(t, append(reminded, notWeak), weak(), "set later")
}

// Who has to answer: the supervisor of a child that waits for an operator, and the owner of a
// wait for the task of a child that asks. A reminder ends neither. What a turn reads, and
// everybody while the agent plane cannot be called, is not told (SPEC A14.3).
func TestA14_AWaitThatNeedsAnAnswerIsListedAsWeak(t *testing.T) {
	r := newRig(t)
	operator := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput, WorkItemId: itemA, RecheckAfter: seconds(60)}).
		GetWait().GetWaitId()
	task := r.waitFor(&waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX, WorkItemId: itemB}).GetWait().
		GetWaitId()
	weak := func(req *waitingv1.ListWaitsRequest) []waitingv1.WeakReason {
		req.AgentId = "keeper"
		l := must.Value(r.service.ListWaits(r.agent(), req))(t)
		require.Len(t, l.GetWaits(), 2)
		return []waitingv1.WeakReason{l.GetWaits()[0].GetWeakReason(), l.GetWaits()[1].GetWeakReason()}
	}
	require.Equal(t, []waitingv1.WeakReason{notWeak, notWeak}, weak(&waitingv1.ListWaitsRequest{}))
	r.others.set(func() { r.others.supervisor, r.others.askedBy = "lead", []string{taskX} })
	both := []waitingv1.WeakReason{
		waitingv1.WeakReason_WEAK_REASON_SUPERVISOR_MUST_ANSWER,
		waitingv1.WeakReason_WEAK_REASON_CHILD_ASKS,
	}
	require.Equal(t, both, weak(&waitingv1.ListWaitsRequest{}))
	require.Equal(t, both[0], r.wait(operator).GetWeakReason())
	require.Equal(t, both[1], r.wait(task).GetWeakReason())
	require.Equal(t, []waitingv1.WeakReason{notWeak, notWeak},
		weak(&waitingv1.ListWaitsRequest{WaitIds: []string{operator, task}}))
	r.others.set(func() { r.others.down = true })
	require.Equal(t, []waitingv1.WeakReason{notWeak, notWeak}, weak(&waitingv1.ListWaitsRequest{}))
	r.others.set(func() { r.others.down, r.others.supervisor, r.others.askedBy = false, "", []string{taskY} })
	require.Equal(t, []waitingv1.WeakReason{notWeak, notWeak}, weak(&waitingv1.ListWaitsRequest{}))
}
