package scheduler

import (
	"slices"
	"sync"

	"quartet/pkg/plane"
)

// sweptShare says how often take returns an agent that a sweep marked while events mark others:
// once in so many times. The sweep after a start may mark very many agents, and an agent that an
// event marks must not wait for all of them.
const sweptShare = 8

// fewAgents is the size of a map that is not worth replacing when it is empty.
const fewAgents = 1024

// dirty is the set of agents to evaluate. At most one goroutine evaluates an agent at a time;
// an agent that an event marks meanwhile is evaluated once more. So a storm of events costs
// one evaluation after the other (SPEC P7). Namespaces take turns, so that a storm in one
// delays none of the others (SPEC D7).
type dirty struct {
	mu     sync.Mutex
	named  ring       // agents that events marked
	swept  ring       // agents that sweeps marked
	taken  int        // entries that take removed from the queues, for sweptShare
	looks  int        // evaluations that are running
	marked *sync.Cond // signalled when an agent is marked or the set is closed
	still  *sync.Cond // signalled when no agent is marked or being evaluated
	agents map[plane.Key]*mark
	peak   int // the largest number of entries that the map agents has had
	closed bool
}

// mark is the entry of an agent in the set.
type mark struct {
	queued  bool // in named
	swept   bool // in swept
	looking bool // being evaluated
	again   bool // marked since that evaluation began: evaluate once more when it ends
	busy    bool // as the last evaluation found: only events of the agent plane can change the decision
	// ahead records that a hint marked the agent since its last evaluation, lookAhead
	// that a hint caused the running one. hinted are the events of hints; they need not
	// mark the agent again when they are durable.
	ahead, lookAhead bool
	hinted           []string
	// causes are the traces of the events that marked the agent since its last
	// evaluation, and looked are those of the running one; empty where nothing is traced.
	causes, looked []string
}

// maxHinted is how many events of hints are remembered for an agent; others have it
// evaluated once more.
const maxHinted = 16

// maxCauses is how many traces of causes are kept for an evaluation.
const maxCauses = 8

// newDirty returns an empty set.
func newDirty() *dirty {
	d := &dirty{agents: map[plane.Key]*mark{}, named: newRing(), swept: newRing()}
	d.marked, d.still = sync.NewCond(&d.mu), sync.NewCond(&d.mu)
	return d
}

// mark puts an agent into the set. If it is being evaluated, it is evaluated once more.
func (d *dirty) mark(k plane.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(k, true, "")
}

// markLow is mark for sweeps. It does nothing for an agent that is marked or being evaluated.
// take returns agents that events marked first, except as sweptShare says.
func (d *dirty) markLow(k plane.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.entry(k)
	if m.queued || m.swept || m.looking {
		return
	}
	m.swept = true
	d.swept.push(k)
	d.marked.Signal()
}

// entry returns the entry of an agent, which it creates if there is none. The caller holds mu.
func (d *dirty) entry(k plane.Key) *mark {
	m := d.agents[k]
	if m == nil {
		m = &mark{}
		d.agents[k] = m
		d.peak = max(d.peak, len(d.agents))
	}
	return m
}

// cause is an event that marks an agent.
type cause struct {
	agent   plane.Key
	eventID string
	trace   string // of the event, or empty
}

// hint is mark for events of the agent plane that are not durable yet. The ids of the events are remembered, so that
// they need not mark the agents again when they are durable. All are marked before any is taken, so that several events
// of an agent cause one evaluation.
func (d *dirty) hint(events []cause) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range events {
		m := d.add(c.agent, true, c.trace)
		m.ahead = true
		if len(m.hinted) < maxHinted {
			m.hinted = append(m.hinted, c.eventID)
		}
	}
}

// retract is mark for events of hints that were lost before they were durable: an evaluation may have
// seen what did not happen, so all hints of their agents are forgotten.
func (d *dirty) retract(events []cause) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range events {
		m := d.add(c.agent, true, "")
		m.ahead, m.hinted = false, nil
	}
}

// receive marks the agents of durable events. fromAgentPlane says whose events these are: receive skips one of the
// agent plane if a hint of it has marked the agent, and one of another plane if the agent has a turn or a message.
// There is nothing to decide then, and the event of the agent plane about the end of either marks the agent. All are
// marked before any is taken.
func (d *dirty) receive(events []cause, fromAgentPlane bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range events {
		if !fromAgentPlane || !d.hinted(c.agent, c.eventID) {
			d.add(c.agent, fromAgentPlane, c.trace)
		}
	}
}

// add marks an agent because of an event, and returns its entry. With always unset, it does not queue an agent that the
// last evaluation found busy. cause is the event's trace, or empty. The caller holds mu.
func (d *dirty) add(k plane.Key, always bool, cause string) *mark {
	m := d.entry(k)

	// Queue the agent, unless it is queued already, or will be when its running evaluation ends.
	switch {
	case m.looking:
		m.again = true
	case m.queued:
	case !always && m.busy:
		return m
	default:
		m.queued = true
		d.named.push(k)
		d.marked.Signal()
	}

	if cause != "" && len(m.causes) < maxCauses {
		m.causes = append(m.causes, cause)
	}
	return m
}

