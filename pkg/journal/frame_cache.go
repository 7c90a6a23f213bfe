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
type frameCache struct {
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
func (c *frameCache) lines(ctx context.Context, log Log, seq uint64) ([][]byte, error) {
	c.once.Do(func() { c.reads = make(chan struct{}, recallReads) })
	if lines := c.look(seq); lines != nil {
		return lines, nil
	}
	select {
	case c.reads <- struct{}{}:
		defer func() { <-c.reads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if lines := c.look(seq); lines != nil { // read while this one waited
		return lines, nil
	}
	f, err := log.Get(ctx, seq)
	if err != nil {
		return nil, err
	}
	lines := Lines(f.Body)
	c.mu.Lock()
	c.kept[c.next].seq, c.kept[c.next].lines = seq, lines
	c.next = (c.next + 1) % keptFrames
	c.mu.Unlock()
	return lines, nil
}

func (c *frameCache) look(seq uint64) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.kept {
		if c.kept[i].seq == seq {
			return c.kept[i].lines
		}
	}
	return nil
}

// recallEvents reads the events of an earlier command back from the log.
func (p *Partition[S]) recallEvents(ctx context.Context, at *recallAt) ([]*Event, error) {
	lines, err := p.frameCache.lines(ctx, p.cfg.Log, at.frame)
	if err != nil {
		return nil, err
	}
	events := make([]*Event, at.count)
	for i := range events {
		ev, err := p.readLine(lines, eventLocation{walSeq: at.first + uint64(i), frame: at.frame})
		if err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		events[i] = ev
	}
	return events, nil
}
