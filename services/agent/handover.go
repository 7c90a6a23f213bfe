package agent

import "sync"

// handovers decides who hears of a turn that was just taken: the call that took
// it, or the same request sent again while that call was under way. Without it
// a repeated request could be answered with a turn that the first call is about
// to give back because its own caller left.
type handovers struct {
	mu   sync.Mutex
	runs map[string]handover
	// unheardOf are the runs that nobody was told of, as far as this process
	// knows: their end counts no attempt of the message.
	unheardOf map[string]struct{}
}

// keptUnheard bounds what is remembered of runs that may never land.
const keptUnheard = 1024

// unheard says that nobody will be told of a run, though its turn may be on disk.
func (h *handovers) unheard(runID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unheardOf == nil || len(h.unheardOf) >= keptUnheard {
		h.unheardOf = map[string]struct{}{}
	}
	h.unheardOf[runID] = struct{}{}
}

// heard says that somebody is told of a run after all, or that it is over.
func (h *handovers) heard(runID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.unheardOf, runID)
}

func (h *handovers) isUnheard(runID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.unheardOf[runID]
	return ok
}

type handover int

const (
	underWay  handover = iota
	repeated           // the repeated request was answered: the turn is delivered
	givenBack          // nobody may be answered with it any more
)

// begin says that a call is about to take a turn for this run; end, that the
// turn was delivered or its end is durable.
func (h *handovers) begin(runID string) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs == nil {
		h.runs = map[string]handover{}
	}
	h.runs[runID] = underWay
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.runs, runID)
	}
}

// repeat says whether a repeated request may be answered with the run's turn.
func (h *handovers) repeat(runID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, known := h.runs[runID]
	if known && at == underWay {
		h.runs[runID] = repeated
	}
	return !known || at != givenBack
}

// giveBack says whether the turn has to be given back: nobody was answered with it.
func (h *handovers) giveBack(runID string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs[runID] == repeated {
		return false
	}
	h.runs[runID] = givenBack
	return true
}