// hinted reports whether a hint marked an agent for this event, and forgets the hint. The caller holds mu.
func (d *dirty) hinted(k plane.Key, eventID string) bool {
	m := d.agents[k]
	if m == nil {
		return false
	}
	i := slices.Index(m.hinted, eventID)
	if i < 0 {
		return false
	}
	m.hinted = slices.Delete(m.hinted, i, i+1)
	d.forget(k, m)
	return true
}

// causes returns the traces of the events that caused the running evaluation of an agent, and
// whether a hint was among these.
func (d *dirty) causes(k plane.Key) (traces []string, ahead bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.agents[k]
	return m.looked, m.lookAhead
}

// take waits for a marked agent, and returns it for evaluation; the caller must call done
// after that. It returns false when the set is closed.
func (d *dirty) take() (plane.Key, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		// Wait for an entry in one of the queues.
		for d.named.n+d.swept.n == 0 && !d.closed {
			if d.looks == 0 {
				d.still.Broadcast() // what was taken before has been evaluated
			}
			d.marked.Wait()
		}
		if d.closed {
			return plane.Key{}, false
		}

		// Take an agent that an event marked, and once in sweptShare times one that a sweep marked.
		d.taken++
		fromSweep := d.swept.n > 0 && (d.named.n == 0 || d.taken%sweptShare == 0)
		queue := &d.named
		if fromSweep {
			queue = &d.swept
		}
		k := queue.pop()

		// An agent that is in both queues is evaluated once, so one of its entries is left over.
		m := d.agents[k]
		if m != nil && !m.looking && (fromSweep && m.swept || !fromSweep && m.queued) {
			d.begin(m)
			return k, true
		}
	}
}

// begin records that the evaluation of an agent begins. The caller holds mu.
func (d *dirty) begin(m *mark) {
	m.queued, m.swept, m.looking, m.again = false, false, true, false
	m.looked, m.causes = m.causes, nil
	m.lookAhead, m.ahead = m.ahead, false
	d.looks++
}

// wait returns when no agent is marked or being evaluated, or the set is closed.
func (d *dirty) wait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.closed && d.looks+d.named.n+d.swept.n > 0 {
		d.still.Wait()
	}
}

// done ends an evaluation. busy says that only events of the agent plane can change what was
// decided; such agents are remembered, others are not, so the set is as small as the current
// activity.
func (d *dirty) done(k plane.Key, busy bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.agents[k]
	m.looking, m.busy = false, busy
	d.looks--

	// Queue the agent again if it was marked meanwhile.
	if m.again && !d.closed {
		m.queued = true
		d.named.push(k)
		d.marked.Signal()
	} else {
		d.forget(k, m)
	}
	if d.looks+d.named.n+d.swept.n == 0 {
		d.still.Broadcast()
	}
}

// forget removes an agent, unless it is marked, is being evaluated, is busy or has hinted
// events. The caller holds mu.
func (d *dirty) forget(k plane.Key, m *mark) {
	if m.queued || m.swept || m.looking || m.busy || len(m.hinted) > 0 {
		return
	}
	delete(d.agents, k)
	if len(d.agents) == 0 && d.peak > fewAgents {
		// A map keeps its size: after a sweep of 100 000 agents 10 MB.
		d.agents, d.peak = map[plane.Key]*mark{}, 0
	}
}

// close ends take and wait. Marks have no effect after it.
func (d *dirty) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.marked.Broadcast()
	d.still.Broadcast()
}

// ring is a queue in which namespaces take turns; within a namespace it is first in,
// first out. Every operation is O(1).
type ring struct {
	n     int                 // agents in the queue
	order []string            // the namespaces with agents, the next one first
	lines map[string][]string // ids of agents, by namespace
}

// newRing returns an empty queue.
func newRing() ring { return ring{lines: map[string][]string{}} }

// push adds an agent at the end of its namespace's line.
func (r *ring) push(k plane.Key) {
	line, waits := r.lines[k.Namespace]
	if !waits {
		r.order = append(r.order, k.Namespace)
	}
	r.lines[k.Namespace] = append(line, k.ID)
	r.n++
}

// pop removes and returns the first agent of the namespace whose turn it is. The queue must
// not be empty.
func (r *ring) pop() plane.Key {
	namespace := r.order[0]
	r.order = r.order[1:]
	line := r.lines[namespace]
	k := plane.KeyOf(namespace, line[0])
	r.n--
	if len(line) == 1 {
		delete(r.lines, namespace)
		return k
	}
	r.lines[namespace] = line[1:]
	r.order = append(r.order, namespace)
	return k
}
