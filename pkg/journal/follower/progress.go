package follower

import (
	"context"
	"sync"
	"time"
)

// Positions tracks the progress in each source of a partition. The zero value is ready to use.
type Positions[K comparable] struct {
	mu      sync.Mutex
	sources map[K]*Progress
}

// Of returns the progress in a source. Until Receive is called, nothing of the source has
// been received.
func (s *Positions[K]) Of(k K) *Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources == nil {
		s.sources = map[K]*Progress{}
	}
	if s.sources[k] == nil {
		s.sources[k] = &Progress{}
	}
	return s.sources[k]
}

// Progress is the progress in one source. A partition records in frames how far it has
// come, which survives a restart; this counts events, so that it can be compared with the
// wal_seq of an event.
type Progress struct {
	mu      sync.Mutex
	walSeq  uint64          // of the newest event received
	last    <-chan struct{} // closed when the effects of the newest frame that has any are durable; nil: none had
	changed chan struct{}   // closed and replaced when walSeq grows; nil: nobody waits
}

// Receive records that a frame was received whose last event has the position walSeq. done
// is closed when the frame's effects are durable; nil if it has none.
func (s *Progress) Receive(walSeq uint64, done <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done != nil {
		s.last = done // the loop completes consumptions in order, so those before it too
	}
	if walSeq <= s.walSeq {
		return
	}
	s.walSeq = walSeq
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Position returns the position of the newest event received, 0 before the first.
func (s *Progress) Position() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.walSeq
}

// next returns a channel that is closed when the source has moved on, or nil if the
// event at walSeq was received; then last is what the caller still waits for.
func (s *Progress) next(walSeq uint64) (changed, last <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.walSeq >= walSeq {
		return nil, s.last
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed, nil
}

// Await waits until the event at walSeq and every event before it was received, and their
// effects are durable. It reports false if timeout fires, or ctx or closed ends before.
func (s *Progress) Await(ctx context.Context, walSeq uint64, timeout <-chan time.Time, closed <-chan struct{}) bool {
	for {
		changed, last := s.next(walSeq)
		received := changed == nil
		wait := changed
		if received {
			wait = last
		}
		if wait == nil {
			return true
		}
		select {
		case <-wait:
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		case <-closed:
			return false
		}
		if received {
			return true
		}
	}
}
