package scheduler

import (
	"context"

	"quartet/pkg/journal"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/plane"
)

// interest reports, by plane, whether an event may change a decision: of the agent plane all but
// those within a turn and those that queue a message, of the work plane those that change the
// focus, waits, readiness or fields of an item.
var interest = map[string]func(*journal.Event) bool{
	"agent": func(ev *journal.Event) bool {
		switch ev.Type {
		case "local_calls_started", "round_submitted", "tool_result_recorded", "round_settled", "decision_recorded",
			"message_dequeued", "turn_started",
			"message_queued", "message_requeued":
			// A queued message gives the agent a turn in any case, without a decision.
			// The next decision is due when that turn has ended.
			return false
		}
		return true
	},
	"work": func(ev *journal.Event) bool {
		switch ev.Type {
		case "work_item_picked", "focus_released", "wait_attached", "wait_detached":
			// The end of a wait is a change from outside, and so new input for an agent
			// whose turns changed nothing (SPEC D4), whether or not readiness changed.
			return true
		case "work_item_updated":
			return true // it may have set a reminder
		}
		return ev.ReadinessFrom != ev.ReadinessTo
	},
}

// listen marks, as agents to evaluate, those of a partition's events after the position after, until ctx ends. The
// first sweep covers the events up to that position. From an agent plane in the same process listen also receives
// hints: events that are not durable yet.
func (s *Service) listen(ctx context.Context, src journal.Source, after framelog.End) {
	defer s.running.Done()
	matters := interest[src.Plane()]
	own := src.Plane() == "agent"
	if h, here := src.(journal.Hinter); own && here {
		defer h.Hint(func(events []*journal.Event, lost bool) {
			var causes []cause
			for _, ev := range events {
				// An evaluation may have read a state with any of the lost events, also with those that do not matter.
				if !journal.Internal(ev.Type) && ev.AgentID != "" && (lost || matters(ev)) {
					causes = append(causes, s.causeOf(ev))
				}
			}
			switch {
			case len(causes) == 0:
			case lost:
				s.dirty.retract(causes)
			default:
				s.dirty.hint(causes)
			}
		})()
	}
	follower.Run(ctx, src, after, s.deps.Logger, func(_ framelog.End, lines []journal.Line) error {
		var causes []cause
		for _, line := range lines {
			ev, err := line.Envelope()
			if err != nil || journal.Internal(ev.Type) || ev.AgentID == "" || !matters(ev) {
				continue
			}
			causes = append(causes, s.causeOf(ev))
		}
		s.dirty.receive(causes, own)
		return nil
	})
}

// causeOf returns an event as the cause of an evaluation, with its trace where it is traced.
func (s *Service) causeOf(ev *journal.Event) cause {
	c := cause{agent: plane.KeyOf(ev.Namespace, ev.AgentID), eventID: ev.ID}
	if s.deps.Tracer.On() {
		c.trace = ev.Traceparent
	}
	return c
}
