package plane

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
)

// Positions has how far the partitions of a process have consumed the journals that they follow. The zero value is
// ready to use.
type Positions struct {
	mu      sync.Mutex
	sources map[positionKey]*consumed
}

// positionKey is a partition that follows, and one that it follows.
type positionKey struct {
	plane           string
	partition       int
	source          string
	sourcePartition int
}

// consumed is how far a partition has consumed a source.
type consumed struct {
	await func(ctx context.Context, walSeq uint64) bool

	mu        sync.Mutex
	following context.Context //nolint:containedctx // of the Consume that runs: it ends before a consumption that failed is completed
	received  uint64          // by that Consume
	durable   uint64
	known     bool // a Consume has begun
}

// Durable returns the positions up to which a partition has consumed the journals that it follows, in their order. What
// it wrote because of these events is durable; what led to nothing may be read again. A position that is not known yet
// is left out. It waits for writes until ctx ends, and returns the last known positions then.
func (p *Positions) Durable(ctx context.Context, plane string, partition int) []Position {
	p.mu.Lock()
	sources := map[Position]*consumed{}
	for k, c := range p.sources {
		if k.plane == plane && k.partition == partition {
			sources[Position{Plane: k.source, Partition: k.sourcePartition}] = c
		}
	}
	p.mu.Unlock()
	var out []Position
	for position, c := range sources {
		if walSeq, known := c.confirm(ctx); known {
			position.WalSeq = walSeq
			out = append(out, position)
		}
	}
	slices.SortFunc(out, func(a, b Position) int {
		return cmp.Or(cmp.Compare(a.Plane, b.Plane), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

// confirm waits until what was received is durable, or ctx ends. It returns the wal_seq up to which that is known to be
// so; known is false before the first Consume. It does not hold mu while it waits.
func (c *consumed) confirm(ctx context.Context) (walSeq uint64, known bool) {
	c.mu.Lock()
	following, received, unconfirmed := c.following, c.received, c.received > c.durable
	c.mu.Unlock()
	// A Consume that failed was given up before its consumptions are completed: then they may have stored nothing.
	confirmed := unconfirmed && c.await(ctx, received) && following.Err() == nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if confirmed && following == c.following { // otherwise another Consume has begun, perhaps at an earlier position
		c.durable = max(c.durable, received)
	}
	return c.durable, c.known
}

// add begins to track what a partition consumes of a source, until remove is called.
func (p *Positions) add(k positionKey, await func(ctx context.Context, walSeq uint64) bool) (c *consumed,
	remove func(),
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sources == nil {
		p.sources = map[positionKey]*consumed{}
	}
	c = &consumed{await: await}
	p.sources[k] = c
	return c, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.sources, k)
	}
}

// consumedSource is a source that one Consume reads. It records what that has received.
type consumedSource struct {
	journal.Source
	*consumed
	begun bool
}

// Follow implements journal.Source, and records what it passed on. At the first call, everything up to after counts
// as durable.
func (s *consumedSource) Follow(ctx context.Context, after framelog.End,
	fn func(end framelog.End, lines []journal.Line) error,
) error {
	if !s.begun {
		s.begun = true
		s.mu.Lock()
		s.following, s.received, s.durable, s.known = ctx, after.WalSeq, after.WalSeq, true
		s.mu.Unlock()
	}
	return s.Source.Follow(ctx, after, func(end framelog.End, lines []journal.Line) error {
		err := fn(end, lines)
		if err == nil {
			s.mu.Lock()
			s.received = end.WalSeq
			s.mu.Unlock()
		}
		return err
	})
}
