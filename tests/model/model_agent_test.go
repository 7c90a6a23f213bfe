package model

import (
	"cmp"
	"maps"
	"slices"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// hear queues a message. It is input, unless the scheduler made it.
func (m *model) hear(a *agent, q *message) {
	a.lane = append(a.lane, q)
	if q.tick == nil {
		a.news, a.failed = m.now, 0
		if q.kind == agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT {
			return // its own doing
		}
		a.idle = 0
		for id := range a.stalls {
			if q.item == "" || q.item == id {
				delete(a.stalls, id)
			}
		}
	}
}

// stalled: three turns in a row about an item made no progress, and it was not written since.
func (a *agent) stalled(i *item) bool {
	s := a.stalls[i.id]
	return s != nil && s.turns >= patience && !i.updated.After(s.since)
}

// wake notes that something came for the agent itself.
func (m *model) wake(a *agent, waitID string) {
	if len(a.wakes) == 0 && a.turn != nil && slices.Contains(a.turn.wakes, "") {
		waitID = "" // should the turn fail, both are to be shown again, and one is about no wait
	}
	a.wakes, a.woken = append(a.wakes, waitID), m.now
}

// woken reports whether there is something to tell still: a wake that was about
// waits is over with those.
func (m *model) woken(a *agent) bool {
	return slices.ContainsFunc(a.wakes, func(id string) bool {
		w := m.waits[id]
		return w == nil || w.status == active && w.count > max(w.seen, a.shown[id], a.shown[w.replaces])
	})
}

// inOrder returns an agent's queued messages in the order in which turns take them.
func (a *agent) inOrder() []*message {
	all := slices.SortedStableFunc(slices.Values(a.lane), func(x, y *message) int {
		return cmp.Or(cmp.Compare(x.priority, y.priority), cmp.Compare(x.order, y.order))
	})
	// A tick lets the prompts of its priority pass (SPEC A5.5).
	for at := 0; at < len(all); at++ {
		last := -1
		for i, q := range all {
			if q.kind == agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT && q.priority == all[at].priority {
				last = i
			}
		}
		if tick := all[at]; tick.tick != nil && at < last {
			all = slices.Insert(slices.Delete(all, at, at+1), last, tick)
			at--
		}
	}
	return all
}

// hollow reports that an agent was woken for waits that are over since. The agent
// plane learns of that when a turn is about to be taken and drops the tick then,
// so one may be sent.
func (m *model) hollow(a *agent) bool { return len(a.wakes) > 0 && !m.woken(a) }

// verdict is what the scheduler is to do about an agent (SPEC D2). items are the
// candidates that a tick may be about, best first; ties may go either way.
type verdict struct {
	action string
	tick   agentv1.TickReason
	reason string
	items  []*item
}

func (m *model) plan(a *agent) verdict {
	if a.paused {
		return verdict{action: "nothing", reason: "agent_paused"}
	}
	if a.turn != nil {
		return verdict{action: "nothing", reason: "run_open"}
	}
	if len(a.lane) > 1 || len(a.lane) == 1 && !m.stale(a, a.lane[0].tick) {
		return verdict{action: "dispatch", reason: "message_queued"}
	}
	v := m.candidate(a)
	// Turns in a row came to nothing, and there is no input since (SPEC D4, D9).
	// What no completed turn was shown is input still, unless turns fail.
	news := a.news.After(a.began) || m.woken(a) && a.woken.After(a.began) || m.reminded(a)
	if v.action == "tick" && !news && (a.failed >= patience || a.idle >= idleness && !m.unreported(a)) {
		return verdict{action: "idle", reason: "no_progress"}
	}
	return v
}

func (m *model) unreported(a *agent) bool {
	return m.woken(a) ||
		slices.ContainsFunc(a.items, func(i *item) bool { return !i.runnable() && i.triggered(a.shown) })
}

func (m *model) reminded(a *agent) bool {
	return slices.ContainsFunc(a.items, func(i *item) bool { return !i.done && i.reminds(m.now) })
}

// candidate returns what a tick would be about, were there nothing to keep it back.
func (m *model) candidate(a *agent) verdict {
	if i := m.items[a.focus]; i != nil && i.runnable() && !a.stalled(i) {
		return verdict{"tick", agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT, "", []*item{i}}
	}
	var triggered, queued, stuck, due []*item
	for _, i := range a.items {
		switch {
		case i.done:
		case i.runnable() && a.stalled(i):
			stuck = append(stuck, i)
		case i.runnable():
			queued = append(queued, i)
		case i.triggered(a.shown):
			triggered = append(triggered, i)
		}
		if !i.done && i.reminds(m.now) {
			due = append(due, i)
		}
	}
	switch {
	case len(triggered) > 0:
		return verdict{"tick", agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED, "", ranked(triggered, byTrigger)}
	case m.woken(a):
		return verdict{"tick", agentv1.TickReason_TICK_REASON_WAKE_HINT, "", nil}
	case len(queued) > 0:
		return verdict{"tick", agentv1.TickReason_TICK_REASON_PICK_QUEUED, "", ranked(queued, byAge)}
	case len(due) > 0:
		return verdict{"tick", agentv1.TickReason_TICK_REASON_RECHECK, "", ranked(due, byRecheck)}
	case len(stuck) > 0:
		return verdict{action: "idle", reason: "no_progress"}
	}
	return verdict{action: "idle"}
}

func (i *item) reminds(now time.Time) bool {
	return !i.recheck().IsZero() && !i.recheck().After(now)
}

// The orders of the candidate classes (SPEC W9).
func byTrigger(x, y *item) int {
	return cmp.Or(y.lastTriggered().Compare(x.lastTriggered()), y.updated.Compare(x.updated))
}

func byAge(x, y *item) int {
	if !x.resumed.IsZero() || !y.resumed.IsZero() { // those that were resumed come first
		return cmp.Or(cmp.Compare(since(x), since(y)), x.created.Compare(y.created))
	}
	return cmp.Or(x.updated.Compare(y.updated), x.created.Compare(y.created))
}

func since(i *item) int64 {
	if i.resumed.IsZero() {
		return 1 << 62
	}
	return i.resumed.UnixNano()
}
func byRecheck(x, y *item) int { return x.recheck().Compare(y.recheck()) }
func byUpdate(x, y *item) int  { return y.updated.Compare(x.updated) }

func ranked(all []*item, by func(x, y *item) int) []*item {
	return slices.SortedStableFunc(slices.Values(all), by)
}

// stale says of a tick in the lane whether it is dropped when a runner would take it (SPEC
// D4). What is no tick is never stale.
func (m *model) stale(a *agent, t *agentv1.Tick) bool {
	i, current := m.items[t.GetWorkItemId()], m.items[a.focus]
	switch t.GetReason() {
	case agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT:
		return i == nil || !i.current() || !i.runnable()
	case agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED:
		return !slices.ContainsFunc(a.items, func(i *item) bool {
			return i.triggered(nil) &&
				(i.current() || i.class() == workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED)
		})
	case agentv1.TickReason_TICK_REASON_WAKE_HINT:
		waits := !slices.Contains(a.wakes, "")
		return len(a.wakes) == 0 && a.last != t.GetLastTurnId() ||
			len(a.wakes) > 0 && waits &&
				!slices.ContainsFunc(a.waits, func(w *wait) bool {
					return w.item == "" && w.status == active &&
						w.count > w.seen
				})
	case agentv1.TickReason_TICK_REASON_PICK_QUEUED:
		return current != nil && current.runnable() && !a.stalled(current) || i == nil || i.done || !i.runnable() ||
			i.current()
	case agentv1.TickReason_TICK_REASON_RECHECK:
		return i == nil || i.done || i.recheck().IsZero() && i.given.IsZero()
	}
	return false
}

// bind returns the item to which a turn about a message is bound (SPEC A13).
func (m *model) bind(a *agent, q *message) string {
	if q.tick.GetReason() == agentv1.TickReason_TICK_REASON_PICK_QUEUED {
		return ""
	}
	open := func(id string) bool { i := m.items[id]; return i != nil && i.owner == a && !i.done }
	about := q.item
	if q.tick != nil {
		about = q.tick.GetWorkItemId()
	}
	if open(about) {
		return about
	}
	for _, w := range a.waits {
		ended := w.status == resolved && (w.endedBy == q.id || w.endedBy == q.cause) &&
			q.kind != agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT
		reached := w.status == active && slices.Contains(q.reached, w)
		if (ended || reached) && open(w.item) {
			return w.item
		}
	}
	return a.focus
}

// take starts a turn with a message.
func (m *model) take(a *agent, q *message, t *turn) {
	a.lane = slices.DeleteFunc(a.lane, func(x *message) bool { return x == q })
	q.attempts++
	t.bound = m.bind(a, q)
	t.msg, t.until, t.item, t.started, t.previous = q, m.now.Add(turnTerm), t.bound, m.now, a.began
	t.wakes, a.wakes = a.wakes, nil
	a.turn, a.began = t, m.now
}

// finish ends the open turn. A completed one has dealt with its message and with
// what it was shown; a failed one with nothing.
func (m *model) finish(a *agent, completed, fatal bool) {
	t := a.turn
	a.turn, a.last = nil, t.id
	defer func() { a.done = append(a.done, t.effects)[max(0, len(a.done)-2):] }()
	if completed {
		a.failed = 0
		m.progress(a, t)
		for id, n := range t.shown {
			a.shown[id] = max(a.shown[id], n)
		}
		if shown := maps.Clone(t.shown); len(shown) > 0 {
			m.say("agent>waiting", func() { m.consumed(a, shown) })
		}
		return
	}
	a.wakes = append(t.wakes, a.wakes...)
	// What reached the turn while it ran has not been dealt with either.
	m.back(a, t.with...)
	switch {
	case !fatal && t.progress && t.msg.progressed < progressed: // SPEC A5.6
		t.msg.attempts--
		t.msg.progressed++
	case fatal || t.msg.attempts >= attempts:
		if t.msg.tick != nil { // it counts as a turn that came to nothing, too
			a.failed++
			a.idle++
		}
		return // quarantined
	}
	m.back(a, t.msg)
}

// progress counts a completed turn for its item (SPEC D9).
func (m *model) progress(a *agent, t *turn) {
	about := t.bound
	if about == "" {
		about = t.msg.tick.GetWorkItemId()
	}
	progressed := t.changed || slices.ContainsFunc(t.effects, func(e string) bool {
		return !slices.ContainsFunc(a.done, func(before []string) bool { return slices.Contains(before, e) })
	})
	if progressed {
		a.idle = 0
		delete(a.stalls, about)
		delete(a.stalls, t.item)
		return
	}
	a.idle++
	if about == "" {
		return
	}
	if a.stalls == nil {
		a.stalls = map[string]*stall{}
	}
	s := a.stalls[about]
	if s == nil {
		s = &stall{}
		a.stalls[about] = s
	}
	s.turns++
	s.since = t.started
	if t.msg.tick.GetWorkItemId() == about && t.msg.tick.GetReason() != agentv1.TickReason_TICK_REASON_RECHECK {
		s.since = t.msg.decided // with the item as it was
	}
}

// abort ends the open turn for good: its message is not heard again, and what it
// was shown is not consumed. The agent takes no other one until it is resumed
// (SPEC A7).
func (m *model) abort(a *agent) {
	a.paused = true
	if t := a.turn; t != nil {
		a.done = append(a.done, t.effects)[max(0, len(a.done)-2):]
		a.turn, a.last = nil, t.id
		a.wakes = append(t.wakes, a.wakes...)
		m.back(a, t.with...) // an abort takes the turn's own message out, and no other words
	}
}

// back puts messages at the front of their bands.
func (m *model) back(a *agent, all ...*message) {
	for _, q := range slices.Backward(all) {
		first := 0
		for _, x := range a.lane {
			first = min(first, x.order)
		}
		q.order = first - 1
		a.lane = append(a.lane, q)
	}
}

// expire ends what the clock has overtaken in the agent and task planes.
func (m *model) expire() (lapsed []*task) {
	for _, a := range m.agents {
		if a.turn != nil && !a.turn.until.After(m.now) {
			m.finish(a, false, false)
		}
	}
	for _, t := range m.tasks {
		if !t.over && !t.until.After(m.now) {
			lapsed = append(lapsed, t)
			m.endTask(t)
		}
	}
	return lapsed
}

func (m *model) endTask(t *task) {
	t.over = true
	m.say("task>waiting", func() { m.taskEnded(t) })
	m.say("task>agent", func() {
		m.hear(t.owner, &message{kind: agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT, cause: t.id, item: t.item})
	})
}

// posture returns the first posture whose condition holds (SPEC A4). With a focus, only the
// waits of that item count.
func (m *model) posture(a *agent) agentv1.Posture {
	switch {
	case a.paused:
		return agentv1.Posture_POSTURE_PAUSED
	case a.turn != nil:
		return agentv1.Posture_POSTURE_RUNNING_TURN
	case len(a.lane) > 1 || len(a.lane) == 1 && !m.stale(a, a.lane[0].tick):
		return agentv1.Posture_POSTURE_QUEUED_INPUT
	case slices.ContainsFunc(a.items, (*item).runnable):
		return agentv1.Posture_POSTURE_RUNNABLE_WORK
	}
	rank := map[workv1.SchedulingState]agentv1.Posture{
		workv1.SchedulingState_SCHEDULING_STATE_WAITING_TASK:     agentv1.Posture_POSTURE_WAITING_TASK,
		workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL: agentv1.Posture_POSTURE_WAITING_EXTERNAL,
		workv1.SchedulingState_SCHEDULING_STATE_WAITING_TIMER:    agentv1.Posture_POSTURE_WAITING_EXTERNAL,
		workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR: agentv1.Posture_POSTURE_WAITING_OPERATOR,
		workv1.SchedulingState_SCHEDULING_STATE_BLOCKED:          agentv1.Posture_POSTURE_BLOCKED,
	}
	best := agentv1.Posture_POSTURE_IDLE
	for _, i := range a.items {
		if p, ok := rank[i.derive().state]; ok && (a.focus == "" || i.current()) {
			best = min(best, p)
		}
	}
	if w := a.blocks(""); w != nil && a.focus == "" {
		byKind := map[any]agentv1.Posture{
			onTask:   agentv1.Posture_POSTURE_WAITING_TASK,
			external: agentv1.Posture_POSTURE_WAITING_EXTERNAL, onTimer: agentv1.Posture_POSTURE_WAITING_EXTERNAL,
			operator: agentv1.Posture_POSTURE_WAITING_OPERATOR,
		}
		best = min(best, byKind[w.kind])
	}
	return best
}
