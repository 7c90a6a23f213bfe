package model

import (
	"slices"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// model is what the SPEC says of the system, as plain values. What one plane
// says and another has not heard yet stands in said, by who says it to whom.
type model struct {
	now    time.Time
	agents []*agent
	items  map[string]*item
	waits  map[string]*wait
	trigs  map[string]*trigger
	timers map[string]*timer
	tasks  map[string]*task
	said   map[string][]func()
	held   map[string]bool // edges that are held back
}

var edges = []string{"task>waiting", "task>agent", "work>waiting", "agent>waiting", "waiting>work", "waiting>agent"}

type agent struct {
	id     string
	focus  string
	items  []*item
	waits  []*wait
	lane   []*message
	turn   *turn
	idle   int // completed turns in a row without progress (SPEC D9)
	stalls map[string]*stall
	done   [][]string // the fingerprints of the last completed and failed turns' calls, newest last
	failed int        // ticks in a row whose turns failed for good
	began  time.Time  // the last turn
	news   time.Time  // the last input but wakes
	woken  time.Time  // the last wake
	wakes  []string   // waits of its own that woke it; "" for anything else
	shown  map[string]int64
	last   string // the turn that ended last
	paused bool
	alarms []time.Time // all reminders there ever were
}

// stall counts the completed turns in a row about an item that made no progress.
type stall struct {
	turns int
	since time.Time
}

type todo struct {
	text  string
	state workv1.TodoState
}

type item struct {
	id, objective        string
	owner                *agent
	plan                 workv1.PlanStatus
	todos                []todo
	blocker, blockerWait string
	done                 bool
	heardDone            bool // the waiting plane knows
	report               string
	waits                []*wait         // copies: what the work plane knows
	over                 map[string]bool // waits that it knows to be over
	created, updated     time.Time
	own                  time.Time // its own reminder, until it is given
	given                time.Time // the reminder that was given last
	reminder             time.Time // one that ended with its wait
	resumed              time.Time // when the wait that blocked it was resolved, until it is turned to
	unsure               bool      // whether that one was given
}

type wait struct {
	id, item, reason, resource string
	owner                      *agent
	intent, contentful, hint   bool
	auto                       bool // made by a delivery that no wait was made for
	kind                       waitingv1.WaitKind
	status                     waitingv1.WaitStatus
	rev                        int
	count, seen, told          int64
	made, last                 time.Time
	due, recheck, tell         time.Time
	rechecked                  bool
	replaces                   string
	endedBy                    string // the message, task or time that resolved it
}

type trigger struct {
	id, item, token, old string
	owner                *agent
	contentful           bool
	status               waitingv1.TriggerStatus
	expires              time.Time
	count, joined, idle  int64
}

type timer struct {
	id          string
	owner       *agent
	status      waitingv1.TimerStatus
	start, next time.Time
	every       time.Duration
	count       int64
	fires       int64
	skipped     int64
}

type task struct {
	id, item string
	owner    *agent
	blocking bool
	over     bool
	until    time.Time
}

type message struct {
	id, cause, item string
	kind            agentv1.MessageKind
	priority        agentv1.Priority
	order           int
	attempts        int
	progressed      int
	tick            *agentv1.Tick
	decided         time.Time // when the tick was
	reached         []*wait   // that a delivery reached
	known           bool      // its id, priority and order were seen
}

type turn struct {
	id, run  string
	msg      *message
	with     []*message // interjected
	item     string     // what calls go to
	bound    string     // what it was bound to at its start
	changed  bool       // whether a call changed something
	effects  []string   // the fingerprints of calls that may be repeated
	calls    int
	progress bool
	rounds   int
	until    time.Time
	shown    map[string]int64
	wakes    []string
	started  time.Time
	previous time.Time
}

const (
	active    = waitingv1.WaitStatus_WAIT_STATUS_ACTIVE
	resolved  = waitingv1.WaitStatus_WAIT_STATUS_RESOLVED
	cancelled = waitingv1.WaitStatus_WAIT_STATUS_CANCELLED
	external  = waitingv1.WaitKind_WAIT_KIND_EXTERNAL
	operator  = waitingv1.WaitKind_WAIT_KIND_OPERATOR
	onTask    = waitingv1.WaitKind_WAIT_KIND_TASK
	onTimer   = waitingv1.WaitKind_WAIT_KIND_TIMER

	needsInput = workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT

	turnTerm   = 30 * time.Second       // SPEC X12
	taskTerm   = 30 * time.Second       // SPEC X12
	tellTerm   = 250 * time.Millisecond // ADR 0012
	attempts   = 3                      // SPEC A5
	progressed = 30                     // SPEC A5.6
	patience   = 3                      // SPEC D4, D9: failed ticks, and turns about an item
	idleness   = 9                      // SPEC D9: turns without progress
)

// say queues what a plane will be told.
func (m *model) say(edge string, what func()) { m.said[edge] = append(m.said[edge], what) }

// flush tells all that is not held back. What is told may make others speak.
func (m *model) flush() {
	for again := true; again; {
		again = false
		for _, e := range edges {
			for len(m.said[e]) > 0 && !m.held[e] {
				next := m.said[e][0]
				m.said[e] = m.said[e][1:]
				next()
				again = true
			}
		}
	}
}

// lag reports whether somebody has not heard yet what bears on a turn.
func (m *model) lag() bool {
	for _, w := range m.waits {
		if w.status == active && w.told < w.count {
			return true
		}
	}
	return m.held["agent>waiting"] || m.held["waiting>work"] || m.held["task>waiting"]
}

// --- work: items, focus, readiness

// facts of an item, derived (SPEC W8).
type derived struct {
	state     workv1.SchedulingState
	readiness workv1.Readiness
	reason    string
}

func (i *item) derive() derived {
	const blocked = workv1.Readiness_READINESS_BLOCKED
	byKind := map[waitingv1.WaitKind]derived{
		onTask: {workv1.SchedulingState_SCHEDULING_STATE_WAITING_TASK, blocked, "active_task_wait"},
		operator: {
			workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR,
			workv1.Readiness_READINESS_WAITING_FOR_OPERATOR, "active_operator_wait",
		},
		onTimer:  {workv1.SchedulingState_SCHEDULING_STATE_WAITING_TIMER, blocked, "active_timer_wait"},
		external: {workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL, blocked, "active_external_wait"},
	}
	if i.done {
		return derived{
			workv1.SchedulingState_SCHEDULING_STATE_COMPLETED, workv1.Readiness_READINESS_COMPLETED,
			"completed",
		}
	}
	for _, w := range i.waits {
		if !w.intent {
			return byKind[w.kind] // there is at most one (SPEC P1)
		}
	}
	switch {
	case i.blocker != "":
		return derived{workv1.SchedulingState_SCHEDULING_STATE_BLOCKED, blocked, "manual_blocker"}
	case i.plan == needsInput:
		return derived{
			workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR,
			workv1.Readiness_READINESS_WAITING_FOR_OPERATOR, "plan_needs_input",
		}
	}
	return derived{workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE, workv1.Readiness_READINESS_RUNNABLE, "runnable"}
}

func (i *item) runnable() bool { return i.derive().readiness == workv1.Readiness_READINESS_RUNNABLE }

// recheck returns the next reminder, of its own or of a wait; zero: none (SPEC P5).
func (i *item) recheck() (next time.Time) {
	next = i.own
	for _, w := range i.waits {
		if !w.recheck.IsZero() && !w.rechecked && (next.IsZero() || w.recheck.Before(next)) {
			next = w.recheck
		}
	}
	return next
}

// remind gives the reminder that is due. One that ended with its wait in the same
// step was given just before, or the tick was sent and nothing was left to be given.
func (m *model) remind(i *item) {
	at := i.recheck()
	i.updated = m.now
	if at.IsZero() || at.After(m.now) {
		i.unsure = true
		return
	}
	i.given = at
	if i.own.Equal(at) {
		i.own = time.Time{}
	}
	for _, w := range i.waits {
		w.rechecked = w.rechecked || w.recheck.Equal(at)
	}
}

func (i *item) current() bool { return i.owner.focus == i.id }

// triggered: something came that no completed turn was shown. beyond are counts
// that were shown, though the waiting plane has not said so yet.
func (i *item) triggered(beyond map[string]int64) bool {
	return slices.ContainsFunc(i.waits, func(w *wait) bool {
		return w.count > max(w.seen, beyond[w.id], beyond[w.replaces])
	})
}

// lastTriggered ranks triggered items.
func (i *item) lastTriggered() (last time.Time) {
	for _, w := range i.waits {
		if w.count > w.seen && w.last.After(last) {
			last = w.last
		}
	}
	return last
}

func (i *item) class() workv1.CandidateClass {
	switch d := i.derive(); {
	case i.done:
		return workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT
	case i.runnable() && i.current():
		return workv1.CandidateClass_CANDIDATE_CLASS_CURRENT_RUNNABLE
	case i.runnable():
		return workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE
	case i.triggered(nil):
		return workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED
	case d.readiness == workv1.Readiness_READINESS_WAITING_FOR_OPERATOR:
		return workv1.CandidateClass_CANDIDATE_CLASS_WAITING_FOR_OPERATOR
	}
	return workv1.CandidateClass_CANDIDATE_CLASS_BLOCKED
}

// listed reports whether a filter shows an item (SPEC W10).
func (i *item) listed(f workv1.WorkItemFilter) bool {
	waits := slices.ContainsFunc(i.waits, func(w *wait) bool { return !w.intent })
	switch f {
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_OPEN:
		return !i.done
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_COMPLETED:
		return i.done
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_CURRENT:
		return i.current()
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_QUEUED:
		return !i.done && !i.current() && i.blocker == "" && !waits
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_BLOCKED:
		return i.derive().readiness == workv1.Readiness_READINESS_BLOCKED
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_WAITING_FOR_OPERATOR:
		return i.derive().readiness == workv1.Readiness_READINESS_WAITING_FOR_OPERATOR
	case workv1.WorkItemFilter_WORK_ITEM_FILTER_RUNNABLE:
		return i.runnable()
	}
	return true
}

// own finds an item that an agent names: the refusal if it may not.
func (m *model) own(a *agent, id string) (*item, string) {
	switch i := m.items[id]; {
	case i == nil:
		return nil, "NOT_FOUND"
	case i.owner != a:
		return nil, "PERMISSION_DENIED"
	default:
		return i, ""
	}
}

func (m *model) open(a *agent, id string) (*item, string) {
	i, no := m.own(a, id)
	if no == "" && i.done {
		return nil, "WORK_ITEM_COMPLETED"
	}
	return i, no
}

// wrote notes a write of an item: it moves in the ranking, and ends no_progress.
func (m *model) wrote(i *item) { i.updated, i.owner.news = m.now, m.now }

func (m *model) create(a *agent, id, objective string, plan workv1.PlanStatus, todos []todo) {
	if plan == 0 {
		plan = workv1.PlanStatus_PLAN_STATUS_DRAFT
	}
	i := &item{
		id: id, owner: a, objective: objective, plan: plan, todos: todos, over: map[string]bool{},
		created: m.now,
	}
	m.items[id], a.items = i, append(a.items, i)
	m.wrote(i)
}

// pick moves the focus; want says whether it should have had a reason (SPEC W4).
func (m *model) pick(i *item) (want bool, previous string) {
	a := i.owner
	if p := m.items[a.focus]; p != nil && p != i {
		want, previous = p.runnable(), p.id
	}
	a.focus, a.news, i.resumed = i.id, m.now, time.Time{}
	return want, previous
}

type change struct {
	objective string
	plan      workv1.PlanStatus
	todos     *[]todo
	blocker   string
	clear     bool
	recheck   time.Time
}

// update writes the fields of a change and reports whether one of them is another value
// (SPEC W5.4).
func (m *model) update(i *item, c change) bool {
	if !i.differs(c) {
		return false
	}
	i.resumed = time.Time{}
	if c.objective != "" {
		i.objective = c.objective
	}
	if c.plan != 0 {
		i.plan = c.plan
	}
	if c.todos != nil {
		i.todos = *c.todos
	}
	if !c.recheck.IsZero() {
		i.own = c.recheck
		i.owner.alarms = append(i.owner.alarms, c.recheck)
	}
	if c.blocker != "" {
		i.blocker, i.blockerWait = c.blocker, ""
	}
	if c.clear {
		if id := i.blockerWait; id != "" { // clearing ends the wait that wrote it (SPEC W5)
			m.drop(i, id)
			m.say("work>waiting", func() { m.end(m.waits[id], cancelled) })
		}
		i.blocker, i.blockerWait = "", ""
	}
	if (c.blocker != "" || c.plan == needsInput) && i.current() {
		i.owner.focus = ""
	}
	m.wrote(i)
	return true
}

func (i *item) differs(c change) bool {
	return c.objective != "" && c.objective != i.objective ||
		c.plan != 0 && c.plan != i.plan ||
		c.todos != nil && !slices.Equal(*c.todos, i.todos) ||
		c.blocker != "" && (c.blocker != i.blocker || i.blockerWait != "") ||
		c.clear && i.blocker != "" ||
		!c.recheck.IsZero() && !c.recheck.Equal(i.own)
}

func (i *item) unfinished() (pending, progress int) {
	for _, t := range i.todos {
		switch t.state {
		case workv1.TodoState_TODO_STATE_PENDING:
			pending++
		case workv1.TodoState_TODO_STATE_IN_PROGRESS:
			progress++
		}
	}
	return pending, progress
}

// running returns the tasks that still run for an item.
func (m *model) running(i *item) (all int, blocking bool) {
	for _, t := range m.tasks {
		if t.item == i.id && !t.over {
			all++
			blocking = blocking || t.blocking
		}
	}
	return all, blocking
}

func (m *model) complete(i *item) {
	i.done, i.resumed = true, time.Time{}
	for _, w := range i.waits {
		i.over[w.id] = true
	}
	i.waits, i.blocker, i.blockerWait, i.own = nil, "", "", time.Time{}
	if i.current() {
		i.owner.focus = ""
	}
	m.wrote(i)
	m.say("work>waiting", func() {
		i.heardDone = true
		for _, w := range i.owner.waits {
			if w.item == i.id {
				m.end(w, cancelled)
			}
		}
	})
}

// attach is what the work plane does when it hears of a wait that stands.
func (m *model) attach(w wait) {
	i := m.items[w.item]
	if i == nil || i.over[w.id] {
		return
	}
	if i.done {
		m.say("work>waiting", func() { m.end(m.waits[w.id], cancelled) })
		return
	}
	younger := func(k *wait) bool { return !k.intent && k.made.After(w.made) }
	if !w.intent && slices.ContainsFunc(i.waits, younger) {
		return // heard late: another one stands where this one was
	}
	at := slices.IndexFunc(i.waits, func(k *wait) bool { return k.id == w.id })
	if at >= 0 && i.waits[at].rev >= w.rev {
		return
	}
	if at >= 0 {
		if w.count > i.waits[at].count {
			i.owner.news = m.now
		}
		w.rechecked = i.waits[at].rechecked // that is the work plane's to know
		i.waits[at] = &w
	} else {
		i.owner.news = m.now
		if !w.intent {
			for _, k := range slices.Clone(i.waits) {
				if !k.intent {
					m.drop(i, k.id)
				}
			}
			i.blocker, i.blockerWait, i.resumed = w.reason, w.id, time.Time{}
			if !w.recheck.IsZero() {
				i.owner.alarms = append(i.owner.alarms, w.recheck)
			}
			if i.current() {
				i.owner.focus = ""
			}
		}
		i.waits = append(i.waits, &w)
	}
	i.updated = m.now // that a turn was shown something is no input
}

// drop forgets a wait and the blocker that it wrote, if that is unchanged.
func (m *model) drop(i *item, waitID string) {
	at := slices.IndexFunc(i.waits, func(k *wait) bool { return k.id == waitID })
	first := !i.over[waitID]
	i.over[waitID] = true
	if at < 0 {
		if first && !i.done {
			m.wrote(i) // noted, so that its beginning is not heard any more
		}
		return
	}
	i.reminder = i.waits[at].recheck
	i.waits = slices.Delete(i.waits, at, at+1)
	if i.blockerWait == waitID {
		i.blocker, i.blockerWait = "", ""
	}
	m.wrote(i)
}
