package scheduler

import (
	"context"

	"quartet/pkg/journal"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/plane"
)

// wakes has, by plane and event type, whether an event may change a decision. An event of the agent plane does,
// unless it is within a turn or queues a message: a queued message gives the agent a turn in any case, without a
// decision, and the next decision is due when that turn has ended.
var wakes = map[string]map[string]func(*journal.Event) bool{
	"agent": {
		"agent_spawned": always, "agent_paused": always, "agent_resumed": always, "agent_stopped": always,
		"agent_started": always, "agent_deleting": always, "agent_deleted": always, "agent_woken": always,
		"delegation_opened": always, "delegation_updated": always, "delegation_completed": always,
		"first_item_noted": always, "task_answered": always, "brief_written": always, "decision_recorded": never,
		"message_queued": never, "message_requeued": never, "message_dequeued": never,
		"message_processed": always, "message_interjected": always, "message_aborted": always,
		"message_dropped": always, "message_quarantined": always,
		"turn_started": never, "round_submitted": never, "local_calls_started": never,
		"tool_result_recorded": never, "round_settled": never,
		"turn_completed": always, "turn_failed": always, "turn_interrupted": always, "turn_aborted": always,
	},
	"work": {
		"work_item_created": ifReadinessChanged, "work_item_completed": ifReadinessChanged,
		"work_item_updated": always, // it may have set a reminder
		"work_item_picked":  always, "focus_released": always,
		// The end of a wait is a change from outside, and so new input for an agent
		// whose turns changed nothing (SPEC D4), whether or not readiness changed.
		"wait_attached": always, "wait_detached": always, "wait_attach_refused": never,
		"report_promoted": ifReadinessChanged, "recheck_consumed": ifReadinessChanged,
		"home_file_written": never, "owner_deleted": never,
	},
}

func always(*journal.Event) bool { return true }

func never(*journal.Event) bool { return false }

func ifReadinessChanged(ev *journal.Event) bool {
	return ev.ReadinessFrom != ev.ReadinessTo
}

// interest reports whether an event of a plane may change a decision. One of a type that has no entry, which a later
// version wrote, may.
func interest(plane string, ev *journal.Event) bool {
	wake, known := wakes[plane][ev.Type]
	return !known || wake(ev)
}

// listen marks, as agents to evaluate, those of a partition's events after the position after, until ctx ends. The
// first sweep covers the events up to that position. From an agent plane in the same process listen also receives
// hints: events that are not durable yet.
func (s *Service) listen(ctx context.Context, src journal.Source, after framelog.End) {
	defer s.running.Done()
	matters := func(ev *journal.Event) bool { return interest(src.Plane(), ev) }
	fromAgentPlane := src.Plane() == "agent"

	// Receive hints, until listen returns.
	hinter, inThisProcess := src.(journal.Hinter)
	if fromAgentPlane && inThisProcess {
		removeHint := hinter.Hint(func(events []*journal.Event, lost bool) {
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
		})
		defer removeHint()
	}

	// Follow what is durable.
	follower.Run(ctx, src, after, s.deps.Logger, func(_ framelog.End, lines []journal.Line) error {
		var causes []cause
		for _, line := range lines {
			ev, err := line.Envelope()
			if err != nil || journal.Internal(ev.Type) || ev.AgentID == "" || !matters(ev) {
				continue
			}
			causes = append(causes, s.causeOf(ev))
		}
		s.dirty.receive(causes, fromAgentPlane)
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
