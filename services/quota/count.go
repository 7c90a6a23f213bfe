package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal"
)

// planes are whose journals are read for which kind.
var planes = map[string][]string{
	Agents: {"agent"}, OpenItems: {"work"}, MiB: {"agent", "work", "task", "waiting", "board"},
}

// deltas are the events that count.
var deltas = map[string]map[string]struct {
	kind string
	by   int64
}{
	"agent": {"agent_spawned": {Agents, 1}, "agent_deleted": {Agents, -1}},
	"work":  {"work_item_created": {OpenItems, 1}, "work_item_completed": {OpenItems, -1}},
}

// counts is what the journals say, by namespace and kind.
type counts struct {
	logger *zap.Logger

	mu     sync.Mutex
	held   map[string]map[string]int64
	at     map[journal.Source]uint64 // the frame that comes next
	moved  chan struct{}             // closed and replaced when at changes
	source map[string][]journal.Source

	stop    context.CancelFunc
	running sync.WaitGroup
}

func newCounts(logger *zap.Logger) *counts {
	return &counts{logger: logger, held: map[string]map[string]int64{}, at: map[journal.Source]uint64{}, moved: make(chan struct{}), source: map[string][]journal.Source{}}
}

// start reads the journals of kinds to where they end now, and follows them.
func (c *counts) start(ctx context.Context, sources func(plane string) ([]journal.Source, error), kinds []string) error {
	var follow context.Context
	follow, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, kind := range kinds {
		for _, plane := range planes[kind] {
			if c.source[plane] != nil {
				continue
			}
			found, err := sources(plane)
			if err != nil {
				return fmt.Errorf("quota: %w", err)
			}
			c.source[plane] = found
			for _, src := range found {
				c.running.Go(func() { c.follow(follow, src) })
			}
		}
	}
	for _, kind := range kinds {
		if err := c.caughtUp(ctx, kind); err != nil {
			return fmt.Errorf("quota: the journals cannot be read: %w", err)
		}
	}
	return nil
}

func (c *counts) close() {
	if c.stop != nil {
		c.stop()
	}
	c.running.Wait()
}

func (c *counts) follow(ctx context.Context, src journal.Source) {
	next, pause := uint64(1), 10*time.Millisecond
	for ctx.Err() == nil {
		err := src.Follow(ctx, next, func(seq uint64, lines []journal.Line) error {
			if seq < next {
				return nil // counted before
			}
			next, pause = seq+1, 10*time.Millisecond
			return c.frame(src, next, lines)
		})
		if ctx.Err() != nil {
			return
		}
		c.logger.Warn("quota: following a journal again", zap.String("plane", src.Plane()), zap.Error(err))
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		pause = min(2*pause, time.Second)
	}
}

// frame counts one frame.
func (c *counts) frame(src journal.Source, next uint64, lines []journal.Line) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range lines {
		ev, err := line.Envelope()
		if err != nil || journal.Internal(ev.Type) {
			continue // what nobody can read is nobody's
		}
		of := c.held[ev.Namespace]
		if of == nil {
			of = map[string]int64{}
			c.held[ev.Namespace] = of
		}
		of[MiB] += int64(len(line.Text)) + 1
		if d, ok := deltas[src.Plane()][ev.Type]; ok {
			of[d.kind] += d.by
		}
	}
	c.at[src] = next
	close(c.moved)
	c.moved = make(chan struct{})
	return nil
}

// get is what a namespace has; bytes for MiB.
func (c *counts) get(namespace, kind string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[namespace][kind]
}

var errNotFollowed = errors.New("quota: not started")

// caughtUp waits until all that is in the journals of a kind now is counted.
func (c *counts) caughtUp(ctx context.Context, kind string) error {
	for _, plane := range planes[kind] {
		if c.source[plane] == nil {
			return errNotFollowed
		}
		for _, src := range c.source[plane] {
			end, err := src.End(ctx)
			if err != nil {
				return err
			}
			for {
				c.mu.Lock()
				there, moved := end <= 1 || c.at[src] >= end, c.moved
				c.mu.Unlock()
				if there {
					break
				}
				select {
				case <-moved:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
	}
	return nil
}
