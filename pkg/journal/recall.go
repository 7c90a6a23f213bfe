package journal

import (
	"context"
	"fmt"
	"sync"
)

const (
	// recallReads is how many frames a partition reads back at once. A frame
	// has up to 900 KB, and after a restart thousands of callers may repeat
	// their requests in one second: unbounded, their reads overran the client's
	// connection to the broker, which was then closed on everybody.
	recallReads = 4
	// keptFrames is how many read frames are kept, since those who repeat a
	// request come together, as they came the first time.
	keptFrames = 4
)

// shelf holds the frames that were read back last. Its zero value works.
type shelf struct {
	once  sync.Once
	reads chan struct{}

	mu   sync.Mutex
	kept [keptFrames]struct {
		seq   uint64
		lines [][]byte
	}
	next int
}

// lines gives the lines of the frame at seq of log, in the caller's goroutine:
// the loop does no I/O.
func (s *shelf) lines(ctx context.Context, log Log, seq uint64) ([][]byte, error) {
	s.once.Do(func() { s.reads = make(chan struct{}, recallReads) })
	if lines := s.look(seq); lines != nil {
		return lines, nil
	}
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if lines := s.look(seq); lines != nil { // read while this one waited
		return lines, nil
	}
	f, err := log.Get(ctx, seq)
	if err != nil {
		return nil, err
	}
	lines := Lines(f.Body)
	s.mu.Lock()
	s.kept[s.next].seq, s.kept[s.next].lines = seq, lines
	s.next = (s.next + 1) % keptFrames
	s.mu.Unlock()
	return lines, nil
}

func (s *shelf) look(seq uint64) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.kept {
		if s.kept[i].seq == seq {
			return s.kept[i].lines
		}
	}
	return nil
}

// recallEvents reads the events of an earlier command back from the log.
func (p *Partition[S]) recallEvents(ctx context.Context, at *recallAt) ([]*Event, error) {
	lines, err := p.shelf.lines(ctx, p.cfg.Log, at.frame)
	if err != nil {
		return nil, err
	}
	events := make([]*Event, at.count)
	for i := range events {
		ev, err := p.readLine(lines, located{walSeq: at.first + uint64(i), frame: at.frame})
		if err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		events[i] = ev
	}
	return events, nil
}
