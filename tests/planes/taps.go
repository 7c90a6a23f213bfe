package planes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
)

// taps are between the journals and who follows them: they know how far each has received.
type taps struct {
	mu    sync.Mutex
	moved *sync.Cond
	all   map[string]*tap
}

// tap is one follower's way to one journal.
type tap struct {
	journal.Source
	edge string
	taps *taps
	pos  uint64 // guarded by taps.mu
	on   bool
}

func newTaps() *taps {
	ts := &taps{all: map[string]*tap{}}
	ts.moved = sync.NewCond(&ts.mu)
	return ts
}

func (ts *taps) add(edge string, src journal.Source) *tap {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := &tap{Source: src, edge: edge, taps: ts}
	ts.all[edge] = t
	return t
}

// remove forgets the taps of a service that was stopped.
func (ts *taps) remove(name string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for edge := range ts.all {
		if strings.HasSuffix(edge, ">"+name) {
			delete(ts.all, edge)
		}
	}
	ts.moved.Broadcast()
}

// Follow implements journal.Source.
func (t *tap) Follow(ctx context.Context, after framelog.End, fn func(framelog.End, []journal.Line) error) error {
	t.move(after.Seq, true)
	return t.Source.Follow(ctx, after, func(at framelog.End, lines []journal.Line) error {
		err := fn(at, lines)
		t.move(at.Seq, err == nil)
		return err
	})
}

func (t *tap) move(pos uint64, on bool) {
	t.taps.mu.Lock()
	defer t.taps.mu.Unlock()
	if on {
		t.pos, t.on = pos, true
	}
	t.taps.moved.Broadcast()
}

// source returns the plane whose journal an edge follows.
func source(edge string) string {
	of, _, _ := strings.Cut(edge, ">")
	return of
}

// settle waits until all have received everything.
func (ts *taps) settle(tail func(plane string) uint64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.all {
		for ts.all[t.edge] == t && (!t.on || t.pos < tail(source(t.edge))) {
			ts.moved.Wait()
		}
	}
}

func (ts *taps) where(tail func(plane string) uint64) string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var all []string
	for edge, t := range ts.all {
		all = append(all, fmt.Sprintf("%s %d/%d", edge, t.pos, tail(source(edge))))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
