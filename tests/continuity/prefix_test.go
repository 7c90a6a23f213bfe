package continuity

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// stablePrefix is the share of a context, in percent, that must begin as the one before it on the
// same item did, in the median over all scenarios: so much of it a provider's prompt cache keeps
// (SPEC C7.2).
const stablePrefix = 70

// contexts are the texts of all turns, by scenario, agent and item.
var contexts = seen{last: map[string]string{}}

type seen struct {
	mu     sync.Mutex
	last   map[string]string
	shares []int
}

// add adds the context of a turn of an agent of a scenario, about an item or about none.
func (s *seen) add(scenario, agentID, itemID, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := scenario + "/" + agentID + "/" + itemID
	if before, known := s.last[key]; known && itemID != "" {
		n := 0
		for n < min(len(before), len(text)) && before[n] == text[n] {
			n++
		}
		s.shares = append(s.shares, 100*n/len(text))
	}
	s.last[key] = text
}

// median returns the median share, and of how many pairs of turns it is.
func (s *seen) median() (share, pairs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.shares) == 0 {
		return 100, 0
	}
	return slices.Sorted(slices.Values(s.shares))[len(s.shares)/2], len(s.shares)
}

// TestMain runs the scenarios, then judges all of their contexts together.
func TestMain(m *testing.M) {
	code := m.Run()
	share, pairs := contexts.median()
	fmt.Printf("of %d turns that followed another one on the same item, the median began with %d %% of its context "+
		"unchanged\n", pairs, share)
	if code == 0 && share < stablePrefix {
		fmt.Printf("FAIL: at least %d %% are wanted\n", stablePrefix)
		code = 1
	}
	os.Exit(code)
}
