package waiting

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// What falls due, by the first part of its key.
const (
	dueWait    = "wait"    // a timer wait is over
	dueRecheck = "recheck" // the agent is reminded of its own wait
	dueTell    = "tell"    // deliveries were counted that others do not know of
	dueTimer   = "timer"
	dueExpiry  = "expiry" // a trigger expires
)

// tellEvery is how often a storm of deliveries is told of. The first is told of
// at once, the last after this long at most (SPEC P7).
const tellEvery = 250 * time.Millisecond

// The due-time index holds what falls due by kind, namespace, agent and id. It
// is rebuilt from state at every start, so what is overdue fires then, once.
func dueKey(kind, namespace, agentID, id string) string {
	return strings.Join([]string{kind, namespace, agentID, id}, "\x00")
}

// index keeps the due-time index up to date with what is durable. It runs in
// the journal's loop.
func (s *Service) index(_ int, events []*journal.Event) {
	for _, ev := range events {
		if s.metrics != nil {
			s.metrics.count(ev)
		}
		switch p := ev.Payload.(type) {
		case *waitingv1.WaitRegistered:
			s.indexWait(ev.Namespace, p.GetWait())
		case *waitingv1.WaitResolved:
			s.forgetWait(ev.Namespace, p.GetWait())
		case *waitingv1.WaitCancelled:
			s.forgetWait(ev.Namespace, p.GetWait())
		case *waitingv1.DeliveriesCounted:
			for _, waitID := range p.GetWaitIds() {
				s.indexTelling(dueKey(dueTell, ev.Namespace, ev.AgentID, waitID))
			}
		case *waitingv1.TimerCreated:
			s.indexTimer(ev.Namespace, p.GetTimer())
		case *waitingv1.TimerFired:
			s.indexTimer(ev.Namespace, p.GetTimer())
		case *waitingv1.TimerCancelled:
			s.indexTimer(ev.Namespace, p.GetTimer())
		case *waitingv1.ExternalTriggerCreated:
			s.indexTrigger(ev.Namespace, p.GetTrigger())
		case *waitingv1.ExternalTriggerCancelled:
			s.indexTrigger(ev.Namespace, p.GetTrigger())
		case *waitingv1.AgentNoted:
			if !p.GetStopped() {
				for _, k := range s.held.release(key{ev.Namespace, ev.AgentID}) {
					s.due.Set(k, s.deps.Clock.Now())
				}
			}
		}
	}
}

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

// recheckPending says whether this plane is to remind of a wait. The work plane
// and the scheduler remind of those of items.
func recheckPending(w *waitingv1.Wait) bool {
	return active(w) && w.GetWorkItemId() == "" && w.GetRecheckAt() != nil && w.GetRecheckConsumedAt() == nil
}

func (s *Service) forgetWait(namespace string, w *waitingv1.Wait) {
	for _, kind := range []string{dueWait, dueRecheck, dueTell} {
		s.due.Remove(dueKey(kind, namespace, w.GetAgentId(), w.GetWaitId()))
	}
}

func (s *Service) indexTelling(k string) {
	if _, set := s.due.At(k); !set {
		s.due.Set(k, s.deps.Clock.Now().Add(tellEvery))
	}
}

func (s *Service) indexTimer(namespace string, t *waitingv1.Timer) {
	k := dueKey(dueTimer, namespace, t.GetAgentId(), t.GetTimerId())
	if !ticking(t) {
		s.due.Remove(k)
		return
	}
	s.due.Set(k, t.GetNextFireAt().AsTime())
}

func (s *Service) indexTrigger(namespace string, t *waitingv1.Trigger) {
	k := dueKey(dueExpiry, namespace, t.GetAgentId(), t.GetTriggerId())
	if !lives(t) || t.GetExpiresAt() == nil {
		s.due.Remove(k)
		return
	}
	s.due.Set(k, t.GetExpiresAt().AsTime())
}

// reindex rebuilds the index from a state that was loaded.
func (s *Service) reindex(st *State) {
	for k, a := range st.agents {
		for _, w := range a.waits.byID {
			s.indexWait(k.namespace, w)
			if a.untold(w) {
				s.indexTelling(dueKey(dueTell, k.namespace, k.id, w.GetWaitId()))
			}
		}
		for _, t := range a.timers.byID {
			s.indexTimer(k.namespace, t)
		}
		for _, t := range a.triggers.byID {
			s.indexTrigger(k.namespace, t)
		}
	}
}

// held are the timers that fell due while their agent was stopped. They fire
// when it starts, or, since the index is rebuilt then, are held again after a
// restart.
type held struct {
	mu   sync.Mutex
	keys map[key]map[string]bool
}

