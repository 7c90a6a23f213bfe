package agent

import (
	"maps"
	"sync"

	"github.com/google/btree"
)

// stride is the virtual time that a turn costs a namespace of weight 1.
const stride = 1_000_000_000

// MaxWeight bounds a namespace's weight, so that integer division keeps ratios.
const MaxWeight = 1000

// shares divides the turns that shared runners take among namespaces by weight
// (SPEC D7). It is start-time fair queueing: a turn costs its namespace stride
// divided by its weight in virtual time, and the namespace that stands earliest
// is next. One that comes back after a pause stands at the present: it neither
// saved up nor owes. Between two turns of a namespace that always has work,
// another one of weight w times its own gets at most ⌈w⌉+1.
//
// It is fed by hints: touch says that a namespace may have a ready agent, leave
// that none was found. Every operation is O(log n) in the number of namespaces,
// and there is no clock in it. What private runners take is not counted: they
// are their namespace's own.
type shares struct {
	mu      sync.Mutex
	weights map[string]int
	now     uint64 // virtual: the start of the newest turn
	waiting *btree.BTreeG[share]
	start   map[string]uint64 // of those in waiting
	touched map[string]uint64 // of those in waiting: when touch came last
	touches uint64
	// ahead are the starts of namespaces that left while they stood beyond now.
	ahead      map[string]uint64
	purgeAbove int
}

type share struct {
	start     uint64
	namespace string
}

func newShares(weights map[string]int) *shares {
	return &shares{
		weights: maps.Clone(weights), start: map[string]uint64{}, touched: map[string]uint64{}, ahead: map[string]uint64{}, purgeAbove: 1024,
		waiting: btree.NewG(16, func(a, b share) bool {
			if a.start != b.start {
				return a.start < b.start
			}
			return a.namespace < b.namespace
		}),
	}
}

func (s *shares) cost(namespace string) uint64 {
	return stride / uint64(max(s.weights[namespace], 1))
}

// touch says that a namespace may have a ready agent.
func (s *shares) touch(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touches++
	s.touched[namespace] = s.touches
	if _, waits := s.start[namespace]; waits {
		return
	}
	at := max(s.now, s.ahead[namespace])
	delete(s.ahead, namespace)
	s.place(namespace, at)
}

func (s *shares) place(namespace string, at uint64) {
	s.start[namespace] = at
	s.waiting.ReplaceOrInsert(share{at, namespace})
}

// next is the namespace whose turn it is, with a mark for leave.
func (s *shares) next() (namespace string, mark uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.waiting.Min()
	return first.namespace, s.touched[first.namespace], ok
}

// leave says that no ready agent was found in a namespace. If it was touched
// since the mark it stays: what was found may be old.
func (s *shares) leave(namespace string, mark uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, waits := s.start[namespace]
	if !waits || s.touched[namespace] != mark {
		return
	}
	s.waiting.Delete(share{at, namespace})
	delete(s.start, namespace)
	delete(s.touched, namespace)
	if at > s.now {
		s.ahead[namespace] = at
		s.purge()
	}
}

// purge forgets what the present has passed. It runs when the map has doubled.
func (s *shares) purge() {
	if len(s.ahead) <= s.purgeAbove {
		return
	}
	maps.DeleteFunc(s.ahead, func(_ string, at uint64) bool { return at <= s.now })
	s.purgeAbove = max(1024, 2*len(s.ahead))
}

// charge counts a turn that is about to be taken.
func (s *shares) charge(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, waits := s.start[namespace]
	if !waits {
		at = max(s.now, s.ahead[namespace])
		s.ahead[namespace] = at + s.cost(namespace)
		s.now = at
		return
	}
	s.now = max(s.now, at)
	s.waiting.Delete(share{at, namespace})
	s.place(namespace, at+s.cost(namespace))
}

// refund takes a charge back: the turn was not taken after all.
func (s *shares) refund(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, waits := s.start[namespace]; waits {
		s.waiting.Delete(share{at, namespace})
		s.place(namespace, at-min(at, s.cost(namespace)))
		return
	}
	if at, ok := s.ahead[namespace]; ok {
		s.ahead[namespace] = at - min(at, s.cost(namespace))
	}
}
