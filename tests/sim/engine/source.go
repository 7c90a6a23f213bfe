package engine

import (
	"context"
	"fmt"
	"sync"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
)

// Source is a journal as a follower sees it: each frame is a crossing. It must not be copied.
type Source struct {
	journal.Source
	Queue *Queue
	Of    *Process
	Edge  string // such as "work>scheduler"

	mu    sync.Mutex
	hints []func() // that are not passed on yet, in order
	count int
}

var _ journal.Source = (*Source)(nil)

// Hint implements journal.Hinter if the source does. A hint is a crossing too, but not later than the frames that are
// passed on after it.
func (s *Source) Hint(fn func(events []*journal.Event, lost bool)) (stop func()) {
	h, ok := s.Source.(journal.Hinter)
	if !ok {
		return func() {}
	}
	return h.Hint(func(events []*journal.Event, lost bool) {
		if s.Of.isDead() {
			return
		}
		s.mu.Lock()
		s.hints = append(s.hints, func() { fn(events, lost) })
		s.count++
		name := fmt.Sprintf("hint %s %d", s.Edge, s.count)
		s.mu.Unlock()
		go func() {
			if o, _ := s.Queue.Park(context.Background(), Crossing{Name: name, Of: s.Of}); o == Pass {
				s.flush()
			}
		}()
	})
}

// flush passes the hints on.
func (s *Source) flush() {
	s.mu.Lock()
	hints := s.hints
	s.hints = nil
	s.mu.Unlock()
	for _, h := range hints {
		h()
	}
}

// Follow implements journal.Source.
func (s *Source) Follow(ctx context.Context, after framelog.End,
	fn func(at framelog.End, lines []journal.Line) error,
) error {
	return s.Source.Follow(ctx, after, func(at framelog.End, lines []journal.Line) error {
		o, err := s.Queue.Park(ctx, Crossing{
			Edge: fmt.Sprintf("follow %s %d", s.Edge, at.Seq), Of: s.Of,
			Faults: []Outcome{Lost},
		})
		switch {
		case err != nil:
			return err
		case o == Died || o == Kept:
			return ErrDead
		case o == Lost:
			return ErrNoAnswer
		}
		s.flush()
		return fn(at, lines)
	})
}
