package projection

import (
	"context"
	"sort"
	"sync"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/plane"
	"quartet/services/agent/ref"
	"quartet/services/agent/state"
)

const (
	// maxRemoved bounds of how many agents a process remembers what of their conversation was removed.
	maxRemoved = 1024
	// removedTerm is for how long that is remembered. Old events are removed less often.
	removedTerm = time.Hour
)

// removedCache remembers from when on conversations can be read. It may be discarded at any time.
type removedCache struct {
	mu      sync.Mutex
	byAgent map[ref.Agent]removedBefore
}

type removedBefore struct {
	looked time.Time
	since  time.Time // zero: nothing was removed
}

func (c *removedCache) get(k ref.Agent) (removedBefore, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, known := c.byAgent[k]
	return r, known
}

func (c *removedCache) put(k ref.Agent, r removedBefore) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byAgent == nil {
		c.byAgent = map[ref.Agent]removedBefore{}
	}
	for other := range c.byAgent { // any one: the order of a map is random
		if len(c.byAgent) < maxRemoved {
			break
		}
		delete(c.byAgent, other)
	}
	c.byAgent[k] = r
}

// conversationSince returns the time of the oldest utterance that can still be read back, or zero if none was removed. Utterances are removed by
// age, so it is searched for; what the index has is never removed.
func (s *Service) conversationSince(ctx context.Context, k ref.Agent) (time.Time, error) {
	now := s.deps.Clock.Now()
	if r, known := s.removed.get(k); known && (s.deps.History.Of(k.Namespace) == 0 || now.Sub(r.looked) < removedTerm) {
		return r.since, nil
	}
	old, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) ([]uint64, error) {
		if a := st.Lookup(k); a != nil {
			return a.Conversation.Unindexed(), nil
		}
		return nil, nil
	})
	if err != nil {
		return time.Time{}, err
	}
	var since time.Time
	there := func(n int) bool {
		var events []*journal.Event
		if err == nil {
			events, err = journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), old[n:n+1])
		}
		if err != nil || events[0].Removed() {
			return false
		}
		since = events[0].CreatedAt
		return true
	}
	// The search ends at the oldest one that is there, and its time is the last that was read of those that are.
	if n := sort.Search(len(old), there); n == 0 {
		since = time.Time{}
	}
	if err != nil {
		return time.Time{}, err
	}
	s.removed.put(k, removedBefore{looked: now, since: since})
	return since, nil
}
