package framelog

import (
	"context"
	"sync"
)

const (
	// maxReads is how many frames a partition reads at once. A frame has up to 900 KB, and after a
	// restart thousands of callers may repeat their requests within one second. Unbounded reads
	// filled the client's connection to the broker, which was then closed for all its users.
	maxReads = 4
	// cachedFrames is how many frames are kept. Requests that shared a frame when they were first
	// executed are usually repeated at the same time.
	cachedFrames = 4
)

// Cache reads frames back from a log. It bounds how many are read at once, and keeps those that were read last.
// It holds the lines of frames by their sequence numbers in one log. Its zero value is empty
// and ready to use. It is safe for concurrent use.
type Cache struct {
	once  sync.Once
	reads chan struct{} // a semaphore of maxReads

	mu      sync.Mutex
	entries [cachedFrames]struct {
		seq   uint64
		lines [][]byte
	}
	next int // the entry to replace
}

// Lines returns the lines of the frame at seq, calling read if they are not cached. It blocks
// while maxReads others are reading, until ctx ends. An error of read is returned and not cached.
// The lines are shared and must not be changed.
func (c *Cache) Lines(ctx context.Context, seq uint64, read func(ctx context.Context, seq uint64) ([][]byte, error)) (
	[][]byte, error,
) {
	c.once.Do(func() { c.reads = make(chan struct{}, maxReads) })
	if lines := c.get(seq); lines != nil {
		return lines, nil
	}
	select {
	case c.reads <- struct{}{}:
		defer func() { <-c.reads }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if lines := c.get(seq); lines != nil { // another caller read it meanwhile
		return lines, nil
	}
	lines, err := read(ctx, seq)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.entries[c.next].seq, c.entries[c.next].lines = seq, lines
	c.next = (c.next + 1) % cachedFrames
	c.mu.Unlock()
	return lines, nil
}

// get returns the cached lines of the frame at seq, or nil. An empty entry has seq 0, which no frame has.
func (c *Cache) get(seq uint64) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.entries {
		if c.entries[i].seq == seq {
			return c.entries[i].lines
		}
	}
	return nil
}
