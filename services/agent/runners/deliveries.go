package runners

import (
	"sync"
)

// Deliveries tracks to whom an acquired turn is delivered: to the call that acquired it,
// or to a repetition of the same request that arrived meanwhile. Without it a repetition
// could return a turn that the first call is about to give back because its caller left.
type Deliveries struct {
	mu   sync.Mutex
	open map[string]delivery
	// undelivered are runs whose turn reached no caller, as far as this process knows.
	// The attempt of their message is not counted.
	undelivered map[string]struct{}
}

// maxUndelivered bounds undelivered, since a run whose turn was never stored has no end that would
// remove it. When it is reached, all are forgotten; an attempt of such a run is then counted.
const maxUndelivered = 1024

// MarkUndelivered records that no caller will receive the turn of a run, although the turn may
// have been stored or may be stored later. When the lease of such a turn ends, no attempt of its
// message is counted; a turn that is stored later gets a short lease.
func (h *Deliveries) MarkUndelivered(runID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.undelivered == nil || len(h.undelivered) >= maxUndelivered {
		h.undelivered = map[string]struct{}{}
	}
	h.undelivered[runID] = struct{}{}
}

// ClearUndelivered records that a caller received a run after all, or that the run has
// ended.
func (h *Deliveries) ClearUndelivered(runID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.undelivered, runID)
}

// IsUndelivered reports whether MarkUndelivered was called for a run, and ClearUndelivered was not
// called since.
func (h *Deliveries) IsUndelivered(runID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.undelivered[runID]
	return ok
}

type delivery int

const (
	pending   delivery = iota
	answered           // a repeated request returned the turn
	abandoned          // no request may return the turn any more
)

// Begin records that a call is about to acquire a turn for a run. The caller calls end
// when the turn was delivered or its end is durable.
func (h *Deliveries) Begin(runID string) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = map[string]delivery{}
	}
	h.open[runID] = pending
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.open, runID)
	}
}

// AnswerRepeated reports whether a repeated request may return the turn of a run, and
// records that it does. It may unless Abandon was called and the first call has not ended yet.
func (h *Deliveries) AnswerRepeated(runID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, known := h.open[runID]
	if known && at == pending {
		h.open[runID] = answered
	}
	return !known || at != abandoned
}

// Abandon records that no request may return the turn of a run any more, and returns true: the
// turn must be given back. If a repeated request has returned it already, it records nothing and
// returns false.
func (h *Deliveries) Abandon(runID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[runID] == answered {
		return false
	}
	h.open[runID] = abandoned
	return true
}

// UndeliveredLen returns how many runs are marked as undelivered.
func (h *Deliveries) UndeliveredLen() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.undelivered)
}
