package agent

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/leases"
	"quartet/services/agent/projection"
	"quartet/services/agent/ref"
	"quartet/services/agent/turns"
)

func operatorWait(waitID, itemID string, at time.Time) *waitingv1.Wait {
	return &waitingv1.Wait{
		WaitId: waitID, AgentId: "keeper", WorkItemId: itemID, Kind: waitingv1.WaitKind_WAIT_KIND_OPERATOR, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
		Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE, CreatedAt: timestamppb.New(at),
	}
}

// Which wait a message will end is the waiting plane's rule (SPEC P2).
func TestP2_WhatAMessageWillEnd(t *testing.T) {
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	one, two := operatorWait("wt_1", "wi_1", at(0)), operatorWait("wt_2", "wi_2", at(1))
	external := operatorWait("wt_3", "wi_1", at(0))
	external.Kind = waitingv1.WaitKind_WAIT_KIND_EXTERNAL
	intent := operatorWait("wt_4", "wi_1", at(0))
	intent.Mode = waitingv1.WaitMode_WAIT_MODE_INTENT
	own := operatorWait("wt_5", "", at(0))
	over := operatorWait("wt_6", "wi_1", at(0))
	over.Status = waitingv1.WaitStatus_WAIT_STATUS_RESOLVED
	const prompt, task = agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT
	for name, c := range map[string]struct {
		waits []*waitingv1.Wait
		kind  agentv1.MessageKind
		item  string
		at    time.Time
		want  bool
	}{
		"no wait":                   {nil, prompt, "", at(9), false},
		"the only one":              {[]*waitingv1.Wait{one}, prompt, "", at(9), true},
		"the agent's own":           {[]*waitingv1.Wait{own}, prompt, "", at(9), true},
		"the named item's":          {[]*waitingv1.Wait{one, two}, prompt, "wi_2", at(9), true},
		"two and none named":        {[]*waitingv1.Wait{one, two}, prompt, "", at(9), false},
		"another item is named":     {[]*waitingv1.Wait{one}, prompt, "wi_2", at(9), false},
		"younger than the message":  {[]*waitingv1.Wait{two}, prompt, "", at(1), false},
		"one of two is younger":     {[]*waitingv1.Wait{one, two}, prompt, "", at(1), true},
		"of another kind":           {[]*waitingv1.Wait{external, intent}, prompt, "", at(9), false},
		"it ended":                  {[]*waitingv1.Wait{over}, prompt, "", at(9), false},
		"another message's concern": {[]*waitingv1.Wait{one}, task, "", at(9), false},
	} {
		m := &agentv1.Message{Kind: c.kind, WorkItemId: c.item, CreatedAt: timestamppb.New(c.at)}
		require.Equal(t, c.want, projection.Awaits(c.waits, m), name)
	}
	// A child's supervisor answers it as an operator does; the runtime does not.
	m := &agentv1.Message{Kind: agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP, Origin: agentv1.Origin_ORIGIN_PARENT, CreatedAt: timestamppb.New(at(9))}
	require.True(t, projection.Awaits([]*waitingv1.Wait{one}, m))
	m.Origin = agentv1.Origin_ORIGIN_SYSTEM
	require.False(t, projection.Awaits([]*waitingv1.Wait{one}, m))
}

// A turn that an operator's message begins shows what the message did: the wait
// is over, and the item may go on (SPEC P2).
func TestP2_ATurnWaitsUntilTheAnswerIsHeard(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	item := func(waits ...*workv1.AttachedWait) *workv1.GetWorkQueueResponse {
		it := &workv1.WorkItem{WorkItemId: "wi_1", State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN, Waits: waits, SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE}
		q := &workv1.GetWorkQueueResponse{AgentId: "keeper", Counts: &workv1.WorkQueueCounts{}}
		if len(waits) > 0 {
			it.SchedulingState = workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR
			q.WaitingForOperator = []*workv1.WorkItem{it}
			return q
		}
		q.QueuedRunnable = []*workv1.WorkItem{it}
		return q
	}
	looks := make(chan struct{}, 64)
	var queue *workv1.GetWorkQueueResponse
	r.others.set(func() {
		queue = item(&workv1.AttachedWait{WaitId: "wt_1", Kind: workv1.WaitKind_WAIT_KIND_OPERATOR, Mode: workv1.WaitMode_WAIT_MODE_WAIT})
		r.others.waits = []*waitingv1.Wait{operatorWait("wt_1", "wi_1", epoch.Add(-time.Minute))}
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			select {
			case looks <- struct{}{}:
			default:
			}
			return queue, nil
		}
	})
	r.send("keeper", "yes, go on", normal)
	got, failed := make(chan *agentv1.AcquireTurnResponse, 1), make(chan error, 1)
	go func() {
		resp, err := r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{Wait: durationpb.New(0)})
		failed <- err
		got <- resp
	}()
	look := func(n int) {
		for range n {
			select {
			case <-looks:
			case <-time.After(10 * time.Second):
				require.Fail(t, "the planes are not looked at again")
			}
		}
	}
	look(2)
	r.others.set(func() { r.others.waits = nil }) // the waiting plane has heard
	look(2)
	require.Empty(t, got, "the work plane has not")
	r.others.set(func() { queue = item() })
	require.NoError(t, <-failed)
	resp := <-got
	require.Contains(t, resp.GetContext().GetText(), "Queued and runnable")
	require.NotContains(t, resp.GetContext().GetText(), "Waiting for an operator")
}

