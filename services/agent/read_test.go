package agent

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/runners"
	"quartet/services/agent/turns"
)

// A turn reads the facts of other planes once each, whatever its message is about, and
// says which positions the answering planes must have consumed (SPEC P2).
func TestP2_ATurnReadsItsFactsOnce(t *testing.T) {
	task := func(r *rig) {
		r.hear(&journal.Event{
			Type: "task_completed", Namespace: "acme", AgentID: "keeper",
			Payload: &taskv1.TaskCompleted{
				Task: &taskv1.Task{TaskId: "tsk_1", AgentId: "keeper", WorkItemId: "wi_1"},
			},
		})
	}
	callback := func(r *rig) {
		r.hear(&journal.Event{
			Type: "trigger_delivered", Namespace: "acme", AgentID: "keeper",
			Payload: &waitingv1.TriggerDelivered{
				DeliveryId: "dlv_1", Trigger: &waitingv1.Trigger{TriggerId: "trg_1", AgentId: "keeper"},
				Contentful: true, Body: []byte("news"), WaitIds: []string{"wt_1"},
			},
		})
	}
	timer := func(r *rig) {
		r.hear(&journal.Event{Type: "timer_fired", Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.TimerFired{
			Timer: &waitingv1.Timer{TimerId: "tmr_1"},
		}})
	}
	for name, c := range map[string]struct {
		queue func(r *rig)
		reads []string
	}{
		"an operator's message": {
			func(r *rig) { r.send("keeper", "go on", normal) },
			[]string{"ListWaits after agent/0@3", "GetWorkQueue after waiting/0@9"},
		},
		"a result of an item's task": {task, []string{"ListWaits", "GetWorkQueue after waiting/0@9"}},
		"a delivery":                 {callback, []string{"ListWaits", "GetWorkQueue"}},
		"a delivery and a wake": {
			func(r *rig) { r.wakeByTrigger(); callback(r) },
			[]string{"ListWaits", "GetWorkQueue"},
		},
		"a timer, which ends no wait": {timer, []string{"GetWorkQueue"}},
		"an operator's message, a wake": {
			func(r *rig) { r.wakeByTrigger(); r.send("keeper", "go on", normal) },
			[]string{"ListWaits after agent/0@4", "GetWorkQueue after waiting/0@9"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			r.others.set(func() { r.others.waitRevision = 9 })
			c.queue(r)
			r.take("keeper")
			require.Equal(t, c.reads, r.others.factReads())
		})
	}
}

// A timer's message says how often it fired, also if the agent was woken meanwhile (SPEC C7.3).
func TestC7_AWakeHidesNoFirings(t *testing.T) {
	for _, woken := range []bool{false, true} {
		r := newRig(t)
		r.spawn("keeper")
		r.others.set(func() { r.others.firings = 2 })
		if woken {
			r.wakeByTrigger()
		}
		r.hear(&journal.Event{Type: "timer_fired", Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.TimerFired{
			Timer: &waitingv1.Timer{TimerId: "tmr_1", FireCount: 1},
		}})
		require.Contains(t, r.take("keeper").GetContext().GetText(),
			"Timer tmr_1 fired 3 times while this message waited", "woken: %v", woken)
	}
}

// A waiting plane that is down does not hold a message back.
func TestD5_AMessageIsNotHeldBackByAPlaneThatIsDown(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() { r.others.waitsErr = fault.NotReady.New("starting") })
	r.send("keeper", "go on", normal)
	require.Equal(t, "go on", r.take("keeper").GetMessage().GetText())
	require.Equal(t, []string{"ListWaits after agent/0@3", "GetWorkQueue"}, r.others.factReads())
}

func recheckOf(itemID string) *agentv1.Decision {
	return &agentv1.Decision{
		Action: agentv1.DecisionAction_DECISION_ACTION_TICK, TickReason: agentv1.TickReason_TICK_REASON_RECHECK,
		Reason: "recheck_due", WorkItemId: itemID, WorkItemRevision: 3,
	}
}

// lastDrop is why the newest event dropped a message.
func (r *rig) lastDrop() string {
	r.t.Helper()
	events := r.events()
	p, ok := events[len(events)-1].Payload.(*agentv1.MessageDropped)
	require.True(r.t, ok, events[len(events)-1].Type)
	return p.GetMessage().GetStateReason()
}