func (h *held) add(k key, due string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys == nil {
		h.keys = map[key]map[string]bool{}
	}
	if h.keys[k] == nil {
		h.keys[k] = map[string]bool{}
	}
	h.keys[k][due] = true
}

func (h *held) remove(k key, due string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.keys[k], due); len(h.keys[k]) == 0 {
		delete(h.keys, k)
	}
}

func (h *held) release(k key) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for due := range h.keys[k] {
		all = append(all, due)
	}
	delete(h.keys, k)
	return all
}

// fire brings about what is due. The journal decides whether it still is, so a
// fire that comes twice, or after a cancel, changes nothing.
func (s *Service) fire(keys []string) {
	// An agent's fire in their order; those of different agents share frames,
	// so that what fell due while the process was down costs few fsyncs.
	byAgent := map[key][][]string{}
	for _, k := range keys {
		if parts := strings.Split(k, "\x00"); len(parts) == 4 {
			agent := key{parts[1], parts[2]}
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

func (s *Service) fireOne(kind string, k key, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// Nobody asks for what time brings about: a trace begins here.
	ctx, span := s.deps.Tracer.Begin(ctx, "due "+kind)
	defer span.End()
	due := dueKey(kind, k.namespace, k.id, id)
	if kind == dueTimer {
		// Held before it is decided: a start in between must find it.
		s.held.add(k, due)
	}
	var early time.Time
	var stopped bool
	_, err := plane.Do(ctx, s.engine, plane.Command[*State, struct{}]{
		Method: "Fire", AgentID: k.id, Actor: plane.System(k.namespace),
		Decide: func(st *State, env journal.Env) (d journal.Decision[struct{}], _ error) {
			early, stopped = time.Time{}, false
			if a := st.agents[k]; a != nil {
				stopped = a.stopped
				d.Events, early = a.falls(kind, k, id, env)
			}
			return d, nil
		},
	})
	if kind == dueTimer && (err != nil || !stopped) {
		s.held.remove(k, due)
	}
	if err == nil && !early.IsZero() {
		// The clock stepped back since the alarm rang. It rings again.
		s.due.Set(due, early)
	}
	return err
}

// falls is the rule for what may be due: its events, or when it will be.
func (a *agentWaits) falls(kind string, k key, id string, env journal.Env) (events []*journal.Event, early time.Time) {
	w := a.waits.byID[id]
	notBefore := func(at *timestamppb.Timestamp) bool {
		if at.AsTime().After(env.Now) {
			early = at.AsTime()
		}
		return early.IsZero()
	}
	switch kind {
	case dueWait:
		if active(w) && w.GetDueAt() != nil && notBefore(w.GetDueAt()) {
			events = []*journal.Event{resolved(k.namespace, w, env, causeTimer, id)}
		}
	case dueRecheck:
		if recheckPending(w) && notBefore(w.GetRecheckAt()) {
			n := nextWait(w)
			n.RecheckConsumedAt = timestamppb.New(env.Now)
			events = []*journal.Event{waitEvent(k.namespace, n, &waitingv1.WaitRechecked{Wait: n})}
		}
	case dueTell:
		if a.untold(w) {
			events = []*journal.Event{a.tellAgain(k, w)}
		}
	case dueTimer:
		t := a.timers.byID[id]
		if ticking(t) && !a.stopped && notBefore(t.GetNextFireAt()) {
			n := fired(t, env.Now)
			events = []*journal.Event{timerEvent(k.namespace, n, &waitingv1.TimerFired{Timer: n, DueAt: t.GetNextFireAt()})}
			events = append(events, a.mismatches(k, happening{
				arrival: arrival{causeTimer, id}, itemID: t.GetWorkItemId(),
				matches: func(*waitingv1.Wait) bool { return false }, // a timer wait has a time of its own
			})...)
		}
	case dueExpiry:
		t := a.triggers.byID[id]
		if lives(t) && t.GetExpiresAt() != nil && notBefore(t.GetExpiresAt()) {
			events = a.endTrigger(k, t, env, waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED)
		}
	}
	return events, early
}

// tellAgain tells others of the deliveries that a wait has counted since they
// heard of it last. It wakes nobody for what a turn was shown meanwhile.
func (a *agentWaits) tellAgain(k key, w *waitingv1.Wait) *journal.Event {
	n, last := nextWait(w), a.tellings[w.GetWaitId()]
	return waitEvent(k.namespace, n, &waitingv1.WaitTriggered{
		Wait: n, TriggerId: last.triggerID, DeliveryId: last.deliveryID, WakeAgent: w.GetWorkItemId() == "" && unseen(w),
	})
}
