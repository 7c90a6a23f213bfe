package waiting

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
)

// Kinds of due times, which are the first part of a dueKey.
const (
	dueWait    = "wait"    // a timer wait is over
	dueRecheck = "recheck" // the agent is reminded of its own wait
	duePublish = "publish" // deliveries were counted that no event of the wait shows
	dueTimer   = "timer"   // a timer fires
	dueExpiry  = "expiry"  // a trigger expires
	dueRest    = "rest"    // what ended has more to end than one command does; see endOwned
)

// publishEvery is how often the counts of a storm of deliveries are published. The first
// delivery is published at once, the last within this time (SPEC P7).
const publishEvery = 250 * time.Millisecond

// dueKey returns the key of a due time in the due-time index. kind says what is due, such as dueWait, and id is that
// of the record, which may have due times of several kinds; for dueRest it is that of the item, or "" for the agent.
// The index is rebuilt from state at every start, so that what is overdue fires then, once.
func dueKey(kind, namespace, agentID, id string) string {
	return strings.Join([]string{kind, namespace, agentID, id}, "\x00")
}

// index counts durable events, those of one frame, and updates the due-time index with them. It runs in the journal's
// loop and must not block.
func (s *Service) index(_ int, events []*journal.Event) {
	for i, ev := range events {
		row, err := eventRows.Of(ev)
		if err != nil {
			continue // an event of the journal itself
		}
		if row.count != nil && s.metrics != nil {
			row.count(s.metrics, ev)
		}
		if row.index != nil {
			// What follows in the frame may show that there is more to end; see indexRest.
			row.index(s, ev, events[i+1:])
		}
	}
}

// indexWait adds the due times of an active wait to the index; it does nothing for another.
func (s *Service) indexWait(namespace string, w *waitingv1.Wait) {
	if !active(w) {
		return
	}
	if w.GetDueAt() != nil {
		s.due.Set(dueKey(dueWait, namespace, w.GetAgentId(), w.GetWaitId()), w.GetDueAt().AsTime())
	}
	if recheckPending(w) {
		s.due.Set(dueKey(dueRecheck, namespace, w.GetAgentId(), w.GetWaitId()), w.GetRecheckAt().AsTime())
	}
}

// recheckPending reports whether this plane must still remind the agent of a wait: an active
// one of the agent itself with a reminder that was not given. Of the waits of items, the work
// plane and the scheduler remind it. w may be nil.
func recheckPending(w *waitingv1.Wait) bool {
	return active(w) && w.GetWorkItemId() == "" && w.GetRecheckAt() != nil && w.GetRecheckConsumedAt() == nil
}

// forgetWait removes all due times of a wait from the index.
func (s *Service) forgetWait(namespace string, w *waitingv1.Wait) {
	for _, kind := range []string{dueWait, dueRecheck, duePublish} {
		s.due.Remove(dueKey(kind, namespace, w.GetAgentId(), w.GetWaitId()))
	}
}

// schedulePublication schedules the publication of the counts of the wait with the due key k
// in publishEvery, unless it is scheduled already.
func (s *Service) schedulePublication(k string) {
	if _, set := s.due.At(k); !set {
		s.due.Set(k, s.deps.Clock.Now().Add(publishEvery))
	}
}

// indexTimer sets the due time of an active timer, and removes that of an ended one.
func (s *Service) indexTimer(namespace string, t *waitingv1.Timer) {
	k := dueKey(dueTimer, namespace, t.GetAgentId(), t.GetTimerId())
	if !ticking(t) {
		s.due.Remove(k)
		return
	}
	s.due.Set(k, t.GetNextFireAt().AsTime())
}

// indexTrigger sets the due time of a trigger's expiry, and removes it for a trigger that has
// ended or does not expire.
func (s *Service) indexTrigger(namespace string, t *waitingv1.Trigger) {
	k := dueKey(dueExpiry, namespace, t.GetAgentId(), t.GetTriggerId())
	if !lives(t) || t.GetExpiresAt() == nil {
		s.due.Remove(k)
		return
	}
	s.due.Set(k, t.GetExpiresAt().AsTime())
}

// indexRest schedules another command that ends what an item or an agent has. ev records that the item is completed or
// the agent deleted, and next are the events behind it in the frame. Without one of this agent nothing was left to end;
// otherwise endOwned may have stopped before all was ended.
func (s *Service) indexRest(ev *journal.Event, next []*journal.Event) {
	if len(next) > 0 && next[0].AgentID == ev.AgentID {
		s.due.Set(dueKey(dueRest, ev.Namespace, ev.AgentID, ev.WorkItemID), s.deps.Clock.Now())
	}
}

// reindex adds the due times of a partition's loaded state to the index.
func (s *Service) reindex(st *State) {
	// In a fixed order: keys that are due at the same time fire in the order in which they were set in s.due.
	living := maps.Collect(st.living())
	for _, k := range slices.SortedFunc(maps.Keys(living), plane.Key.Compare) {
		a := living[k]
		for _, w := range a.waits.LivingByID() {
			s.indexWait(k.Namespace, w)
			if a.unpublished(w) {
				s.schedulePublication(dueKey(duePublish, k.Namespace, k.ID, w.GetWaitId()))
			}
		}
		for _, t := range a.timers.LivingByID() {
			s.indexTimer(k.Namespace, t)
		}
		for _, t := range a.triggers.LivingByID() {
			s.indexTrigger(k.Namespace, t)
		}
		for _, id := range a.leftToEnd() {
			s.due.Set(dueKey(dueRest, k.Namespace, k.ID, id), s.deps.Clock.Now())
		}
	}
}

