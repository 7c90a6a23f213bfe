// Package transcript finds the rounds of an agent in its journal, so that an agent that
// lives for months need not keep them in memory.
package transcript

import (
	"encoding/binary"
	"slices"
)

// Index finds the events of an agent's rounds in its journal. A round is the event of its
// submission and those of its results. Their wal_seqs are stored as differences of a few
// bytes each, so that an agent that runs for weeks needs less memory for them than for
// its last turn (SPEC C2).
type Index struct {
	last    uint64
	steps   []byte              // of all events, in order: the difference, doubled, plus 1 where a round begins
	offsets []int               // the offset into steps of every checkpointEvery-th round
	bases   []uint64            // the wal_seq before each of offsets
	rounds  int                 // how many rounds there are
	ByItem  map[string][]int    // the numbers of the rounds that were bound to an item
	Turns   []Span              // in order
	started map[string][]uint64 // see StartedCalls, by turn
}

// Span is the rounds of one turn.
type Span struct {
	TurnID        string
	First, Rounds int    // the number of its first round, and how many it has
	EndedAt       uint64 // wal_seq of the event that ended the turn; 0: it is open
}

// checkpointEvery bounds how many steps are read to find a round.
const checkpointEvery = 64

// BeginTurn adds a turn. Rounds that are added from now on belong to it.
func (t *Index) BeginTurn(turnID string) {
	t.Turns = append(t.Turns, Span{TurnID: turnID, First: t.rounds})
}

// EndTurn records the wal_seq of the event that ended the newest turn.
func (t *Index) EndTurn(walSeq uint64) {
	if n := len(t.Turns); n > 0 {
		t.Turns[n-1].EndedAt = walSeq
	}
}

// BeginRound adds a round to the newest turn. walSeq is the wal_seq of the event of its submission,
// and itemID the item to which it is bound, or "". The started calls of the turn are forgotten.
func (t *Index) BeginRound(walSeq uint64, itemID string) {
	if t.rounds%checkpointEvery == 0 {
		t.offsets, t.bases = append(t.offsets, len(t.steps)), append(t.bases, t.last)
	}
	t.add(walSeq, 1)
	if itemID != "" {
		if t.ByItem == nil {
			t.ByItem = map[string][]int{}
		}
		t.ByItem[itemID] = append(t.ByItem[itemID], t.rounds)
	}
	t.rounds++
	if n := len(t.Turns); n > 0 {
		t.Turns[n-1].Rounds++
		delete(t.started, t.Turns[n-1].TurnID)
	}
}

// StartCalls records that the runner of the newest turn started calls of its own.
func (t *Index) StartCalls(walSeq uint64) {
	n := len(t.Turns)
	if n == 0 {
		return
	}
	if t.started == nil {
		t.started = map[string][]uint64{}
	}
	turnID := t.Turns[n-1].TurnID
	t.started[turnID] = append(slices.Clone(t.started[turnID]), walSeq)
}

// StartedCalls returns the wal_seqs of the events by which the runner of a turn started calls of
// its own after the last round of the turn.
func (t *Index) StartedCalls(turnID string) []uint64 { return t.started[turnID] }

// Rounds returns how many rounds there are.
func (t *Index) Rounds() int { return t.rounds }

// ExtendRound adds an event to the newest round.
func (t *Index) ExtendRound(walSeq uint64) { t.add(walSeq, 0) }

func (t *Index) add(walSeq, begins uint64) {
	t.steps = binary.AppendUvarint(t.steps, (walSeq-t.last)<<1|begins)
	t.last = walSeq
}

// Round returns the wal_seqs of the events of the n-th round, counted from 0. n must be less than
// Rounds.
func (t *Index) Round(n int) []uint64 {
	at, seq := t.offsets[n/checkpointEvery], t.bases[n/checkpointEvery]
	var out []uint64
	for i := n - n%checkpointEvery - 1; at < len(t.steps); {
		step, size := binary.Uvarint(t.steps[at:])
		if step&1 == 1 {
			if i++; i > n {
				break
			}
		}
		at, seq = at+size, seq+step>>1
		if i == n {
			out = append(out, seq)
		}
	}
	return out
}

// Turn returns which rounds a turn has, and false if the index does not have the turn.
func (t *Index) Turn(turnID string) (Span, bool) {
	i := slices.IndexFunc(t.Turns, func(s Span) bool { return s.TurnID == turnID })
	if i < 0 {
		return Span{}, false
	}
	return t.Turns[i], true
}

// Select returns the numbers of the rounds of a turn and an item, newest first. An empty
// id selects all.
func (t *Index) Select(turnID, itemID string) []int {
	from, to := 0, t.rounds
	if turnID != "" {
		s, ok := t.Turn(turnID)
		if !ok {
			return nil
		}
		from, to = s.First, s.First+s.Rounds
	}
	var out []int
	if itemID != "" {
		for _, n := range slices.Backward(t.ByItem[itemID]) {
			if n >= from && n < to {
				out = append(out, n)
			}
		}
		return out
	}
	for n := to - 1; n >= from; n-- {
		out = append(out, n)
	}
	return out
}
