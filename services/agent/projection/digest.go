package projection

import (
	"context"
	"sync"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/prompt"
	"quartet/services/agent/state"
	"quartet/services/agent/transcript"
)

const (
	maxDigests = 1024
	// maxReadBack bounds how many rounds are read back for an item whose notes are not in
	// memory, such as after a restart. Older rounds then give no notes.
	maxReadBack = 200
)

// digestCache holds the notes on the items that agents work on. They are derived from
// rounds and may be discarded at any time.
type digestCache struct {
	mu     sync.Mutex
	byItem map[digestKey]*itemDigest
}

type digestKey struct {
	agent  plane.Key
	itemID string
}

type itemDigest struct {
	held   chan struct{} // a lock, of capacity 1, on the fields below; its holder may wait for the journal
	rounds int           // how many rounds of the item the notes cover
	notes  prompt.Digest
	since  string // the time of the oldest round that was read, if rounds before it were removed; else empty
}

func (d *digestCache) get(k digestKey) *itemDigest {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.byItem[k]
	if one == nil {
		if d.byItem == nil {
			d.byItem = map[digestKey]*itemDigest{}
		}
		for other := range d.byItem { // any one: the order of a map is random
			if len(d.byItem) < maxDigests {
				break
			}
			delete(d.byItem, other)
		}
		one = &itemDigest{held: make(chan struct{}, 1)}
		d.byItem[k] = one
	}
	return one
}

// itemHistory returns the newest shownRounds rounds that were bound to an item, newest first, and
// the notes on all of its rounds or, if the notes are not in memory, on the newest maxReadBack of them.
// If rounds that the notes lack were removed from the journal, because history is not kept that long, since
// is the time of the first round after these; otherwise it is "".
func (s *Service) itemHistory(ctx context.Context, k plane.Key, itemID string) (trace []*agentv1.Round, notes []string,
	since string, err error,
) {
	d := s.digests.get(digestKey{k, itemID})
	select {
	case d.held <- struct{}{}:
		defer func() { <-d.held }()
	case <-ctx.Done():
		return nil, nil, "", fault.From(ctx.Err())
	}
	type look struct {
		rounds []*agentv1.Round // nil where they are read back
		at     [][]uint64
		first  int // the number of rounds[0] among those of the item
		total  int
		open   string // the id of the open turn, if there is one
	}
	l, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (look, error) {
		a := st.Lookup(k)
		if a == nil {
			return look{}, nil
		}
		numbers := a.Transcript.ByItem[itemID]
		l := look{total: len(numbers), first: max(0, min(d.rounds, len(numbers)-shownRounds), len(numbers)-maxReadBack)}
		if a.OpenTurn != nil {
			l.open = a.OpenTurn.Record.GetTurnId()
		}
		for _, n := range numbers[l.first:] {
			r := a.RoundInMemory(n)
			l.rounds = append(l.rounds, r)
			if r == nil {
				l.at = append(l.at, a.Transcript.Round(n))
			}
		}
		return l, nil
	})
	if err != nil {
		return nil, nil, "", err
	}
	back, err := transcript.Read(ctx, s.engine.For(k.Namespace, k.ID), l.at)
	if err != nil {
		return nil, nil, "", err
	}
	gap := false
	for i, r := range l.rounds {
		if r == nil {
			r, back = back[0], back[1:]
			l.rounds[i] = r
		}
		if r == nil && l.first+i >= d.rounds {
			gap = true
		} else if r != nil && gap {
			d.since, gap = stamp(r.GetCreatedAt().AsTime()), false
		}
		// The last round of a turn that was cut off is never settled. No results are added to it any more.
		over := r != nil && (r.GetSettled() || r.GetTurnId() != l.open)
		if n := l.first + i; n >= d.rounds && over {
			d.notes.Add(r)
			d.rounds = n + 1
		}
	}
	for i := len(l.rounds) - 1; i >= 0 && len(trace) < shownRounds; i-- {
		if l.rounds[i] != nil { // it was not removed
			trace = append(trace, l.rounds[i])
		}
	}
	return trace, d.notes.Lines(), d.since, nil
}
