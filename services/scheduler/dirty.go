package scheduler

import (
	"slices"
	"sync"
)

// sweptShare is how often an agent of the sweep is taken while events name others:
// one in so many. A start marks every agent, and a wake must not wait for them.
const sweptShare = 8

// fewAgents is a set that is not worth being made anew when it is empty.
const fewAgents = 1024

// dirty is the set of agents to look at. An agent is looked at by one goroutine
// at a time; what is marked meanwhile is looked at once more. That coalesces a
// storm of events to one look after another (SPEC P7). Namespaces take turns,
// so that a storm in one delays none of the others (SPEC D7).
type dirty struct {
	mu     sync.Mutex
	cond   *sync.Cond
	named  ring // by events
	swept  ring // by sweeps
	taken  int
	looks  int        // under way
	still  *sync.Cond // nobody is marked or looked at
	agents map[key]*mark
	most   int // that agents held since it was made
	closed bool
}

type mark struct {
	queued  bool // in named
	swept   bool // in swept
	looking bool
	again   bool
	busy    bool // only the agent plane can end its state
	// ahead says that a hint marked it since its last look, lookAhead that one had
	// the look under way begin; hinted are the events of hints, for which it need
	// not be marked again.
	ahead, lookAhead bool
	hinted           []string
	// causes are the traces of what marked it since its last look, and looked is
	// that of the look under way; none where nothing is traced.
	causes, looked []string
}

// maxHinted is how many events are remembered of an agent; those that are not only
// have it looked at once more.
const maxHinted = 16

// maxCauses is how many traces a look knows of that it follows from.
const maxCauses = 8

func newDirty() *dirty {
	d := &dirty{agents: map[key]*mark{}, named: newRing(), swept: newRing()}
	d.cond, d.still = sync.NewCond(&d.mu), sync.NewCond(&d.mu)
	return d
}

// mark says that an agent is to be looked at.
func (d *dirty) mark(k key) { d.add(k, true, "") }

// nudge is mark for events of other planes: while the agent has a turn or a
// message there is nothing to decide, and the end of that marks it anyhow.
func (d *dirty) nudge(k key) { d.add(k, false, "") }

// later is mark for sweeps: agents that events name come first.
func (d *dirty) later(k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.of(k)
	if m.queued || m.swept || m.looking {
		return
	}
	m.swept = true
	d.swept.push(k)
	d.cond.Signal()
}

func (d *dirty) of(k key) *mark {
	m := d.agents[k]
	if m == nil {
		m = &mark{}
		d.agents[k] = m
		d.most = max(d.most, len(d.agents))
	}
	return m
}

// hint is mark for an event of the agent plane that is not durable yet.
func (d *dirty) hint(k key, cause, eventID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.addLocked(k, true, cause)
	m.ahead = true
	if len(m.hinted) < maxHinted {
		m.hinted = append(m.hinted, eventID)
	}
}

// lost is mark for an event that was taken back: whoever looked ahead saw what is
// not so, and no event of the durable kind is spared for a hint any more.
func (d *dirty) lost(k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.addLocked(k, true, "")
	m.ahead, m.hinted = false, nil
}

func (d *dirty) add(k key, always bool, cause string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addLocked(k, always, cause)
}

func (d *dirty) addLocked(k key, always bool, cause string) *mark {
	m := d.of(k)
	switch {
	case m.looking:
		m.again = true
	case m.queued:
	case !always && m.busy:
		return m
	default:
		m.queued = true
		d.named.push(k)
		d.cond.Signal()
	}
	if cause != "" && len(m.causes) < maxCauses {
		m.causes = append(m.causes, cause)
	}
	return m
}

// hinted says that a hint had an agent marked for this event.
func (d *dirty) hinted(k key, eventID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
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

// causes are the traces that the look under way at an agent follows from; ahead
// says whether a hint did.
func (d *dirty) causes(k key) (traces []string, ahead bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.agents[k]
	return m.looked, m.lookAhead
}

// take waits for an agent to look at; false when the set is closed.
func (d *dirty) take() (key, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		for d.named.n+d.swept.n == 0 && !d.closed {
			if d.looks == 0 {
				d.still.Broadcast() // what was taken before had been looked at already
			}
			d.cond.Wait()
		}
		if d.closed {
			return key{}, false
		}
		d.taken++
		if d.swept.n > 0 && (d.named.n == 0 || d.taken%sweptShare == 0) {
			k := d.swept.pop()
			if m := d.agents[k]; m != nil && m.swept && !m.looking {
				d.begin(m)
				return k, true
			}
			continue // an event had it looked at meanwhile
		}
		k := d.named.pop()
		if m := d.agents[k]; m != nil && m.queued && !m.looking {
			d.begin(m)
			return k, true
		}
	}
}

func (d *dirty) begin(m *mark) {
	m.queued, m.swept, m.looking, m.again = false, false, true, false
	m.looked, m.causes = m.causes, nil
	m.lookAhead, m.ahead = m.ahead, false
	d.looks++
}

// settle waits until no agent is marked or looked at, or the set is closed.
func (d *dirty) settle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.closed && d.looks+d.named.n+d.swept.n > 0 {
		d.still.Wait()
	}
}

// done ends a look. A busy agent is remembered, others are not: that keeps the
// set as small as what is going on.
func (d *dirty) done(k key, busy bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.agents[k]
	m.looking, m.busy = false, busy
	d.looks--
	switch {
	case m.again && !d.closed:
		m.queued = true
		d.named.push(k)
		d.cond.Signal()
	default:
		d.forget(k, m)
	}
	if d.looks+d.named.n+d.swept.n == 0 {
		d.still.Broadcast()
	}
}

// forget drops what need not be remembered of an agent.
func (d *dirty) forget(k key, m *mark) {
	if m.queued || m.swept || m.looking || m.busy || len(m.hinted) > 0 {
		return
	}
	delete(d.agents, k)
	if len(d.agents) == 0 && d.most > fewAgents {
		// A map keeps its size: after a sweep of 100 000 agents 10 MB.
		d.agents, d.most = map[key]*mark{}, 0
	}
}

func (d *dirty) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.cond.Broadcast()
	d.still.Broadcast()
}

// ring is a queue in which namespaces take turns; within one it is first in,
// first out. Every operation is O(1).
type ring struct {
	n     int
	order []string
	lines map[string][]string
}

func newRing() ring { return ring{lines: map[string][]string{}} }

func (r *ring) push(k key) {
	line, waits := r.lines[k.namespace]
	if !waits {
		r.order = append(r.order, k.namespace)
	}
	r.lines[k.namespace] = append(line, k.id)
	r.n++
}

func (r *ring) pop() key {
	namespace := r.order[0]
	r.order = r.order[1:]
	line := r.lines[namespace]
	k := key{namespace, line[0]}
	r.n--
	if len(line) == 1 {
		delete(r.lines, namespace)
		return k
	}
	r.lines[namespace] = line[1:]
	r.order = append(r.order, namespace)
	return k
}
