package agent

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/meter"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
)

// metrics counts durable events and samples the lanes. No label names a tenant or an
// agent.
type metrics struct {
	queued, rounds, tools, tokens, started, ended, expired, quarantined *prometheus.CounterVec
	waited, took                                                        *prometheus.HistogramVec

	agents, waiting, oldest, running *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	if reg == nil {
		return nil
	}
	return &metrics{
		queued: meter.Counter(reg, "quartet_messages_queued_total", "Messages added to lanes.", "kind"),
		quarantined: meter.Counter(reg, "quartet_messages_quarantined_total",
			"Messages quarantined after failed turns."),
		waited: meter.Histogram(reg, "quartet_message_wait_seconds",
			"Time from a message's queueing to the turn that takes it.", meter.Work),
		started: meter.Counter(reg, "quartet_turns_started_total", "Turns leased to runners."),
		ended: meter.Counter(reg, "quartet_turns_ended_total", "Turns that ended, by state and reason.", "state",
			"reason"),
		took: meter.Histogram(reg, "quartet_turn_seconds", "Time from a turn's start to its end.", meter.Work,
			"state"),
		expired: meter.Counter(reg, "quartet_turn_leases_expired_total",
			"Leases of turns that expired: their runner did not renew them."),
		rounds: meter.Counter(reg, "quartet_rounds_total", "Rounds submitted."),
		tools: meter.Counter(reg, "quartet_tool_calls_total", "Tool calls of rounds, by tool and status.", "tool",
			"status"),
		tokens: meter.Counter(reg, "quartet_model_tokens_total", "Input and output tokens that runners reported.",
			"direction"),
		agents: meter.Gauge(reg, "quartet_agents", "Agents that are not deleted, by control.", "partition",
			"control"),
		waiting: meter.Gauge(reg, "quartet_lane_queued_messages", "Messages queued in all lanes.", "partition"),
		oldest: meter.Gauge(reg, "quartet_lane_oldest_message_age_seconds",
			"Age of the oldest message that a running agent has queued; 0: none.", "partition"),
		running: meter.Gauge(reg, "quartet_turns_running", "Turns that runners hold.", "partition"),
	}
}

// count counts a durable event.
func (m *metrics) count(ev *journal.Event) {
	switch p := ev.Payload.(type) {
	case *agentv1.MessageQueued:
		m.queued.WithLabelValues(pbjson.EnumText(p.GetMessage().GetKind())).Inc()
	case *agentv1.MessageDequeued:
		m.waited.WithLabelValues().Observe(between(p.GetMessage().GetCreatedAt(), p.GetMessage().GetUpdatedAt()))
	case *agentv1.MessageQuarantined:
		m.quarantined.WithLabelValues().Inc()
	case *agentv1.TurnStarted:
		m.started.WithLabelValues().Inc()
	case *agentv1.RoundSubmitted:
		m.rounds.WithLabelValues().Inc()
		m.tokens.WithLabelValues("input").Add(float64(max(p.GetRound().GetUsage().GetInputTokens(), 0)))
		m.tokens.WithLabelValues("output").Add(float64(max(p.GetRound().GetUsage().GetOutputTokens(), 0)))
	case *agentv1.ToolResultRecorded:
		m.tools.WithLabelValues(knownTool(p.GetResult().GetToolName()),
			pbjson.EnumText(p.GetResult().GetStatus())).Inc()
	default:
		if t := state.EndedTurn([]*journal.Event{ev}); t != nil {
			outcome := pbjson.EnumText(t.GetState())
			m.ended.WithLabelValues(outcome, pbjson.EnumText(t.GetEndReason())).Inc()
			m.took.WithLabelValues(outcome).Observe(between(t.GetStartedAt(), t.GetEndedAt()))
			if t.GetEndReason() == agentv1.TurnEndReason_TURN_END_REASON_LEASE_LOST {
				m.expired.WithLabelValues().Inc()
			}
		}
	}
}

// knownTool returns the current name of a tool, or "unknown" if there is no such tool: names that a
// model invented must not become labels.
func knownTool(name string) string {
	if t, ok := tools.Named(name); ok {
		return t.Name
	}
	return "unknown"
}

func between(from, to *timestamppb.Timestamp) float64 {
	return max(to.AsTime().Sub(from.AsTime()), 0).Seconds()
}

// sampleSize is how many agents are read at a time: the journal's loop waits meanwhile,
// and reading a hundred thousand agents would delay it by milliseconds.
const sampleSize = 1000

// laneSample is what a sample counted.
type laneSample struct {
	agents  map[string]int
	queued  int
	running int
	oldest  time.Time
	next    plane.Key // where the next part begins, if there is more
	more    bool
}

// removeGauges removes the gauges of partitions that are no longer held here.
func (m *metrics) removeGauges(parts []*journal.Partition[*state.State]) {
	if m == nil {
		return
	}
	for _, p := range parts {
		for _, g := range []*prometheus.GaugeVec{m.agents, m.waiting, m.oldest, m.running} {
			g.DeletePartialMatch(prometheus.Labels{"partition": strconv.Itoa(p.Index())})
		}
	}
}

// Sample updates the gauges from all lanes.
func (s *Service) Sample(ctx context.Context) {
	if s.metrics == nil || s.engine == nil {
		return
	}
	for _, p := range s.engine.All() {
		found, err := sample(ctx, p)
		if err != nil {
			continue // the gauges keep their values; the journal's own metrics say why
		}
		partition := strconv.Itoa(p.Index())
		for _, control := range []string{"running", "paused", "stopped"} {
			s.metrics.agents.WithLabelValues(partition, control).Set(float64(found.agents[control]))
		}
		s.metrics.waiting.WithLabelValues(partition).Set(float64(found.queued))
		s.metrics.running.WithLabelValues(partition).Set(float64(found.running))
		age := time.Duration(0)
		if !found.oldest.IsZero() {
			age = max(s.deps.Clock.Now().Sub(found.oldest), 0)
		}
		s.metrics.oldest.WithLabelValues(partition).Set(age.Seconds())
	}
}

func sample(ctx context.Context, p *journal.Partition[*state.State]) (*laneSample, error) {
	found := &laneSample{agents: map[string]int{}}
	for from := (plane.Key{}); ; {
		part, _, err := journal.View(ctx, p, func(st *state.State) (*laneSample, error) {
			part := &laneSample{agents: map[string]int{}}
			n := 0
			st.IDs.AscendGreaterOrEqual(from, func(k plane.Key) bool {
				if n++; n > sampleSize {
					part.next, part.more = k, true
					return false
				}
				part.add(st.LoadOf(k))
				return true
			})
			return part, nil
		})
		if err != nil {
			return nil, err
		}
		for control, n := range part.agents {
			found.agents[control] += n
		}
		found.queued += part.queued
		found.running += part.running
		found.noteOldest(part.oldest)
		if !part.more {
			return found, nil
		}
		from = part.next
	}
}

func (l *laneSample) add(a state.Load) {
	if !a.Active {
		return
	}
	l.agents[pbjson.EnumText(a.Control)]++
	if a.Running {
		l.running++
	}
	l.queued += a.Queued
	if a.Control == agentv1.Control_CONTROL_RUNNING { // a paused one keeps its messages on purpose
		l.noteOldest(a.Oldest)
	}
}

func (l *laneSample) noteOldest(at time.Time) {
	if !at.IsZero() && (l.oldest.IsZero() || at.Before(l.oldest)) {
		l.oldest = at
	}
}
