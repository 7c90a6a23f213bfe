package journal

import (
	"context"
	"errors"
	"fmt"

	"quartet/pkg/fault"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
)

// eventLocation is where an event is: in a frame that is not durable yet, or in the log.
type eventLocation struct {
	walSeq uint64
	ev     *Event // if the event is in a frame that is not durable yet; otherwise nil
	frame  uint64 // if ev is nil: the sequence number of the event's frame in the log
}

// ReadBack reads events of a partition by their wal_seqs and returns them in the order of walSeqs. Each must belong
// to a state that View has shown. The events may be shared and must not be changed. ReadBack is for states that store
// the positions of events instead of records: it takes one pass through the loop, and the caller reads the log once
// for each frame that is not cached. For an erased or removed event it returns one whose Removed method returns true.
// If the log cannot be read, the error is UNAVAILABLE as for Do.
func ReadBack[S State](ctx context.Context, p *Partition[S], walSeqs []uint64) ([]*Event, error) {
	if len(walSeqs) == 0 {
		return nil, nil
	}
	// Find the events in the loop, which alone knows the frames that are not durable.
	var locations []eventLocation
	c := &command[S]{method: "read_back", done: make(chan struct{})}
	c.decide = func(S, Env) ([]*Event, error) {
		locations = make([]eventLocation, 0, len(walSeqs)) // after a reload this runs again
		for _, n := range walSeqs {
			l, err := p.locate(n)
			if err != nil {
				return nil, err
			}
			locations = append(locations, l)
		}
		return nil, nil
	}
	if err := p.run(ctx, c); err != nil {
		return nil, err
	}
	if c.err != nil {
		return nil, c.err
	}

	// Read those that are in the log.
	events := make([]*Event, 0, len(locations))
	for _, l := range locations {
		if l.ev != nil {
			events = append(events, l.ev)
			continue
		}
		lines, err := p.frameCache.Lines(ctx, l.frame, p.readFrame)
		if errors.Is(err, framelog.ErrRemoved) {
			events = append(events, event.Gone(l.walSeq))
			continue
		}
		if err != nil {
			return nil, unreadable(err)
		}
		ev, err := event.In(lines, l.walSeq, p.cfg.Registry)
		if err != nil {
			return nil, unreadable(&framelog.Broken{
				Partition: framelog.PartitionName(p.cfg.Plane, p.cfg.Partition),
				Seq:       l.frame, Cause: fmt.Sprintf("frame %d: %v", l.frame, err),
			})
		}
		events = append(events, ev)
	}
	return events, nil
}

// locate finds an applied event. Its error is internal: there is no such event. Only the loop may call it.
func (p *Partition[S]) locate(walSeq uint64) (eventLocation, error) {
	for _, f := range p.loop.frames {
		if i, ok := f.indexOf(walSeq); ok {
			return eventLocation{walSeq: walSeq, ev: f.events[i]}, nil
		}
	}
	seq, ok := p.core.frames.Find(walSeq)
	if !ok || walSeq > p.core.applied {
		return eventLocation{}, fault.Internal(fmt.Errorf("no frame holds wal_seq %d", walSeq))
	}
	return eventLocation{walSeq: walSeq, frame: seq}, nil
}

// readFrame reads the lines of one frame from the log.
func (p *Partition[S]) readFrame(ctx context.Context, seq uint64) ([][]byte, error) {
	// The name is built from the configuration, since reading p.core needs mu.
	f, err := framelog.Read(ctx, p.cfg.Log, framelog.PartitionName(p.cfg.Plane, p.cfg.Partition), seq)
	if err != nil {
		return nil, err
	}
	return framelog.SplitLines(f.Body), nil
}

// recallEvents reads the events of an earlier command from the log. If they were removed, it returns one event whose
// Removed method returns true.
func (p *Partition[S]) recallEvents(ctx context.Context, location *recallAt) ([]*Event, error) {
	lines, err := p.frameCache.Lines(ctx, location.frame, p.readFrame)
	if errors.Is(err, framelog.ErrRemoved) {
		return []*Event{event.Gone(location.first)}, nil
	}
	if err != nil {
		return nil, err
	}
	events, err := event.Range(lines, location.first, int(location.count), p.cfg.Registry)
	if err != nil {
		return nil, fmt.Errorf("journal: frame %d: %w", location.frame, err)
	}
	return events, nil
}
