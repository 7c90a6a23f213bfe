package quota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
)

// recountPeriod is how often the gate checks whether segments in archives were rewritten. It is long, since each
// check reads the catalogs of all partitions, and nobody waits for the result: what is removed is old or was
// deleted a day ago.
const recountPeriod = 5 * time.Minute

// Archived returns the names of the segments that are in the archive of a partition, by their numbers. When events
// are removed from a segment, it is stored under another name.
type Archived func(ctx context.Context, plane string, partition int) (map[uint64]string, error)

// lookAgain calls recount every recountPeriod until ctx ends.
func (c *counts) lookAgain(ctx context.Context) {
	wall := clock.System()
	for {
		timer := wall.TimerAt(wall.Now().Add(recountPeriod))
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if err := c.recount(ctx); err != nil && ctx.Err() == nil {
			c.logger.Warn("what namespaces hold is not counted again after events were removed; it is tried again",
				zap.Error(err))
		}
	}
}

// recount counts the bytes again of each partition in whose archive a segment was rewritten since they were counted.
// Only one goroutine may call it at a time.
func (c *counts) recount(ctx context.Context) error {
	c.following.Lock()
	known := maps.Clone(c.names)
	var sources []journal.Source
	for _, of := range c.sources {
		sources = append(sources, of...)
	}
	c.following.Unlock()
	var errs []error
	for _, src := range sources {
		names, err := c.archived(ctx, src.Plane(), src.Partition())
		if before, is := known[src]; err == nil && (!is || anew(before, names)) {
			err = c.recountBytes(ctx, src)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", framelog.PartitionName(src.Plane(), src.Partition()), err))
			continue
		}
		c.following.Lock()
		c.names[src] = names
		c.following.Unlock()
	}
	return errors.Join(errs...)
}

// anew reports whether a segment that is in both has another name in now than in before.
func anew(before, now map[uint64]string) bool {
	for number, name := range before {
		if other, has := now[number]; has && other != name {
			return true
		}
	}
	return false
}

// errCounted ends the reading of a source by recountBytes when everything is counted. It is no failure.
var errCounted = errors.New("quota: everything is counted")

// recountBytes counts the bytes of a source again, from its beginning to where it is counted now, and adds the
// differences to the counts. The source may be followed at the same time.
func (c *counts) recountBytes(ctx context.Context, src journal.Source) error {
	c.mu.Lock()
	through, before := c.through[src], maps.Clone(c.bytes[src])
	c.mu.Unlock()
	if through == 0 {
		return nil
	}
	now := map[string]int64{}
	err := src.Follow(ctx, framelog.End{}, func(at framelog.End, lines []journal.Line) error {
		for _, line := range lines {
			if ev, err := line.Envelope(); err == nil && !journal.Internal(ev.Type) && ev.WalSeq <= through {
				now[ev.Namespace] += size(line)
			}
		}
		if at.WalSeq >= through {
			return errCounted
		}
		return nil
	})
	if !errors.Is(err, errCounted) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for namespace, was := range before { // complete: lines may be removed from what was counted, and none is added
		c.bytes[src][namespace] += now[namespace] - was
		of := c.held[namespace]
		of[MiB] += now[namespace] - was
		if of[MiB] == 0 && of[Agents] == 0 && of[OpenItems] == 0 {
			delete(c.held, namespace) // as if it had never been there
		}
		if c.bytes[src][namespace] == 0 {
			delete(c.bytes[src], namespace)
		}
	}
	return nil
}

// size returns for how many bytes a line counts: those of its text and a newline.
func size(line journal.Line) int64 { return int64(len(line.Text)) + 1 }
