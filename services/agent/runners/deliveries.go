package runners

import (
	"sync"
)

// handovers decides who hears of a turn that was just taken: the call that took
// it, or the same request sent again while that call was under way. Without it
// a repeated request could be answered with a turn that the first call is about
// to give back because its own caller left.
type Deliveries struct {
	Mu   sync.Mutex
	open map[string]delivery
	// unheardOf are the runs that nobody was told of, as far as this process
	// knows: their end counts no attempt of the message.
	Undelivered map[string]struct{}
}

// keptUnheard bounds what is remembered of runs that may never land.
const maxUndelivered = 1024

// unheard says that nobody will be told of a run, though its turn may be on disk.
func (h *Deliveries) MarkUndelivered(runID string) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.Undelivered == nil || len(h.Undelivered) >= maxUndelivered {
		h.Undelivered = map[string]struct{}{}
	}
	h.Undelivered[runID] = struct{}{}
}

// heard says that somebody is told of a run after all, or that it is over.
func (h *Deliveries) ClearUndelivered(runID string) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	delete(h.Undelivered, runID)
}

func (h *Deliveries) IsUndelivered(runID string) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	_, ok := h.Undelivered[runID]
	return ok
}

type delivery int

const (
	pending   delivery = iota
	answered           // the repeated request was answered: the turn is delivered
	abandoned          // nobody may be answered with it any more
)

// begin says that a call is about to take a turn for this run; end, that the
// turn was delivered or its end is durable.
func (h *Deliveries) Begin(runID string) (end func()) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.open == nil {
		h.open = map[string]delivery{}
	}
	h.open[runID] = pending
	return func() {
		h.Mu.Lock()
		defer h.Mu.Unlock()
		delete(h.open, runID)
	}
}

// repeat says whether a repeated request may be answered with the run's turn.
func (h *Deliveries) AnswerRepeated(runID string) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	at, known := h.open[runID]
	if known && at == pending {
		h.open[runID] = answered
	}
	return !known || at != abandoned
}

// giveBack says whether the turn has to be given back: nobody was answered with it.
func (h *Deliveries) Abandon(runID string) bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.open[runID] == answered {
		return false
	}
	h.open[runID] = abandoned
	return true
}