// The same of a delivery: the item shows that it was triggered, and the turn
// counts the trigger as shown.
func TestP2_ATurnWaitsUntilTheTriggerIsHeard(t *testing.T) {
	for name, shown := range map[string]bool{"an item of the queue": true, "an item beyond its caps": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			w := &waitingv1.Wait{WaitId: "wt_1", WorkItemId: "wi_1", Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, TriggerCount: 2, ConsumedCount: 1, Triggered: true, Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE}
			looks := 0
			it := func(count int64) *workv1.WorkItem {
				return &workv1.WorkItem{WorkItemId: "wi_1", State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN, Waits: []*workv1.AttachedWait{{WaitId: "wt_1", TriggerCount: count, ConsumedCount: 1}}}
			}
			r.others.set(func() {
				r.others.waits = []*waitingv1.Wait{w}
				now := func() *workv1.WorkItem {
					if looks < 4 {
						return it(1)
					}
					return it(2)
				}
				r.others.item = now
				r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
					looks++
					q := &workv1.GetWorkQueueResponse{}
					if shown || looks >= 4 {
						q.Blocked = []*workv1.WorkItem{now()}
						q.TriggeredBlocked = []*workv1.WorkItem{now()}
					}
					return q, nil
				}
			})
			r.hear(&journal.Event{Type: "trigger_delivered", Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.TriggerDelivered{
				DeliveryId: "dlv_1", Trigger: &waitingv1.Trigger{TriggerId: "trg_1", AgentId: "keeper"}, Contentful: true, Body: []byte("news"), WaitIds: []string{"wt_1"},
			}})
			resp := r.take("keeper")
			require.Equal(t, 4, looks)
			require.EqualValues(t, 2, resp.GetTurn().GetShownWaits()[0].GetTriggerCount())
		})
	}
}

// A plane that is down holds a message back for the settling time and no longer.
func TestD5_AMessageIsNotHeldBackByAPlaneThatIsDown(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() { r.others.waits = []*waitingv1.Wait{operatorWait("wt_1", "wi_1", epoch.Add(-time.Minute))} })
	r.send("keeper", "go on", normal)
	require.Equal(t, "go on", r.take("keeper").GetMessage().GetText())
}

func recheckOf(itemID string) *agentv1.Decision {
	return &agentv1.Decision{Action: "tick", TickReason: agentv1.TickReason_TICK_REASON_RECHECK, Reason: "recheck_due", WorkItemId: itemID, WorkItemRevision: 3}
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
// (SPEC D4, upstream #2511).
func TestD4_AStaleRecheckIsDropped(t *testing.T) {
	open, completed := workv1.WorkItemState_WORK_ITEM_STATE_OPEN, workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED
	at := timestamppb.New(epoch)
	for name, c := range map[string]struct {
		item *workv1.WorkItem
		drop string
	}{
		"it stands":                {&workv1.WorkItem{WorkItemId: "wi_1", State: open, RecheckAt: at, RecheckConsumedAt: at}, ""},
		"it is not yet marked":     {&workv1.WorkItem{WorkItemId: "wi_1", State: open, RecheckAt: at}, ""},
		"the item was completed":   {&workv1.WorkItem{WorkItemId: "wi_1", State: completed}, "completed"},
		"the wait it was for over": {&workv1.WorkItem{WorkItemId: "wi_1", State: open}, "is over"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			r.others.set(func() { r.others.item = func() *workv1.WorkItem { return c.item } })
			require.Equal(t, "recorded", r.offer(r.facts("keeper").GetFactsRevision(), recheckOf("wi_1")).GetResult())
			if c.drop == "" {
				require.Equal(t, agentv1.TickReason_TICK_REASON_RECHECK, r.take("keeper").GetMessage().GetTick().GetReason())
				return
			}
			require.True(t, r.poll("keeper").GetPending())
			require.Contains(t, r.lastDrop(), c.drop)
			require.False(t, r.facts("keeper").GetTickPending())
		})
	}
}

