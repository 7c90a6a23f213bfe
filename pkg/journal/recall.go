package journal

import (
	"context"
	"fmt"
)

// recallEvents reads the events of an earlier command back from the log, in
// the caller's goroutine: the loop does no I/O.
func (p *Partition[S]) recallEvents(ctx context.Context, at *recallAt) ([]*Event, error) {
	f, err := p.cfg.Log.Get(ctx, at.frame)
	if err != nil {
		return nil, err
	}
	events := make([]*Event, 0, at.count)
	for _, line := range Lines(f.Body) {
		raw, err := ParseLine(line)
		if err != nil {
			return nil, err
		}
		if raw.WalSeq < at.first || raw.WalSeq >= at.first+uint64(at.count) {
			continue
		}
		ev, err := raw.Decode(p.cfg.Registry)
		if err != nil {
			return nil, err
		}
		events = append(events, ev)
	}
	if len(events) != int(at.count) {
		return nil, fmt.Errorf("journal: frame %d holds %d of the %d events from wal_seq %d", at.frame, len(events), at.count, at.first)
	}
	return events, nil
}
