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

// Taps stand between the journals and who follows them: they know how far each
// has received, and hold it back.
type Taps struct {
	mu    sync.Mutex
	moved *sync.Cond
	all   map[string]*tap
	held  map[string]bool
}

// tap is one follower's way to one journal.
type tap struct {
	journal.Source
	edge string
	taps *Taps
	pos  uint64 // guarded by taps.mu
	on   bool
}

func newTaps() *Taps {
	ts := &Taps{all: map[string]*tap{}, held: map[string]bool{}}
	ts.moved = sync.NewCond(&ts.mu)
	return ts
}

func (ts *Taps) add(edge string, src journal.Source) *tap {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := &tap{Source: src, edge: edge, taps: ts}
	ts.all[edge] = t
	return t
}

// remove forgets the taps of a service that was stopped.
func (ts *Taps) remove(name string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for edge := range ts.all {
		if strings.HasSuffix(edge, ">"+name) {
			delete(ts.all, edge)
		}
	}
	ts.moved.Broadcast()
}

// Hold holds an edge, such as "work>scheduler", back, or releases it: the follower does not
// receive further frames of that plane's journal.
func (ts *Taps) Hold(edge string, held bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.held[edge] = held
	ts.moved.Broadcast()
}

// ReleaseAll releases every edge.
func (ts *Taps) ReleaseAll() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	clear(ts.held)
	ts.moved.Broadcast()
}

// Follow implements journal.Source.
func (t *tap) Follow(ctx context.Context, after framelog.End, fn func(framelog.End, []journal.Line) error) error {
	t.move(after.Seq, true)
	stop := context.AfterFunc(ctx, func() {
		t.taps.mu.Lock()
		defer t.taps.mu.Unlock()
		t.taps.moved.Broadcast()
	})
	defer stop()
	return t.Source.Follow(ctx, after, func(at framelog.End, lines []journal.Line) error {
		if err := t.wait(ctx); err != nil {
			return err
		}
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

func (t *tap) wait(ctx context.Context) error {
	t.taps.mu.Lock()
	defer t.taps.mu.Unlock()
	for t.taps.held[t.edge] && ctx.Err() == nil {
		t.taps.moved.Wait()
	}
	return ctx.Err()
}

// source returns the plane whose journal an edge follows.
func source(edge string) string {
	of, _, _ := strings.Cut(edge, ">")
	return of
}

// settle waits until all that are not held back have received everything.
func (ts *Taps) settle(tail func(plane string) uint64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.all {
		for ts.all[t.edge] == t && !ts.held[t.edge] && (!t.on || t.pos < tail(source(t.edge))) {
			ts.moved.Wait()
		}
	}
}

func (ts *Taps) where(tail func(plane string) uint64) string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var all []string
	for edge, t := range ts.all {
		all = append(all, fmt.Sprintf("%s %d/%d held=%t", edge, t.pos, tail(source(edge)), ts.held[edge]))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
