package journal

import (
	"bytes"
	"context"
	"strconv"
	"sync"
	"time"
)

// consumedSources tracks how far a partition has consumed each of its sources. The
// zero value is ready to use.
type consumedSources struct {
	mu  sync.Mutex
	all map[sourceKey]*consumedSource
}

// consumedSource is the progress of one Consume, in positions of the source's
// journal. Positions in the core are frames and survive a restart; this one counts
// events, so that it can be compared with the wal_seq of an event.
type consumedSource struct {
	mu      sync.Mutex
	walSeq  uint64          // of the newest event received
	last    <-chan struct{} // closed when the newest frame that was enqueued is durable; nil: none was
	changed chan struct{}   // closed and replaced when walSeq grows; nil: nobody waits
}

func (c *consumedSources) of(k sourceKey) *consumedSource {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[sourceKey]*consumedSource{}
	}
	if c.all[k] == nil {
		c.all[k] = &consumedSource{}
	}
	return c.all[k]
}

// receive records that a frame of the source was received. done is closed when its
// effects are durable; nil: it has none.
func (s *consumedSource) receive(lines []Line, done <-chan struct{}) {
	if len(lines) == 0 {
		return
	}
	walSeq := lines[len(lines)-1].walSeq()
	s.mu.Lock()
	defer s.mu.Unlock()
	if done != nil {
		s.last = done
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

func (s *consumedSource) position() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.walSeq
}

// next returns a channel that is closed when the source has moved on, or nil if the
// event at walSeq was received; then last is what the caller still waits for.
func (s *consumedSource) next(walSeq uint64) (changed, last <-chan struct{}) {
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

// walSeq reads the position at which every line begins; 0 if the line is damaged.
func (l Line) walSeq() uint64 {
	if l.Event != nil {
		return l.Event.WalSeq
	}
	rest, ok := bytes.CutPrefix(l.Text, []byte(`{"wal_seq":`))
	end := bytes.IndexByte(rest, ',')
	if !ok || end < 0 {
		return 0
	}
	n, err := strconv.ParseUint(string(rest[:end]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ConsumedUntil returns the wal_seq of the newest event of a source that p has
// received, whether or not p reacted to it; 0 before the first.
func (p *Partition[S]) ConsumedUntil(plane string, partition int) uint64 {
	return p.consumed.of(sourceKey{plane, partition}).position()
}

// AwaitConsumed waits until p has consumed a source's event at walSeq and every event
// before it, and what p wrote because of them is durable. It reports false if timeout
// fires, ctx ends or p is closed before.
func (p *Partition[S]) AwaitConsumed(ctx context.Context, plane string, partition int, walSeq uint64, timeout <-chan time.Time) bool {
	source := p.consumed.of(sourceKey{plane, partition})
	for {
		changed, last := source.next(walSeq)
		wait := changed
		if changed == nil {
			if wait = last; wait == nil {
				return true
			}
		}
		select {
		case <-wait:
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		case <-p.ctx.Done():
			return false
		}
		if changed == nil {
			return true
		}
	}
}