// A reminder of what was completed, or is over, is dropped with evidence
// (SPEC D4).
func TestD4_AStaleRecheckIsDropped(t *testing.T) {
	open, completed := workv1.WorkItemState_WORK_ITEM_STATE_OPEN, workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED
	at := timestamppb.New(epoch)
	for name, c := range map[string]struct {
		item *workv1.WorkItem
		drop string
	}{
		"it stands": {
			&workv1.WorkItem{WorkItemId: "wi_1", State: open, RecheckAt: at, RecheckConsumedAt: at}, "",
		},
		"it is not yet marked":     {&workv1.WorkItem{WorkItemId: "wi_1", State: open, RecheckAt: at}, ""},
		"the item was completed":   {&workv1.WorkItem{WorkItemId: "wi_1", State: completed}, "completed"},
		"the wait it was for over": {&workv1.WorkItem{WorkItemId: "wi_1", State: open}, "is over"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			r.others.set(func() {
				r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
					q := &workv1.GetWorkQueueResponse{Revision: 7}
					if c.item.GetState() == open {
						q.Blocked = []*workv1.WorkItem{c.item}
					}
					return q, nil
				}
			})
			require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(r.facts("keeper").GetFactsRevision(),
				recheckOf("wi_1")).GetResult())
			if c.drop == "" {
				require.Equal(t, agentv1.TickReason_TICK_REASON_RECHECK, r.take("keeper").GetMessage().GetTick().
					GetReason())
				return
			}
			require.True(t, r.poll("keeper").GetPending())
			require.Contains(t, r.lastDrop(), c.drop)
			require.False(t, r.facts("keeper").GetTickPending())
		})
	}
}

func wakeTick() *agentv1.Decision {
	return &agentv1.Decision{
		Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
		TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered",
	}
}

func (r *rig) triggered(waitID string) {
	r.hear(&journal.Event{
		Type: "wait_triggered", Namespace: "acme", AgentID: "keeper",
		Payload: &waitingv1.WaitTriggered{
			Wait: &waitingv1.Wait{WaitId: waitID, AgentId: "keeper"}, TriggerId: "trg_1", WakeAgent: true,
		},
	})
}

// A wake whose wait was cancelled or seen by another turn has nothing left to
// tell: its tick is dropped, and it makes no other (SPEC D4, P7).
func TestD4_AStaleWakeIsDropped(t *testing.T) {
	own := &waitingv1.Wait{
		WaitId: "wt_1", AgentId: "keeper", Triggered: true, TriggerCount: 1,
		Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
	}
	for name, c := range map[string]struct {
		waits []*waitingv1.Wait
		also  func(r *rig)
		drop  string
	}{
		"the wait stands": {[]*waitingv1.Wait{own}, nil, ""},
		"another took its place": {
			[]*waitingv1.Wait{{WaitId: "wt_2", Triggered: true, Status: own.GetStatus()}}, nil, "",
		},
		"the wait was cancelled": {nil, nil, "are over"},
		"the trigger was consumed": {
			[]*waitingv1.Wait{{WaitId: "wt_1", TriggerCount: 1, ConsumedCount: 1, Status: own.GetStatus()}},
			nil,
			"are over",
		},
		"another wake is about more":        {nil, func(r *rig) { r.wakeByTrigger() }, ""},
		"a reminder of a wait of the agent": {nil, func(r *rig) { r.recheck() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			r.triggered("wt_1")
			require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(r.facts("keeper").GetFactsRevision(),
				wakeTick()).GetResult())
			if c.also != nil {
				c.also(r)
			}
			r.restart()
			r.others.set(func() { r.others.waits = c.waits })
			if c.drop == "" {
				require.Contains(t, r.take("keeper").GetContext().GetText(), "The agent itself was woken by")
				return
			}
			require.True(t, r.poll("keeper").GetPending())
			require.Contains(t, r.lastDrop(), c.drop)
			require.False(t, r.facts("keeper").GetWakeHint(), "or the scheduler would queue the same tick without end")
			r.restart()
			require.False(t, r.facts("keeper").GetWakeHint())
			r.triggered("wt_1")
			require.True(t, r.facts("keeper").GetWakeHint(), "the next wake is news")
		})
	}
}

