package waiting

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// 30 000 deliveries at once, a part of them with keys of their own, are one wake
// and exact counts; what they leave in memory does not depend on how many they
// were, and neither do the lines of those without a key (SPEC P3, P7).
func TestP7_AStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	const callers, each, keyed = 128, 240, 4 // every fourth has a key
	r := newRig(t)
	made := r.trigger(itemA, wakeHint)
	token := made.GetToken()
	w := r.waitFor(&waitingv1.WaitForRequest{
		Wake: external, Resource: made.GetTrigger().GetTriggerId(), WorkItemId: itemA,
	}).GetWait().GetWaitId()
	before := len(r.events())
	var storm sync.WaitGroup
	var mu sync.Mutex
	came := map[waitingv1.DeliveryOutcome]int{}
	for c := range callers {
		storm.Go(func() {
			for i := range each {
				req := &waitingv1.DeliverTriggerRequest{Token: token, Body: []byte(`{"build":"green"}`)}
				if i%keyed == 0 {
					req.RequestId = fmt.Sprintf("%d/%d", c, i)
				}
				resp, err := r.service.DeliverTrigger(context.Background(), req)
				if err != nil {
					panic(err)
				}
				mu.Lock()
				came[resp.GetOutcome()]++
				mu.Unlock()
			}
		})
	}
	storm.Wait()
	const all = callers * each
	require.Equal(t, map[waitingv1.DeliveryOutcome]int{triggered: 1, coalesced: all - 1}, came)
	check := func() {
		got := r.wait(w)
		require.EqualValues(t, all, got.GetTriggerCount())
		require.Equal(t, stands, got.GetStatus())
		tr := r.listTriggers()[0]
		require.EqualValues(t, all, tr.GetDeliveryCount())
		require.EqualValues(t, all-1, tr.GetCoalescedCount())
	}
	check()
	lines := map[string]int{}
	for _, ev := range r.events()[before:] {
		lines[ev.Type]++
	}
	require.Equal(t, 1, lines["wait_triggered"], "one wake: the clock stood still")
	require.Equal(t, 1, lines["trigger_delivered"])
	require.Less(t, lines["deliveries_counted"], all, "those without a key share lines")
	require.GreaterOrEqual(t, lines["deliveries_counted"], all/keyed-1, "those with a key have their own")
	a := r.service.state().agents.Get(plane.KeyOf("acme", "keeper"))
	require.Equal(t, []int{1, 1, 1}, []int{a.waits.Len(), a.triggers.Len(), len(a.published)})
	require.Equal(t, 1, r.service.due.Len(), "what is due is one telling")
	require.Empty(t, r.service.batcher.queues)
	r.restart()
	check()
	// The last of them is told of, once.
	r.clk.Advance(publishEvery)
	r.idle()
	told := 0
	for _, ev := range r.events()[before:] {
		if p, ok := ev.Payload.(*waitingv1.WaitTriggered); ok {
			told++
			if told == 2 {
				require.EqualValues(t, all, p.GetWait().GetTriggerCount())
				require.Equal(t, made.GetTrigger().GetTriggerId(), p.GetTriggerId())
				require.NotEmpty(t, p.GetDeliveryId())
			}
		}
	}
	require.Equal(t, 2, told)
}

// The last delivery is never lost, whatever a turn saw before it (SPEC P7).
func TestP7_TheLastDeliveryIsPublished(t *testing.T) {
	for name, item := range map[string]string{"an item's": itemA, "the agent's own": ""} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			token := r.trigger(item, wakeHint).GetToken()
			w := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: item}).GetWait().GetWaitId()
			published := func() (counts []int64, wakes int) {
				for _, ev := range r.events() {
					if p, ok := ev.Payload.(*waitingv1.WaitTriggered); ok {
						counts = append(counts, p.GetWait().GetTriggerCount())
						if p.GetWakeAgent() {
							wakes++
						}
					}
				}
				return counts, wakes
			}
			for range 5 {
				r.deliver(token, "")
			}
			counts, wakes := published()
			require.Equal(t, []int64{1}, counts)
			require.Equal(t, item == "", wakes == 1)
			r.clk.Advance(publishEvery)
			r.idle()
			counts, _ = published()
			require.Equal(t, []int64{1, 5}, counts, "the others are told of together")
			r.clk.Advance(time.Hour)
			r.idle()
			counts, _ = published()
			require.Len(t, counts, 2, "and once")

			// A turn was shown five; two came during it. It ends before they are
			// told of by the clock.
			r.deliver(token, "")
			r.deliver(token, "")
			r.hear("", &agentv1.TurnCompleted{
				Turn: &agentv1.Turn{TurnId: "trn_1", ShownWaits: []*agentv1.ShownWait{{WaitId: w, TriggerCount: 5}}},
			})
			events := r.events()
			if item == "" {
				last := events[len(events)-1].Payload.(*waitingv1.WaitTriggered)
				require.True(t, last.GetWakeAgent(), "the agent is woken at once")
				require.EqualValues(t, 7, last.GetWait().GetTriggerCount())
				require.EqualValues(t, 5, last.GetWait().GetConsumedCount())
			} else {
				last := events[len(events)-1].Payload.(*waitingv1.WaitConsumed)
				require.EqualValues(t, 7, last.GetWait().GetTriggerCount(), "the item shows them by this")
			}
			n := len(events)
			r.clk.Advance(publishEvery)
			r.idle()
			require.Len(t, r.events(), n)
			r.hear("", &agentv1.TurnCompleted{
				Turn: &agentv1.Turn{TurnId: "trn_2", ShownWaits: []*agentv1.ShownWait{{WaitId: w, TriggerCount: 7}}},
			})
			require.Equal(t, triggered, r.deliver(token, "").GetOutcome(), "the next one is news")

			// A process that dies with a telling due tells after its restart.
			r.deliver(token, "")
			r.down()
			r.clk.Advance(time.Hour)
			r.up()
			r.clk.Advance(publishEvery)
			r.idle()
			counts, _ = published()
			require.EqualValues(t, 9, counts[len(counts)-1])
		})
	}
}

