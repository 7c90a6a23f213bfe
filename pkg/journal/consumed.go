package journal

import (
	"context"
	"time"
)

// ConsumedUntil returns the wal_seq of the newest event of a source that p has received, whether or not p reacted to
// it; 0 before the first.
func (p *Partition[S]) ConsumedUntil(plane string, partition int) uint64 {
	return p.consumed.Of(sourceKey{plane, partition}).Position()
}

// AwaitConsumed waits until p has consumed a source's event at walSeq and every event before it, and what p wrote
// because of them is durable, or until Consume has failed with one of them. It reports false if timeout fires, ctx ends
// or p is closed before.
func (p *Partition[S]) AwaitConsumed(ctx context.Context, plane string, partition int, walSeq uint64,
	timeout <-chan time.Time,
) bool {
	return p.consumed.Of(sourceKey{plane, partition}).Await(ctx, walSeq, timeout, p.ctx.Done())
}