func (r *rig) wakeByTrigger() {
	r.hear(&journal.Event{
		Type: "trigger_delivered", Namespace: "acme", AgentID: "keeper",
		Payload: &waitingv1.TriggerDelivered{
			DeliveryId: "dlv_9", Trigger: &waitingv1.Trigger{TriggerId: "trg_9", AgentId: "keeper"}, WakeAgent: true,
		},
	})
}

func (r *rig) recheck() {
	r.hear(&journal.Event{
		Type: "wait_rechecked", Namespace: "acme", AgentID: "keeper",
		Payload: &waitingv1.WaitRechecked{Wait: &waitingv1.Wait{WaitId: "wt_1", AgentId: "keeper"}},
	})
}

// What a turn in between has told needs no tick of its own; should that turn
// fail, it does (SPEC P7).
func TestD4_AWakeThatATurnHasShown(t *testing.T) {
	for outcome, dropped := range map[agentv1.TurnOutcome]bool{done: true, fatal: false} {
		r := newRig(t)
		r.spawn("keeper")
		r.wakeByTrigger()
		require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(r.facts("keeper").GetFactsRevision(),
			wakeTick()).GetResult())
		r.send("keeper", "first", agentv1.Priority_PRIORITY_NEXT)
		a := r.take("keeper")
		require.Equal(t, "first", a.GetMessage().GetText())
		require.Contains(t, a.GetContext().GetText(), "woken by trigger trg_9")
		r.finish(a, outcome)
		resp := r.poll("keeper")
		require.Equal(t, dropped, resp.GetPending(), outcome)
		if dropped {
			require.Contains(t, r.lastDrop(), "a turn since has told")
		}
	}
}

// News that comes while a tick is looked at keeps the tick.
func TestP7_AWakeBetweenLookAndDropIsKept(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.triggered("wt_1")
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(r.facts("keeper").GetFactsRevision(),
		wakeTick()).GetResult())
	k := plane.Key{Namespace: "acme", ID: "keeper"}
	o, free, err := r.service.NextCandidate(r.runner(), rpc.ActorFrom(r.runner()), &agentv1.AcquireTurnRequest{})
	require.NoError(t, err)
	require.Equal(t, k, o.Agent)
	r.triggered("wt_2")
	require.ErrorIs(t, r.service.DropStale(context.Background(), o, "stale"), turns.ErrNotTaken)
	free(false)
	require.True(t, r.facts("keeper").GetTickPending())
	require.True(t, r.facts("keeper").GetWakeHint())
	var woken *agentv1.AgentWoken
	for _, ev := range slices.Backward(r.events()) {
		if p, ok := ev.Payload.(*agentv1.AgentWoken); ok {
			woken = p
			break
		}
	}
	require.Equal(t, []string{"wt_1", "wt_2"}, woken.GetWaitIds(), "what the first was about is not lost in the second")
}

// Who holds the turn is said, and why it is not the caller (SPEC A6).
func TestA6_AStaleRunGetsTheReason(t *testing.T) {
	r, a := turn(t)
	other := "run_00000000000000000000000zzz"
	_, err := r.service.RenewTurn(r.runner(), &agentv1.RenewTurnRequest{AgentId: "keeper", TurnId: a.GetTurn().
		GetTurnId(), RunId: other})
	require.ErrorIs(t, err, fault.RunStale)
	f := fault.From(err)
	require.Equal(t, "another_run", f.Metadata()["stale_reason"])
	require.NotContains(t, f.Message(), "()")
	r.clk.Advance(runners.Term)
	r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
	for _, run := range []string{other, a.GetTurn().GetRunId()} {
		_, err = r.service.RenewTurn(r.runner(), &agentv1.RenewTurnRequest{AgentId: "keeper", TurnId: a.GetTurn().
			GetTurnId(), RunId: run})
		require.ErrorIs(t, err, fault.RunStale)
		require.Equal(t, "lease_lost", fault.From(err).Metadata()["stale_reason"])
	}
}
