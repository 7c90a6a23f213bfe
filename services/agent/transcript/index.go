// Package transcript finds the rounds of an agent in its journal, so that an agent that
// lives for months need not keep them in memory.
package transcript

import (
	"encoding/binary"
	"slices"
)

// transcript says where in the journal an agent's rounds are. A round is the
// event of its submission and those of its results; their wal_seqs stand as
// distances, a few bytes each, so that a life of weeks costs its agent less
// than its last turn (SPEC C2).
type Index struct {
	last    uint64
	steps   []byte           // of all events, in order: the distance, doubled, plus 1 where a round begins
	offsets []int            // offset into steps of every markEvery-th round, and the wal_seq before it
	bases   []uint64         // beside marks
	rounds  int              // rounds
	ByItem  map[string][]int // rounds by the item they were bound to
	Turns   []Span           // in order
}

// turnSpan is where a turn's rounds are.
type Span struct {
	TurnID        string
	First, Rounds int
	EndedAt       uint64 // wal_seq of the event that ended it
}

// markEvery bounds how far a look into the middle has to walk.
const checkpointEvery = 64

func (t *Index) BeginTurn(turnID string) {
	t.Turns = append(t.Turns, Span{TurnID: turnID, First: t.rounds})
}

func (t *Index) EndTurn(walSeq uint64) {
	if n := len(t.Turns); n > 0 {
		t.Turns[n-1].EndedAt = walSeq
	}
}

// submitted begins a round.
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
	}
}

// more belongs to the newest round.
func (t *Index) ExtendRound(walSeq uint64) { t.add(walSeq, 0) }

func (t *Index) add(walSeq, begins uint64) {
	t.steps = binary.AppendUvarint(t.steps, (walSeq-t.last)<<1|begins)
	t.last = walSeq
}

// round gives the coordinates of the events of the n-th round.
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

// span finds a turn.
func (t *Index) Turn(turnID string) (Span, bool) {
	i := slices.IndexFunc(t.Turns, func(s Span) bool { return s.TurnID == turnID })
	if i < 0 {
		return Span{}, false
	}
	return t.Turns[i], true
}

// chosen are the rounds that a list is about, newest first.
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
