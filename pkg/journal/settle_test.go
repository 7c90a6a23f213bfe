package journal

import "context"

// SettleArchive waits until all segments are archived that may be.
func (p *Partition[S]) SettleArchive(ctx context.Context) error { return p.roller.Settle(ctx) }
