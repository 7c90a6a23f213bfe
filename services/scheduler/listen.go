package scheduler

import (
	"context"
	"sync"
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
		case "work_item_picked", "focus_released", "wait_attached":
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
				if own {
					s.dirty.mark(k)
				} else {
					s.dirty.nudge(k)
				}
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

// dirty is the set of agents to look at. An agent is looked at by one goroutine
// at a time; what is marked meanwhile is looked at once more. That coalesces a
// storm of events to one look after another (SPEC P7).
type dirty struct {
	mu     sync.Mutex
	cond   *sync.Cond
	queue  []key
	agents map[key]*mark
	closed bool
}

type mark struct {
	queued, looking, again bool
	busy                   bool // only the agent plane can end its state
}

func newDirty() *dirty {
	d := &dirty{agents: map[key]*mark{}}
	d.cond = sync.NewCond(&d.mu)
	return d
}

// mark says that an agent is to be looked at.
func (d *dirty) mark(k key) { d.add(k, true) }

// nudge is mark for events of other planes: while the agent has a turn or a
// message there is nothing to decide, and the end of that marks it anyhow.
func (d *dirty) nudge(k key) { d.add(k, false) }

func (d *dirty) add(k key, always bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.agents[k]
	if m == nil {
		m = &mark{}
		d.agents[k] = m
	}
	switch {
	case m.looking:
		m.again = true
	case m.queued, !always && m.busy:
	default:
		m.queued = true
		d.queue = append(d.queue, k)
		d.cond.Signal()
	}
}

// take waits for an agent to look at; false when the set is closed.
func (d *dirty) take() (key, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.queue) == 0 && !d.closed {
		d.cond.Wait()
	}
	if d.closed {
		return key{}, false
	}
	k := d.queue[0]
	d.queue = d.queue[1:]
	m := d.agents[k]
	m.queued, m.looking, m.again = false, true, false
	return k, true
}

// done ends a look. A busy agent is remembered, others are not: that keeps the
// set as small as what is going on.
func (d *dirty) done(k key, busy bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.agents[k]
	m.looking, m.busy = false, busy
	switch {
	case m.again && !d.closed:
		m.queued = true
		d.queue = append(d.queue, k)
		d.cond.Signal()
	case !busy:
		delete(d.agents, k)
	}
}

func (d *dirty) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.cond.Broadcast()
}
