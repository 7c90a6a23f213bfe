package waiting

import (
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
)

// eventRows has a row for each event type of the plane. Its columns are the arguments of on. An event changes the
// page of its own agent only, and none is needed once it is old; see Owners and Needs.
var eventRows = plane.NewRows(
	on[*waitingv1.WaitRegistered](foldWait, countRegistered, indexRegistered),
	on[*waitingv1.WaitTriggered](foldWait, nil, nil),
	on[*waitingv1.WaitConsumed](foldWait, nil, nil),
	on[*waitingv1.WaitRechecked](foldWait, nil, nil),
	on[*waitingv1.WaitResolved](foldWait, countResolved, unindexWait),
	on[*waitingv1.WaitCancelled](foldWait, countCancelled, unindexWait),
	on[*waitingv1.WaitMismatched](foldMismatched, nil, nil),
	on[*waitingv1.TimerCreated](foldTimer, nil, indexTimerOf),
	on[*waitingv1.TimerFired](foldTimer, countFired, indexTimerOf),
	on[*waitingv1.TimerCancelled](foldTimer, nil, indexTimerOf),
	on[*waitingv1.ExternalTriggerCreated](foldTrigger, nil, indexTriggerOf),
	on[*waitingv1.ExternalTriggerRotated](foldRotated, nil, nil),
	on[*waitingv1.ExternalTriggerCancelled](foldTrigger, nil, indexTriggerOf),
	on[*waitingv1.TriggerExpired](foldTrigger, nil, nil),
	on[*waitingv1.TriggerDelivered](foldTrigger, countDelivered, nil),
	on[*waitingv1.DeliveriesCounted](foldCounted, countDeliveries, indexPublications),
	on[*waitingv1.TaskNoted](foldTaskNoted, nil, nil),
	on[*waitingv1.WorkItemNoted](foldWorkItemNoted, nil, indexItemEnd),
	on[*waitingv1.AgentNoted](foldAgentNoted, nil, indexAgentNoted),
)

// row is a row of eventRows; see on.
type row struct {
	fold  func(s *State, a *agentWaits, ev *journal.Event)
	count func(m *metrics, ev *journal.Event)
	index func(s *Service, ev *journal.Event, next []*journal.Event)
}

// on returns the row of an event type:
//   - fold applies an event to a, which is its agent.
//   - count counts a durable event; nil: it is not counted.
//   - index updates the due-time index with a durable event, which next follow in its frame; nil: it changes no due
//     time. It runs in the journal's loop and must not block.
func on[P proto.Message](
	fold func(s *State, a *agentWaits, ev *journal.Event, p P),
	count func(m *metrics, ev *journal.Event, p P),
	index func(s *Service, ev *journal.Event, p P, next []*journal.Event),
) plane.Row[row] {
	r := row{fold: func(s *State, a *agentWaits, ev *journal.Event) { fold(s, a, ev, plane.PayloadOf[P](ev)) }}
	if count != nil {
		r.count = func(m *metrics, ev *journal.Event) { count(m, ev, plane.PayloadOf[P](ev)) }
	}
	if index != nil {
		r.index = func(s *Service, ev *journal.Event, next []*journal.Event) {
			index(s, ev, plane.PayloadOf[P](ev), next)
		}
	}
	return plane.RowOf[P](r)
}

// withWait, withTimer and withTrigger are payloads that have the record after the event.
type withWait interface {
	proto.Message
	GetWait() *waitingv1.Wait
}

type withTimer interface {
	proto.Message
	GetTimer() *waitingv1.Timer
}

type withTrigger interface {
	proto.Message
	GetTrigger() *waitingv1.Trigger
}

func foldWait[P withWait](s *State, a *agentWaits, _ *journal.Event, p P) { s.putWait(a, p.GetWait()) }

func foldMismatched(_ *State, a *agentWaits, _ *journal.Event, p *waitingv1.WaitMismatched) {
	a.mismatch(p.GetWaitId(), arrival{p.GetCause(), p.GetCauseId()})
}

func foldTimer[P withTimer](_ *State, a *agentWaits, _ *journal.Event, p P) {
	t := p.GetTimer()
	a.timers.Put(t, t.GetStatus() == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE)
}

func foldTrigger[P withTrigger](s *State, a *agentWaits, ev *journal.Event, p P) {
	t := p.GetTrigger()
	a.triggers.Put(t, lives(t))
	s.bind(a, t.GetTokenHash(), address{plane.KeyOf(ev.Namespace, ev.AgentID), t.GetTriggerId(), t.GetStatus()})
}