// A delivery nobody waits for is an interest of its own from then on: one news,
// then counts, until a turn was shown it. It goes with its trigger.
func TestP7_DeliveriesWithoutAWait(t *testing.T) {
	r := newRig(t)
	made := must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", Description: "CI of main",
	}))(t)
	require.Equal(t, triggered, r.deliver(made.GetToken(), "").GetOutcome())
	for range 3 {
		require.Equal(t, coalesced, r.deliver(made.GetToken(), "").GetOutcome())
	}
	l := must.Value(r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{AgentId: "keeper"}))(t)
	require.Len(t, l.GetWaits(), 1)
	w := l.GetWaits()[0]
	require.Equal(t, []string{sourceTrigger, made.GetTrigger().GetTriggerId(), "CI of main"},
		[]string{w.GetSource(), w.GetResource(), w.GetCondition()})
	require.Equal(t, waitingv1.WaitMode_WAIT_MODE_INTENT, w.GetMode())
	require.EqualValues(t, 4, w.GetTriggerCount())
	r.hear("", &agentv1.TurnCompleted{
		Turn: &agentv1.Turn{TurnId: "trn_1", ShownWaits: []*agentv1.ShownWait{
			{WaitId: w.GetWaitId(), TriggerCount: 4},
		}},
	})
	require.Equal(t, triggered, r.deliver(made.GetToken(), "").GetOutcome())
	must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
		AgentId: "keeper", TriggerId: made.GetTrigger().GetTriggerId(),
	}))(t)
	require.Equal(t, waitingv1.WaitEndReason_WAIT_END_REASON_TRIGGER_CANCELLED, r.wait(w.GetWaitId()).GetEndReason())
}

// Deliveries that no one can want are counted too.
func TestP3_IgnoredDeliveriesCount(t *testing.T) {
	r := newRig(t)
	token := r.trigger(itemA, wakeHint).GetToken()
	r.hear(itemA, &workv1.WorkItemCompleted{WorkItem: &workv1.WorkItemRecord{WorkItemId: itemA}})
	for range 3 {
		out := r.deliver(token, "")
		require.Equal(t, waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_IGNORED, out.GetOutcome())
		require.Equal(t, "work_item_completed", out.GetReason())
	}
	got := r.listTriggers()[0]
	require.EqualValues(t, 3, got.GetDeliveryCount())
	require.EqualValues(t, 3, got.GetIgnoredCount())
	require.Zero(t, got.GetCoalescedCount())
}

// Each delivery of a batch gets its own response, in order; a refusal applies to
// all of them.
func TestP7_ABatchIsAnsweredOneByOne(t *testing.T) {
	r := newRig(t)
	token := r.trigger("", contentful).GetToken()
	to := must.Value(r.service.find(t.Context(), token))(t).address
	var part []*pendingDelivery
	for i := range 3 {
		part = append(part,
			&pendingDelivery{req: &waitingv1.DeliverTriggerRequest{Token: token, Body: []byte(strconv.Itoa(i))}})
	}
	answers := must.Value(r.service.deliverBatch(to, id.Hash(token), part))(t)
	for i, ev := range r.events()[1:] {
		p := ev.Payload.(*waitingv1.TriggerDelivered)
		require.Equal(t, strconv.Itoa(i), string(p.GetBody()), "each content is a message of its own, in order")
		require.Equal(t, answers[i].GetDeliveryId(), p.GetDeliveryId())
	}
	r.rotate(to.triggerID, "")
	_, err := r.service.deliverBatch(to, id.Hash(token), part)
	require.ErrorIs(t, err, fault.TriggerRevoked, "rotated since it was looked up")

	// A storm is written in batches that a command can hold.
	c := &deliveryQueue{}
	for range maxBatchDeliveries + 1 {
		c.waiting = append(c.waiting, &pendingDelivery{req: &waitingv1.DeliverTriggerRequest{}})
	}
	require.Len(t, c.next(), maxBatchDeliveries)
	require.Len(t, c.next(), 1)
	require.Empty(t, c.next())
	for range 6 {
		c.waiting = append(c.waiting,
			&pendingDelivery{req: &waitingv1.DeliverTriggerRequest{Body: make([]byte, maxBody)}})
	}
	require.Len(t, c.next(), 4)
	require.Len(t, c.next(), 2)
}

