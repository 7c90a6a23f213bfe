package runners

import (
	"maps"
	"sync"

	"github.com/google/btree"
)

// stride is the virtual time that a turn costs a namespace of weight 1.
const stride = 1_000_000_000

// MaxWeight bounds a namespace's weight, so that integer division keeps the ratios.
const MaxWeight = 1000

// Shares divides the turns that shared runners take among namespaces by weight (SPEC D7).
// It is start-time fair queueing: a turn costs its namespace stride divided by its weight
// in virtual time, and the namespace with the earliest start is next. A namespace that
// returns after a pause starts at the current virtual time: it neither saved credit nor
// owes any. Between two turns of a namespace that always has work, another one with w
// times its weight gets at most ⌈w⌉+1.
//
// Its input are hints: MarkReady says that a namespace may have a ready agent, MarkEmpty
// that none was found. Every operation is O(log n) in the number of namespaces, and none
// reads a clock. Turns of private runners are not counted: they serve their own
// namespace.
type Shares struct {
	mu         sync.Mutex
	weights    map[string]int
	virtualNow uint64 // the virtual start of the newest turn
	waiting    *btree.BTreeG[entry]
	starts     map[string]uint64 // of the namespaces in waiting
	markedAt   map[string]uint64 // of the namespaces in waiting: the mark of the last MarkReady
	Marks      uint64            // how often MarkReady was called
	// ahead are the starts of namespaces that left while their start was in the future.
	ahead      map[string]uint64
	purgeAbove int
}

type entry struct {
	start     uint64
	namespace string
}

// NewShares returns Shares with a weight for each namespace; one without an entry has 1.
func NewShares(weights map[string]int) *Shares {
	return &Shares{
		weights: maps.Clone(weights), starts: map[string]uint64{}, markedAt: map[string]uint64{},
		ahead: map[string]uint64{}, purgeAbove: 1024,
		waiting: btree.NewG(16, func(a, b entry) bool {
			if a.start != b.start {
				return a.start < b.start
			}
			return a.namespace < b.namespace
		}),
	}
}

func (s *Shares) cost(namespace string) uint64 {
	return stride / uint64(max(s.weights[namespace], 1))
}

// MarkReady records that a namespace may have a ready agent.
func (s *Shares) MarkReady(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Marks++
	s.markedAt[namespace] = s.Marks
	if _, waits := s.starts[namespace]; waits {
		return
	}
	at := max(s.virtualNow, s.ahead[namespace])
	delete(s.ahead, namespace)
	s.insert(namespace, at)
}

func (s *Shares) insert(namespace string, at uint64) {
	s.starts[namespace] = at
	s.waiting.ReplaceOrInsert(entry{at, namespace})
}

// Next returns the namespace that is served next, with a mark for MarkEmpty.
func (s *Shares) Next() (namespace string, mark uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.waiting.Min()
	return first.namespace, s.markedAt[first.namespace], ok
}

// MarkEmpty records that no ready agent was found in a namespace that Next returned with mark. It does
// nothing if the namespace was marked ready since then: the search may have missed the agent.
func (s *Shares) MarkEmpty(namespace string, mark uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, waits := s.starts[namespace]
	if !waits || s.markedAt[namespace] != mark {
		return
	}
	s.waiting.Delete(entry{at, namespace})
	delete(s.starts, namespace)
	delete(s.markedAt, namespace)
	if at > s.virtualNow {
		s.ahead[namespace] = at
		s.purge()
	}
}

// purge forgets starts that are in the past. It runs when the map has doubled.
func (s *Shares) purge() {
	if len(s.ahead) <= s.purgeAbove {
		return
	}
	maps.DeleteFunc(s.ahead, func(_ string, at uint64) bool { return at <= s.virtualNow })
	s.purgeAbove = max(1024, 2*len(s.ahead))
}

// Charge counts a turn of a namespace that is about to be taken.
func (s *Shares) Charge(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, waits := s.starts[namespace]
	if !waits {
		at = max(s.virtualNow, s.ahead[namespace])
		s.ahead[namespace] = at + s.cost(namespace)
		s.virtualNow = at
		return
	}
	s.virtualNow = max(s.virtualNow, at)
	s.waiting.Delete(entry{at, namespace})
	s.insert(namespace, at+s.cost(namespace))
}

// Refund undoes a Charge whose turn was not taken.
func (s *Shares) Refund(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, waits := s.starts[namespace]; waits {
		s.waiting.Delete(entry{at, namespace})
		s.insert(namespace, at-min(at, s.cost(namespace)))
		return
	}
	if at, ok := s.ahead[namespace]; ok {
		s.ahead[namespace] = at - min(at, s.cost(namespace))
	}
}
