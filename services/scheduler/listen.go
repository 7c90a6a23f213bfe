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
		case "local_calls_started", "round_submitted", "tool_result_recorded", "round_settled", "decision_recorded", "message_dequeued", "turn_started",
			"message_queued", "message_requeued":
			// The last two give the agent a turn in any case. The next decision is due
			// when that turn has ended.
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

// listen marks the agents that the events of a partition name, behind after, until
// ctx ends. The first sweep covers what was before. Of an agent plane in the same process it
// also receives hints: events that are not durable yet.
func (s *Service) listen(ctx context.Context, src journal.Source, after framelog.End) {
	defer s.running.Done()
	matters := interest[src.Plane()]
	own := src.Plane() == "agent"
	if h, here := src.(journal.Hinter); own && here {
		defer h.Hint(func(events []*journal.Event, lost bool) {
			for _, ev := range events {
				switch k := (plane.KeyOf(ev.Namespace, ev.AgentID)); {
				case journal.Internal(ev.Type) || ev.AgentID == "":
				case lost: // an evaluation may have seen any of them
					s.dirty.retract(k)
				case matters(ev):
					s.dirty.hint(k, s.causeOf(ev), ev.ID)
				}
			}
		})()
	}
	follower.Run(ctx, src, after, s.deps.Logger, func(_ framelog.End, lines []journal.Line) error {
		for _, line := range lines {
			ev, err := line.Envelope()
			if err != nil || journal.Internal(ev.Type) || ev.AgentID == "" || !matters(ev) {
				continue
			}
			k := plane.KeyOf(ev.Namespace, ev.AgentID)
			if own && s.dirty.hinted(k, ev.ID) {
				continue
			}
			s.dirty.add(k, own, s.causeOf(ev))
		}
		return nil
	})
}

// causeOf returns the trace that an event is part of, or "" where nothing is traced.
func (s *Service) causeOf(ev *journal.Event) string {
	if !s.deps.Tracer.On() {
		return ""
	}
	return ev.Traceparent
}
