package agent

import (
	"context"
	"sync"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/prompt"
)

const (
	keptDigests = 1024
	// digestedRounds bounds what is read back of an item whose notes are not in
	// memory, after a restart say; older rounds give no notes then.
	digestedRounds = 200
)

// digests are the notes on the items that agents work on, as far as rounds were
// taken in. They are derived and may be thrown away at any time.
type digests struct {
	mu   sync.Mutex
	kept map[digestKey]*digest
}

type digestKey struct {
	agent  key
	itemID string
}

type digest struct {
	mu    sync.Mutex
	taken int // rounds of the item
	notes prompt.Digest
}

func (d *digests) of(k digestKey) *digest {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.kept[k]
	if one == nil {
		if d.kept == nil {
			d.kept = map[digestKey]*digest{}
		}
		for other := range d.kept { // any one: the map's order is random
			if len(d.kept) < keptDigests {
				break
			}
			delete(d.kept, other)
		}
		one = &digest{}
		d.kept[k] = one
	}
	return one
}

// remembered is what was said and done about an item lately, newest first, and
// the notes on all that was done for it.
func (s *Service) remembered(ctx context.Context, k key, itemID string) (trace []*agentv1.Round, notes []string, err error) {
	d := s.digests.of(digestKey{k, itemID})
	d.mu.Lock()
	defer d.mu.Unlock()
	type look struct {
		rounds []*agentv1.Round // nil where they are read back
		at     [][]uint64
		first  int // number of rounds[0] among the item's
		total  int
	}
	l, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (look, error) {
		a := st.lookup(k)
		if a == nil {
			return look{}, nil
		}
		numbers := a.transcript.items[itemID]
		l := look{total: len(numbers), first: max(0, min(d.taken, len(numbers)-shownRounds), len(numbers)-digestedRounds)}
		for _, n := range numbers[l.first:] {
			r := a.roundInMemory(n)
			l.rounds = append(l.rounds, r)
			if r == nil {
				l.at = append(l.at, a.transcript.round(n))
			}
		}
		return l, nil
	})
	if err != nil {
		return nil, nil, err
	}
	back, err := s.readRounds(ctx, k, l.at)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range l.rounds {
		if r == nil {
			r, back = back[0], back[1:]
			l.rounds[i] = r
		}
		if n := l.first + i; n >= d.taken && r.GetSettled() {
			d.notes.Add(r)
			d.taken = n + 1
		}
	}
	for i := len(l.rounds) - 1; i >= 0 && len(trace) < shownRounds; i-- {
		trace = append(trace, l.rounds[i])
	}
	return trace, d.notes.Lines(), nil
}

// roundInMemory is a round of the open turn or of one that ended lately.
func (a *agentState) roundInMemory(n int) *agentv1.Round {
	for i := len(a.transcript.turns) - 1; i >= 0; i-- {
		span := a.transcript.turns[i]
		if n < span.from {
			continue
		}
		if t := a.find(span.id); t != nil && len(t.rounds) == span.count {
			return t.rounds[n-span.from]
		}
		break
	}
	return nil
}
