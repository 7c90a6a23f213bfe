package scheduler

import (
	"context"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
)

// interest names the planes that the scheduler hears. Every event of the agent
// plane but those of a running round may free an agent or give it something to
// do; of the others only what changes readiness or brings a trigger matters.
var interest = map[string]func(*journal.Event) bool{
	"agent": func(ev *journal.Event) bool {
		switch ev.Type {
		case "round_submitted", "tool_result_recorded", "round_settled", "decision_recorded", "message_dequeued", "turn_started",
			"message_queued", "message_requeued":
			// The last two give the agent a turn to take by themselves: what is
			// left to decide is decided when that turn has ended.
			return false
		}
		return true
	},
	"work": func(ev *journal.Event) bool {
		switch ev.Type {
		case "work_item_picked", "focus_released", "wait_attached", "wait_detached":
			// A wait that ends is a change by somebody else: new input for an agent
			// whose turns came to nothing (SPEC D4), readiness moved or not.
			return true
		case "work_item_updated":
			return true // it may have set a reminder
		}
		return ev.ReadinessFrom != ev.ReadinessTo
	},
}

type key struct{ namespace, id string }

// listen marks the agents that events name. It begins at the end: what was
// before is covered by the first sweep.
func (s *Service) listen(ctx context.Context, src journal.Source, next uint64) {
	defer s.running.Done()
	matters := interest[src.Plane()]
	own := src.Plane() == "agent"
	if h, here := src.(journal.Hinter); own && here {
		defer h.Hint(func(events []*journal.Event, lost bool) {
			for _, ev := range events {
				switch k := (key{ev.Namespace, ev.AgentID}); {
				case journal.Internal(ev.Type) || ev.AgentID == "":
				case lost: // whatever it was, a look may have seen it
					s.dirty.lost(k)
				case matters(ev):
					s.dirty.hint(k, s.causeOf(ev), ev.ID)
				}
			}
		})()
	}
	pause := 10 * time.Millisecond
	for ctx.Err() == nil {
		err := src.Follow(ctx, next, func(seq uint64, lines []journal.Line) error {
			next = seq + 1
			pause = 10 * time.Millisecond
			for _, line := range lines {
				ev, err := line.Envelope()
				if err != nil || journal.Internal(ev.Type) || ev.AgentID == "" || !matters(ev) {
					continue
				}
				k := key{ev.Namespace, ev.AgentID}
				if own && s.dirty.hinted(k, ev.ID) {
					continue
				}
				s.dirty.add(k, own, s.causeOf(ev))
			}
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		s.deps.Logger.Debug("following again", zap.String("plane", src.Plane()), zap.Error(err))
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		pause = min(2*pause, time.Second)
	}
}

// causeOf is the trace that an event is part of; "" where nothing is traced.
func (s *Service) causeOf(ev *journal.Event) string {
	if !s.deps.Tracer.On() {
		return ""
	}
	return ev.Traceparent
}