// fire executes what is due and returns when all is done. The rule decides whether a key still is
// due, so that a repeated fire, or one after a cancellation, changes nothing. A key that fails is
// tried again after a second.
func (s *Service) fire(keys []string) {
	// The keys of one agent fire in order. Those of different agents fire concurrently and share
	// frames, so that what became due while the process was down takes few fsyncs.
	byAgent := map[plane.Key][][]string{}
	for _, k := range keys { // see dueKey: kind, namespace, agent and id
		if parts := strings.Split(k, "\x00"); len(parts) == 4 {
			agent := plane.KeyOf(parts[1], parts[2])
			byAgent[agent] = append(byAgent[agent], parts)
		}
	}
	var firing sync.WaitGroup
	for agent, due := range byAgent {
		firing.Go(func() {
			for _, parts := range due {
				if err := s.fireOne(parts[0], agent, parts[3]); err != nil {
					s.deps.Logger.Warn("could not fire; trying again", zap.String("id", parts[3]), zap.Error(err))
					s.due.Set(strings.Join(parts, "\x00"), s.deps.Clock.Now().Add(time.Second))
				}
			}
		})
	}
	firing.Wait()
}

// fireOne executes the rule for one due time of the agent k. A timer whose agent is stopped is
// held.
func (s *Service) fireOne(kind string, k plane.Key, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// No request is the cause, so a trace begins here.
	ctx, span := s.deps.Tracer.Begin(ctx, "due "+kind)
	defer span.End()
	due := dueKey(kind, k.Namespace, k.ID, id)
	if kind == dueTimer {
		// It is held before the decision, so that an agent that starts meanwhile finds it.
		s.held.Add(k, due)
	}
	var again time.Time
	var stopped bool
	_, err := plane.Do(ctx, s.engine, plane.Command[*State, struct{}]{
		Frees: kind == dueRest, Method: "Fire", AgentID: k.ID, Actor: plane.System(k.Namespace),
		Decide: func(st *State, env journal.Env) (d journal.Decision[struct{}], _ error) {
			again, stopped = time.Time{}, false // it may have run before, in a frame that was not stored
			if a := st.agents.Get(k); a != nil {
				stopped = a.stopped
				d.Events, again = a.decideDue(kind, k, id, env)
			}
			return d, nil
		},
	})
	if kind == dueTimer && (err != nil || !stopped) {
		s.held.Remove(k, due)
	}
	if err == nil && !again.IsZero() {
		s.due.Set(due, again)
	}
	return err
}

// decideDue is the rule for what may be due. It returns its events, and when it is due again, or
// zero: with events if there may be more to end, without if the clock was set back since it
// became due. Of a deleted agent nothing is due but the end of what it has.
func (a *agentWaits) decideDue(kind string, k plane.Key, id string, env journal.Env) (events []*journal.Event,
	again time.Time,
) {
	if kind == dueRest && (id == "" && a.deleted || a.items.Has(id)) {
		if events = a.endOwned(env, k, id); len(events) > 0 {
			again = env.Now
		}
	}
	if a.deleted {
		return events, again
	}
	w := a.waits.Get(id)
	// isDue reports whether a time has come; otherwise it sets again to it.
	isDue := func(timestamp *timestamppb.Timestamp) bool {
		if timestamp.AsTime().After(env.Now) {
			again = timestamp.AsTime()
		}
		return again.IsZero()
	}
	switch kind {
	case dueWait:
		if active(w) && w.GetDueAt() != nil && isDue(w.GetDueAt()) {
			events = []*journal.Event{resolved(k.Namespace, w, env, causeTimer, id)}
		}
	case dueRecheck:
		if recheckPending(w) && isDue(w.GetRecheckAt()) {
			n := nextWait(w)
			n.RecheckConsumedAt = timestamppb.New(env.Now)
			events = []*journal.Event{waitEvent(k.Namespace, n, &waitingv1.WaitRechecked{Wait: n})}
		}
	case duePublish:
		if a.unpublished(w) {
			events = []*journal.Event{a.publishCount(k, w)}
		}
	case dueTimer:
		t := a.timers.Get(id)
		if ticking(t) && !a.stopped && isDue(t.GetNextFireAt()) {
			n := fired(t, env.Now)
			events = []*journal.Event{
				timerEvent(k.Namespace, n, &waitingv1.TimerFired{Timer: n, DueAt: t.GetNextFireAt()}),
			}
			events = append(events, a.mismatches(k, input{
				arrival: arrival{causeTimer, id}, itemID: t.GetWorkItemId(),
				matches: func(*waitingv1.Wait) bool { return false }, // a timer wait has its own time
			})...)
		}
	case dueExpiry:
		t := a.triggers.Get(id)
		if lives(t) && t.GetExpiresAt() != nil && isDue(t.GetExpiresAt()) {
			events = a.endTrigger(k, t, env, waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED, a.weakened(t, env.Now))
		}
	}
	return events, again
}

// publishCount returns the event that shows the current count of a wait. It wakes the agent
// unless a turn was shown the deliveries meanwhile.
func (a *agentWaits) publishCount(k plane.Key, w *waitingv1.Wait) *journal.Event {
	n, last := nextWait(w), a.published[w.GetWaitId()]
	return waitEvent(k.Namespace, n, &waitingv1.WaitTriggered{
		Wait: n, TriggerId: last.triggerID, DeliveryId: last.deliveryID, WakeAgent: w.GetWorkItemId() == "" &&
			unseen(w),
	})
}