func wakeTick() *agentv1.Decision {
	return &agentv1.Decision{Action: "tick", TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered"}
}

func (r *rig) triggered(waitID string) {
	r.hear(&journal.Event{Type: "wait_triggered", Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitTriggered{
		Wait: &waitingv1.Wait{WaitId: waitID, AgentId: "keeper"}, TriggerId: "trg_1", WakeAgent: true,
	}})
}

// A wake whose wait was cancelled or seen by another turn has nothing left to
// tell: its tick is dropped, and it makes no other (SPEC D4, P7).
func TestD4_AStaleWakeIsDropped(t *testing.T) {
	own := &waitingv1.Wait{WaitId: "wt_1", AgentId: "keeper", Triggered: true, TriggerCount: 1, Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE}
	for name, c := range map[string]struct {
		waits []*waitingv1.Wait
		also  func(r *rig)
		drop  string
	}{
		"the wait stands":                   {[]*waitingv1.Wait{own}, nil, ""},
		"another took its place":            {[]*waitingv1.Wait{{WaitId: "wt_2", Triggered: true, Status: own.GetStatus()}}, nil, ""},
		"the wait was cancelled":            {nil, nil, "are over"},
		"the trigger was consumed":          {[]*waitingv1.Wait{{WaitId: "wt_1", TriggerCount: 1, ConsumedCount: 1, Status: own.GetStatus()}}, nil, "are over"},
		"another wake is about more":        {nil, func(r *rig) { r.wakeByTrigger() }, ""},
		"a reminder of a wait of the agent": {nil, func(r *rig) { r.recheck() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spawn("keeper")
			r.triggered("wt_1")
			require.Equal(t, "recorded", r.offer(r.facts("keeper").GetFactsRevision(), wakeTick()).GetResult())
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
			require.False(t, r.facts("keeper").GetWakeHint(), "or the scheduler would make the same tick for ever")
			r.restart()
			require.False(t, r.facts("keeper").GetWakeHint())
			r.triggered("wt_1")
			require.True(t, r.facts("keeper").GetWakeHint(), "the next wake is news")
		})
	}
}

func (r *rig) wakeByTrigger() {
	r.hear(&journal.Event{Type: "trigger_delivered", Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.TriggerDelivered{
		DeliveryId: "dlv_9", Trigger: &waitingv1.Trigger{TriggerId: "trg_9", AgentId: "keeper"}, WakeAgent: true,
	}})
}

func (r *rig) recheck() {
	r.hear(&journal.Event{Type: "wait_rechecked", Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitRechecked{Wait: &waitingv1.Wait{WaitId: "wt_1", AgentId: "keeper"}}})
}

// What a turn in between has told needs no tick of its own; should that turn
// fail, it does (SPEC P7).
func TestD4_AWakeThatATurnHasTold(t *testing.T) {
	for outcome, dropped := range map[agentv1.TurnOutcome]bool{done: true, fatal: false} {
		r := newRig(t)
		r.spawn("keeper")
		r.wakeByTrigger()
		require.Equal(t, "recorded", r.offer(r.facts("keeper").GetFactsRevision(), wakeTick()).GetResult())
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
	require.Equal(t, "recorded", r.offer(r.facts("keeper").GetFactsRevision(), wakeTick()).GetResult())
	k := ref.Agent{Namespace: "acme", ID: "keeper"}
	o, free, err := r.service.NextCandidate(r.runner(), rpc.ActorFrom(r.runner()), &agentv1.AcquireTurnRequest{})
	require.NoError(t, err)
	require.Equal(t, k, o.Agent)
	r.triggered("wt_2")
	require.ErrorIs(t, r.service.DropTick(context.Background(), o, "stale"), turns.ErrNotTaken)
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
func TestA6_AStaleRunIsToldWhy(t *testing.T) {
	r, a := turn(t)
	other := "run_00000000000000000000000zzz"
	_, err := r.service.RenewTurn(r.runner(), &agentv1.RenewTurnRequest{AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: other})
	require.ErrorIs(t, err, fault.RunStale)
	f := fault.From(err)
	require.Equal(t, "another_run", f.Metadata()["stale_reason"])
	require.NotContains(t, f.Message(), "()")
	r.clk.Advance(leases.Term)
	r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
	for _, run := range []string{other, a.GetTurn().GetRunId()} {
		_, err = r.service.RenewTurn(r.runner(), &agentv1.RenewTurnRequest{AgentId: "keeper", TurnId: a.GetTurn().GetTurnId(), RunId: run})
		require.ErrorIs(t, err, fault.RunStale)
		require.Equal(t, "lease_lost", fault.From(err).Metadata()["stale_reason"])
	}
}
