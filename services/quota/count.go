package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/packed"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// planes has, for each kind of quota that is counted from journals, the planes whose journals are read for it.
var planes = map[string][]string{
	Agents: {"agent"}, OpenItems: {"work", "agent"}, MiB: {"agent", "work", "task", "waiting", "board"},
}

// deltas has the events that change the count of a kind, by plane and event type.
var deltas = map[string]map[string]struct {
	kind string
	by   int64
}{
	"agent": {"agent_spawned": {Agents, 1}, "agent_deleted": {Agents, -1}},
	"work":  {"work_item_created": {OpenItems, 1}, "work_item_completed": {OpenItems, -1}},
}

// counts follows the journals and counts what each namespace holds.
type counts struct {
	mu   sync.Mutex
	held map[string]map[string]int64 // by namespace and kind
	// items has the open items of each agent, by the hashes of their ids. deleted has the agents that are deleted,
	// whose items stay open and are not counted. The journals of agents and of items are read independently of each
	// other, so an agent may be deleted here before its items are known. A completion of an item whose creation was
	// removed from the journal, because it is old, changes nothing.
	items   map[owner]map[uint64]struct{}
	deleted map[owner]bool
	// bytes has the bytes of the lines of each journal, by namespace, up to the event whose wal_seq is in through.
	bytes   map[journal.Source]map[string]int64
	through map[journal.Source]uint64

	archived Archived                             // nil: nothing is ever removed
	names    map[journal.Source]map[uint64]string // what archived returned before the bytes were counted
	logger   *zap.Logger
	ctx      context.Context //nolint:containedctx // ends what runs in the background
	cancel   context.CancelFunc
	looking  sync.WaitGroup

	following sync.Mutex                  // held while sources or names is read or changed
	sources   map[string][]journal.Source // by plane, of the planes whose journals are read
	journals  *follower.Set
}

// owner names an agent.
type owner struct{ namespace, agent string }

// newCounts returns counts that follow nothing yet; see start.
func newCounts(logger *zap.Logger, archived Archived) *counts {
	c := &counts{
		held: map[string]map[string]int64{}, items: map[owner]map[uint64]struct{}{}, deleted: map[owner]bool{},
		sources: map[string][]journal.Source{},
	}
	c.bytes, c.through, c.names = map[journal.Source]map[string]int64{}, map[journal.Source]uint64{},
		map[journal.Source]map[uint64]string{}
	c.archived, c.logger = archived, logger.Named("quota")
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.journals = follower.NewSet(c.logger, c.frame)
	return c
}

// start begins to follow the journals from which kinds of quota are counted (see planes), except those that are
// followed already, and waits until they are counted up to their current ends.
func (c *counts) start(ctx context.Context, sources func(plane string) ([]journal.Source, error),
	kinds []string,
) error {
	if err := c.follow(ctx, sources, kinds); err != nil {
		return err
	}
	for _, kind := range kinds {
		if err := c.catchUp(ctx, kind); err != nil {
			return fmt.Errorf("quota: the journals cannot be read: %w", err)
		}
	}
	return nil
}

// follow begins to follow the journals of kinds.
func (c *counts) follow(ctx context.Context, sources func(plane string) ([]journal.Source, error),
	kinds []string,
) error {
	c.following.Lock()
	defer c.following.Unlock()
	for _, kind := range kinds {
		for _, plane := range planes[kind] {
			if c.sources[plane] != nil {
				continue
			}
			found, err := sources(plane)
			if err != nil {
				return fmt.Errorf("quota: %w", err)
			}
			for _, src := range found {
				if c.archived == nil {
					break
				}
				// The names are read before the journal, so that a segment that is rewritten meanwhile is counted
				// again. If they cannot be read, recount counts the whole journal again.
				if names, err := c.archived(ctx, src.Plane(), src.Partition()); err == nil {
					c.names[src] = names
				}
			}
			if c.archived != nil && len(c.sources) == 0 {
				c.looking.Go(func() { c.lookAgain(c.ctx) })
			}
			c.sources[plane] = found
			c.journals.Add(found...)
		}
	}
	return nil
}

// of returns the journals of a plane; nil if they are not followed yet.
func (c *counts) of(plane string) []journal.Source {
	c.following.Lock()
	defer c.following.Unlock()
	return c.sources[plane]
}

// close stops following the journals, and waits until nothing of it runs. It is idempotent.
func (c *counts) close() {
	c.cancel()
	c.looking.Wait()
	c.journals.Close()
}

// frame updates the counts of the namespaces in one frame: it adds the bytes of their lines, and
// adds or subtracts the agents and open items that their events create or end.
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
		of[MiB] += size(line)
		if c.bytes[src] == nil {
			c.bytes[src] = map[string]int64{}
		}
		c.bytes[src][ev.Namespace] += size(line)
		c.through[src] = ev.WalSeq
		d, ok := deltas[src.Plane()][ev.Type]
		if !ok {
			continue
		}
		who := owner{ev.Namespace, ev.AgentID}
		if d.kind == OpenItems {
			if !c.changeItem(who, packed.Hash(ev.Namespace, ev.WorkItemID), d.by) || c.deleted[who] {
				continue
			}
		}
		of[d.kind] += d.by
		if ev.Type == "agent_deleted" {
			c.deleted[who] = true
			of[OpenItems] -= int64(len(c.items[who]))
		}
	}
}

// changeItem adds an item to the open ones of an agent if by is positive, and removes it otherwise. It reports
// whether that changed them. The caller holds mu.
func (c *counts) changeItem(who owner, item uint64, by int64) bool {
	open := c.items[who]
	if _, is := open[item]; is == (by > 0) {
		return false
	}
	if by > 0 {
		if open == nil {
			open = map[uint64]struct{}{}
			c.items[who] = open
		}
		open[item] = struct{}{}
		return true
	}
	if delete(open, item); len(open) == 0 {
		delete(c.items, who)
	}
	return true
}

// aboveShare reports whether the journals hold more bytes of a namespace than of the namespaces on average.
func (c *counts) aboveShare(namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all int64
	for _, of := range c.held {
		all += of[MiB]
	}
	return len(c.held) > 0 && c.held[namespace][MiB]*int64(len(c.held)) > all
}

// get returns how many agents, open items or, for MiB, bytes a namespace holds.
func (c *counts) get(namespace, kind string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[namespace][kind]
}

// all returns what each namespace holds, in no particular order.
func (c *counts) all() []*identityv1.NamespaceUse {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*identityv1.NamespaceUse, 0, len(c.held))
	for namespace, of := range c.held {
		out = append(out, &identityv1.NamespaceUse{
			Namespace: namespace, Agents: of[Agents], OpenItems: of[OpenItems],
			Bytes: of[MiB],
		})
	}
	return out
}

var errNotFollowed = errors.New("quota: not started")

// catchUp waits until everything that the journals of a kind contain now is counted. If a journal is damaged, what is
// behind the damage is not counted, and that is no error. It returns errNotFollowed if a journal is not followed.
func (c *counts) catchUp(ctx context.Context, kind string) error {
	for _, plane := range planes[kind] {
		sources := c.of(plane)
		if sources == nil {
			return errNotFollowed
		}
		var broken *framelog.Broken
		for _, source := range sources {
			if err := c.journals.CatchUp(ctx, source); err != nil && !errors.As(err, &broken) {
				return err
			}
		}
	}
	return nil
}
