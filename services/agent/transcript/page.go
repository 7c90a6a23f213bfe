package transcript

import (
	"encoding/binary"
	"fmt"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Page returns the index as it is now. The page shares what the index only appends to.
func (t *Index) Page() *agentv1.TranscriptPage {
	n := len(t.Turns)
	p := &agentv1.TranscriptPage{
		Steps: t.steps, TurnIds: make([]string, n), TurnRounds: make([]int64, n), TurnEndSteps: make([]int64, n),
		Items:        make(map[string]*agentv1.ItemRoundsPage, len(t.ByItem)),
		StartedCalls: make(map[string]*agentv1.StartedCallsPage, len(t.started)),
	}
	last := uint64(0)
	for i, s := range t.Turns {
		p.TurnIds[i], p.TurnRounds[i] = s.TurnID, int64(s.Rounds)
		if s.EndedAt > 0 {
			p.TurnEndSteps[i], last = int64(s.EndedAt-last), s.EndedAt
		}
	}
	for itemID, numbers := range t.ByItem {
		steps, last := make([]int64, len(numbers)), 0
		for i, n := range numbers {
			steps[i], last = int64(n-last), n
		}
		p.Items[itemID] = &agentv1.ItemRoundsPage{NumberSteps: steps}
	}
	for turnID, seqs := range t.started {
		p.StartedCalls[turnID] = &agentv1.StartedCallsPage{WalSeqs: seqs}
	}
	return p
}

// FromPage returns the index that a page has. The index shares data of the page, which must not be changed any more.
func FromPage(p *agentv1.TranscriptPage) (Index, error) {
	t, err := indexOf(p.GetSteps())
	if err != nil {
		return t, err
	}
	n := len(p.GetTurnIds())
	if len(p.GetTurnRounds()) != n || len(p.GetTurnEndSteps()) != n {
		return t, fmt.Errorf("the transcript has %d turns, the rounds of %d, and the ends of %d", n,
			len(p.GetTurnRounds()), len(p.GetTurnEndSteps()))
	}
	first, last := 0, uint64(0)
	for i, turnID := range p.GetTurnIds() {
		s := Span{TurnID: turnID, First: first, Rounds: int(p.GetTurnRounds()[i])}
		if s.Rounds < 0 || s.Rounds > t.rounds-first {
			return t, fmt.Errorf("turn %q has %d rounds after the first %d of %d", turnID, s.Rounds, first, t.rounds)
		}
		first += s.Rounds
		if step := p.GetTurnEndSteps()[i]; step != 0 {
			last += uint64(step)
			s.EndedAt = last
		}
		t.Turns = append(t.Turns, s)
	}
	if first != t.rounds {
		return t, fmt.Errorf("the turns have %d rounds, and the transcript has %d", first, t.rounds)
	}
	if err := t.addItems(p.GetItems()); err != nil {
		return t, err
	}
	if len(p.GetStartedCalls()) > 0 {
		t.started = make(map[string][]uint64, len(p.GetStartedCalls()))
	}
	for turnID, calls := range p.GetStartedCalls() {
		t.started[turnID] = calls.GetWalSeqs()
	}
	return t, nil
}

// indexOf returns an index of rounds without turns and items.
func indexOf(steps []byte) (Index, error) {
	t := Index{steps: steps}
	for at := 0; at < len(steps); {
		step, size := binary.Uvarint(steps[at:])
		if size <= 0 {
			return t, fmt.Errorf("the steps of the rounds are damaged at byte %d of %d", at, len(steps))
		}
		if step&1 == 1 {
			if t.rounds%checkpointEvery == 0 {
				t.offsets, t.bases = append(t.offsets, at), append(t.bases, t.last)
			}
			t.rounds++
		}
		at, t.last = at+size, t.last+step>>1
	}
	return t, nil
}

// addItems adds which rounds were bound to which items.
func (t *Index) addItems(items map[string]*agentv1.ItemRoundsPage) error {
	if len(items) > 0 {
		t.ByItem = make(map[string][]int, len(items))
	}
	for itemID, rounds := range items {
		numbers, last := make([]int, len(rounds.GetNumberSteps())), int64(0)
		for i, step := range rounds.GetNumberSteps() {
			last += step
			if last < 0 || last >= int64(t.rounds) {
				return fmt.Errorf("round %d of %d was bound to item %q", last, t.rounds, itemID)
			}
			numbers[i] = int(last)
		}
		t.ByItem[itemID] = numbers
	}
	return nil
}