// foldRotated makes the previous secret lead to a revoked trigger, and the new one to the trigger.
func foldRotated(s *State, a *agentWaits, ev *journal.Event, p *waitingv1.ExternalTriggerRotated) {
	id := p.GetTrigger().GetTriggerId()
	if old := a.triggers.Get(id); old != nil {
		s.bind(a, old.GetTokenHash(), address{
			plane.KeyOf(ev.Namespace, ev.AgentID), id, waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED,
		})
	}
	foldTrigger(s, a, ev, p)
}

func foldCounted(_ *State, a *agentWaits, _ *journal.Event, p *waitingv1.DeliveriesCounted) {
	a.counted(p)
}

func foldTaskNoted(_ *State, a *agentWaits, _ *journal.Event, p *waitingv1.TaskNoted) {
	if p.GetTerminal() {
		a.tasks.Add(p.GetTaskId(), nil)
	}
}

// foldWorkItemNoted remembers a completed item, and the earlier ones of which something has not ended.
func foldWorkItemNoted(_ *State, a *agentWaits, _ *journal.Event, p *waitingv1.WorkItemNoted) {
	a.items.Add(p.GetWorkItemId(), a.itemsOfLiving)
}

func foldAgentNoted(_ *State, a *agentWaits, ev *journal.Event, p *waitingv1.AgentNoted) {
	a.stopped, a.deleted = p.GetStopped(), p.GetDeleted()
	if a.deleted {
		a.deletedAt = ev.CreatedAt
	}
}

func countRegistered(m *metrics, _ *journal.Event, p *waitingv1.WaitRegistered) {
	m.registered.WithLabelValues(kindName(p.GetWait().GetKind())).Inc()
}

func countResolved(m *metrics, _ *journal.Event, p *waitingv1.WaitResolved) {
	m.ended.WithLabelValues(kindName(p.GetWait().GetKind()), "resolved").Inc()
}

func countCancelled(m *metrics, _ *journal.Event, p *waitingv1.WaitCancelled) {
	m.ended.WithLabelValues(kindName(p.GetWait().GetKind()), "cancelled").Inc()
}

func countDelivered(m *metrics, _ *journal.Event, p *waitingv1.TriggerDelivered) {
	m.deliveries.WithLabelValues(outcomeName(p.GetOutcome())).Inc()
}

func countDeliveries(m *metrics, _ *journal.Event, p *waitingv1.DeliveriesCounted) {
	m.deliveries.WithLabelValues(outcomeName(p.GetOutcome())).Add(float64(p.GetCount()))
}

func countFired(m *metrics, ev *journal.Event, p *waitingv1.TimerFired) {
	m.fired.WithLabelValues().Inc()
	m.late.WithLabelValues().Observe(max(ev.CreatedAt.Sub(p.GetDueAt().AsTime()), 0).Seconds())
}

func indexRegistered(s *Service, ev *journal.Event, p *waitingv1.WaitRegistered, _ []*journal.Event) {
	s.indexWait(ev.Namespace, p.GetWait())
}

func unindexWait[P withWait](s *Service, ev *journal.Event, p P, _ []*journal.Event) {
	s.forgetWait(ev.Namespace, p.GetWait())
}

func indexPublications(s *Service, ev *journal.Event, p *waitingv1.DeliveriesCounted, _ []*journal.Event) {
	for _, waitID := range p.GetWaitIds() {
		s.schedulePublication(dueKey(duePublish, ev.Namespace, ev.AgentID, waitID))
	}
}

func indexTimerOf[P withTimer](s *Service, ev *journal.Event, p P, _ []*journal.Event) {
	s.indexTimer(ev.Namespace, p.GetTimer())
}

func indexTriggerOf[P withTrigger](s *Service, ev *journal.Event, p P, _ []*journal.Event) {
	s.indexTrigger(ev.Namespace, p.GetTrigger())
}

func indexItemEnd(s *Service, ev *journal.Event, _ *waitingv1.WorkItemNoted, next []*journal.Event) {
	s.indexRest(ev, next)
}

// indexAgentNoted schedules the rest of what ends with a deleted agent, and the timers that were held while the agent
// was stopped.
func indexAgentNoted(s *Service, ev *journal.Event, p *waitingv1.AgentNoted, next []*journal.Event) {
	if p.GetDeleted() {
		s.indexRest(ev, next)
	}
	if !p.GetStopped() { // fire the timers that became due while it was
		for _, k := range s.held.Release(plane.KeyOf(ev.Namespace, ev.AgentID)) {
			s.due.Set(k, s.deps.Clock.Now())
		}
	}
}