// Deliveries that together are more than a command may hold, because of the texts of their trigger and its waits,
// are written in several, in order, and none is refused (SPEC P7).
func TestP7_ABatchThatIsTooLargeIsWrittenInParts(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("x", 8<<10)
	made := must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", Description: long, DeliveryMode: contentful,
	}))(t)
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: external, Resource: made.GetTrigger().GetTriggerId(), Reason: long}).
		GetWait().GetWaitId()
	const senders = 400
	batch := make([]*pendingDelivery, senders)
	for i := range batch {
		batch[i] = &pendingDelivery{req: &waitingv1.DeliverTriggerRequest{
			Token: made.GetToken(),
			Body:  []byte(strconv.Itoa(i)),
		}, done: make(chan struct{})}
	}
	found := must.Value(r.service.find(t.Context(), made.GetToken()))(t)
	before := len(r.events())
	r.service.writeBatch(found.address, id.Hash(made.GetToken()), batch)
	for _, p := range batch {
		<-p.done
		require.NoError(t, p.err)
		require.Equal(t, waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED, p.resp.GetOutcome())
	}
	n := 0
	for _, ev := range r.events()[before:] {
		if p, ok := ev.Payload.(*waitingv1.TriggerDelivered); ok {
			require.Equal(t, batch[n].resp.GetDeliveryId(), p.GetDeliveryId())
			require.Equal(t, strconv.Itoa(n), string(p.GetBody()))
			n++
		}
	}
	require.Equal(t, senders, n)
	require.EqualValues(t, senders, r.wait(w).GetTriggerCount())
}

// Who goes away while its delivery is on its way learns that nobody knows.
func TestX1_ADeliveryCutShort(t *testing.T) {
	r := newRig(t)
	token := r.trigger("", wakeHint).GetToken()
	to := must.Value(r.service.find(t.Context(), token))(t).address
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	release := stall(r)
	_, err := r.service.batcher.deliver(gone, r.service, to, &waitingv1.DeliverTriggerRequest{Token: token})
	require.ErrorIs(t, err, fault.Storage)
	require.Equal(t, "unknown", fault.From(err).Metadata()["outcome"])
	release()
	r.eventually(func() bool { return r.listTriggers()[0].GetDeliveryCount() == 1 })
}

// stall keeps the partition's loop busy until release is called.
func stall(r *rig) (release func()) {
	entered, leave := make(chan struct{}), make(chan struct{})
	go func() {
		_, _, _ = journal.Do(context.Background(), r.service.engine.All()[0], journal.Op[*State, struct{}]{
			Method: "stall", Actor: journal.Actor{Namespace: "acme", Role: "service"},
			Decide: func(*State, journal.Env) (d journal.Decision[struct{}], _ error) {
				close(entered)
				<-leave
				return d, nil
			},
		})
	}()
	<-entered
	return func() { close(leave) }
}

// A turn that began while deliveries were counted and not told of was shown all of
// them: neither its end nor the telling that was due wakes the agent once more for
// nothing (SPEC P7).
func TestP7_WhatATurnWasShownDoesNotWake(t *testing.T) {
	r := newRig(t)
	token := r.trigger("", wakeHint).GetToken()
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: external}).GetWait().GetWaitId()
	r.deliver(token, "")
	r.deliver(token, "")
	wakes := func() (n int) {
		for _, ev := range r.events() {
			if p, ok := ev.Payload.(*waitingv1.WaitTriggered); ok && p.GetWakeAgent() {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, wakes(), "the first delivery wakes")
	r.hear("", &agentv1.TurnCompleted{
		Turn: &agentv1.Turn{TurnId: "trn_1", ShownWaits: []*agentv1.ShownWait{{WaitId: w, TriggerCount: 2}}},
	})
	require.Equal(t, 1, wakes())
	r.clk.Advance(publishEvery)
	r.idle()
	require.Equal(t, 1, wakes())
}
