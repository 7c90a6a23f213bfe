package projection

import (
	"context"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/plane"
	"quartet/services/agent/state"
)

const (
	// maxRemoved bounds for how many agents removedCache has an entry.
	maxRemoved = 1024
	// removedTerm is after how long an entry is read again. Old events are removed less often.
	removedTerm = time.Hour
	// searchTerm bounds how long a context waits for an entry to be read, and searchAgain is the pause before it is
	// read again if that failed.
	searchTerm  = time.Second
	searchAgain = time.Minute
)

// removedCache has, for agents, since when their conversations can be read. It may be discarded at any time.
type removedCache struct {
	mu      sync.Mutex
	byAgent map[plane.Key]removedBefore
}

type removedBefore struct {
	looked time.Time // when the entry was read, or the search failed
	since  time.Time // of the oldest utterance that can be read; zero: nothing was removed
	failed bool      // the search failed, and since is of an earlier one
}

// fresh reports whether an entry need not be read again at now. always is set if the namespace keeps its history
// always: then only the entry of a search that failed ages.
func (r removedBefore) fresh(now time.Time, always bool) bool {
	age := now.Sub(r.looked)
	return r.failed && age < searchAgain || !r.failed && (always || age < removedTerm)
}

func (c *removedCache) get(k plane.Key) (removedBefore, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, known := c.byAgent[k]
	return r, known
}

func (c *removedCache) put(k plane.Key, r removedBefore) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byAgent == nil {
		c.byAgent = map[plane.Key]removedBefore{}
	}
	for other := range c.byAgent { // any one: the order of a map is random
		if len(c.byAgent) < maxRemoved {
			break
		}
		delete(c.byAgent, other)
	}
	c.byAgent[k] = r
}

// conversationSince returns the time of the oldest utterance that can still be read back, or zero if no utterance
// was removed. It searches if the cache has no entry that is fresh. The oldest utterances may be in an archive that
// cannot be reached now: if the search fails or takes longer than searchTerm, the result is that of the previous
// search, or zero if there was none.
func (s *Service) conversationSince(ctx context.Context, k plane.Key) time.Time {
	now := s.deps.Clock.Now()
	r, known := s.removed.get(k)
	if known && r.fresh(now, s.deps.History.Of(k.Namespace) == 0) {
		return r.since
	}
	ctx, cancel := context.WithTimeout(ctx, searchTerm)
	defer cancel()
	since, err := s.searchSince(ctx, k)
	if err != nil {
		s.deps.Logger.Warn("what was removed of a conversation is not known; contexts say what was known before",
			zap.String("namespace", k.Namespace), zap.String("agent_id", k.ID), zap.Error(err))
		since = r.since
	}
	s.removed.put(k, removedBefore{looked: now, since: since, failed: err != nil})
	return since
}

// searchSince is conversationSince without the cache. It searches by halves, since utterances are removed by age,
// among those that the index does not have: the others are never removed. If none was removed it reads one utterance.
func (s *Service) searchSince(ctx context.Context, k plane.Key) (since time.Time, err error) {
	old, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) ([]uint64, error) {
		if a := st.Lookup(k); a != nil {
			return a.Conversation.Unindexed(), nil
		}
		return nil, nil
	})
	if err != nil || len(old) == 0 {
		return time.Time{}, err
	}
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
	if there(0) {
		return time.Time{}, nil
	}
	// The search ends at the oldest utterance that is there. It was the last one to be found, so since is its time.
	sort.Search(len(old), there)
	if err != nil {
		return time.Time{}, err
	}
	return since, nil
}
