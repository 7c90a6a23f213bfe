package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/follower"
)

// planes has the planes whose journals are read for a kind.
var planes = map[string][]string{
	Agents: {"agent"}, OpenItems: {"work"}, MiB: {"agent", "work", "task", "waiting", "board"},
}

// deltas has the events that change a count, by plane and type.
var deltas = map[string]map[string]struct {
	kind string
	by   int64
}{
	"agent": {"agent_spawned": {Agents, 1}, "agent_deleted": {Agents, -1}},
	"work":  {"work_item_created": {OpenItems, 1}, "work_item_completed": {OpenItems, -1}},
}

// counts are what the namespaces hold, as the journals say.
type counts struct {
	mu   sync.Mutex
	held map[string]map[string]int64 // by namespace and kind

	sources  map[string][]journal.Source // by plane; not changed after start
	journals *follower.Set
}

// newCounts returns counts that follow nothing yet; see start.
func newCounts(logger *zap.Logger) *counts {
	c := &counts{held: map[string]map[string]int64{}, sources: map[string][]journal.Source{}}
	c.journals = follower.NewSet(logger.Named("quota"), c.frame)
	return c
}

// start reads the journals of kinds up to their current ends, and begins to follow them.
func (c *counts) start(ctx context.Context, sources func(plane string) ([]journal.Source, error), kinds []string) error {
	for _, kind := range kinds {
		for _, plane := range planes[kind] {
			if c.sources[plane] != nil {
				continue
			}
			found, err := sources(plane)
			if err != nil {
				return fmt.Errorf("quota: %w", err)
			}
			c.sources[plane] = found
			c.journals.Add(found...)
		}
	}
	for _, kind := range kinds {
		if err := c.catchUp(ctx, kind); err != nil {
			return fmt.Errorf("quota: the journals cannot be read: %w", err)
		}
	}
	return nil
}

// close ends following. It is idempotent.
func (c *counts) close() { c.journals.Close() }

// frame adds the bytes of one frame's lines, and what they create or end, to the counts of
// their namespaces.
func (c *counts) frame(src journal.Source, lines []journal.Line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range lines {
		ev, err := line.Envelope()
		if err != nil || journal.Internal(ev.Type) {
			continue // a line that cannot be read counts for no namespace
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
}

// get returns what a namespace holds of a kind; bytes for MiB.
func (c *counts) get(namespace, kind string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[namespace][kind]
}

var errNotFollowed = errors.New("quota: not started")

// catchUp waits until all that is in the journals of a kind now is counted.
func (c *counts) catchUp(ctx context.Context, kind string) error {
	for _, plane := range planes[kind] {
		if c.sources[plane] == nil {
			return errNotFollowed
		}
		if err := c.journals.CatchUp(ctx, c.sources[plane]...); err != nil {
			return err
		}
	}
	return nil
}
