package work

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/packed"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
	"quartet/services/work/derive"
	"quartet/services/work/past"
)

const (
	// recentItems is how many completed items of an agent are never packed, those written last: queues show
	// capCompleted of them beside the one in focus.
	recentItems = capCompleted + 1
	// pageItems is how many items of an agent a page has.
	pageItems = 64
	// evictedGroups is how many groups an agent may have to be evicted: whoever reads one item of an evicted agent
	// reads all that are not packed, which takes a millisecond for a thousand items. Nearly all items of a larger agent
	// are packed anyway.
	evictedGroups = 64
)

// store has the items of agents by namespace and id.
type store = groups.Store[agentWork, plane.Key, item, created, summary]

// created has the earliest and the latest creation of an item of a packed group, in microseconds.
type created struct{ oldest, newest int64 }

// summary is what is in memory of an evicted agent.
type summary struct {
	open    bool // whether it has open items
	deleted bool
	due     due
}

func newStore(s *State) *store {
	return groups.New(func(k plane.Key) uint64 { return packed.Hash(k.Namespace, k.ID) },
		groups.Codec[agentWork, plane.Key, item, created, summary]{
			PageGroups: pageItems / groups.Size, EvictedGroups: evictedGroups,
			New:  func(k plane.Key) *agentWork { return &agentWork{Key: k} },
			List: func(a *agentWork) *groups.List[item, created] { return &a.items },
			Key: func(k plane.Key, it *item) plane.Key {
				return plane.KeyOf(k.Namespace, it.rec.GetWorkItemId())
			},
			Index:   func(it *item) *int { return &it.index },
			NewPage: s.NewPage, Write: writeItems, Read: readItems, Keys: keys,
			WritePacked: writePacked, ReadPacked: readPacked,
			Check: checkPage,
			Added: func(a *agentWork, it *item) {
				rec := it.rec
				it.rec = nil // for replace, the item is new: no tree has it
				s.replace(a, it, rec)
			},
			Evict: func(a *agentWork, page proto.Message) (summary, bool) {
				a.writeHead(page.(*workv1.AgentWorkPage))
				return summary{open: a.open.size() > 0, deleted: a.deleted, due: a.due()}, true
			},
			Restore: func(a *agentWork, page proto.Message) { a.readHead(page.(*workv1.AgentWorkPage)) },
		})
}

// writeItems adds items to a page, which shares their records and HistorySteps: records are replaced and never edited,
// and histories only append to their steps.
func writeItems(page proto.Message, items []*item) {
	p, entries := page.(*workv1.AgentWorkPage), make([]workv1.WorkItemEntry, len(items))
	p.Items = slices.Grow(p.GetItems(), len(items))
	for i, it := range items {
		e := &entries[i]
		e.WorkItem, e.HistoryLast, e.HistorySteps = it.rec, it.history.Last, it.history.Steps
		p.Items = append(p.Items, e)
	}
}

// readItems returns the items of a page, which are allocated in groups.
func readItems(_ plane.Key, page proto.Message) []*item {
	entries := page.(*workv1.AgentWorkPage).GetItems()
	items, group := make([]*item, len(entries)), []item(nil)
	for i, e := range entries {
		if i%groups.Size == 0 {
			group = make([]item, min(groups.Size, len(entries)-i))
		}
		items[i] = &group[i%groups.Size]
		items[i].rec, items[i].history = e.GetWorkItem(), historyOf(e)
	}
	return items
}

// keys implements groups.Codec.Keys.
func keys(k plane.Key, page proto.Message) iter.Seq[plane.Key] {
	return func(yield func(plane.Key) bool) {
		for _, e := range page.(*workv1.AgentWorkPage).GetItems() {
			if !yield(plane.KeyOf(k.Namespace, e.GetWorkItem().GetWorkItemId())) {
				return
			}
		}
	}
}

// historyOf returns the history of an item of a page.
func historyOf(e *workv1.WorkItemEntry) past.Seqs {
	return past.Seqs{Last: e.GetHistoryLast(), Steps: e.GetHistorySteps()}
}

// writePacked adds a packed group to a page. readPacked returns those of a page.
func writePacked(page proto.Message, g groups.Packed[created]) {
	p := page.(*workv1.AgentWorkPage)
	p.Packed = append(p.Packed, &workv1.PackedWorkItems{
		Group: uint32(g.Group), Content: g.Content, IdHashes: g.Hashes,
		OldestCreatedUs: g.Facts.oldest, NewestCreatedUs: g.Facts.newest,
	})
}

func readPacked(page proto.Message) iter.Seq[groups.Packed[created]] {
	return func(yield func(groups.Packed[created]) bool) {
		for _, p := range page.(*workv1.AgentWorkPage).GetPacked() {
			if !yield(groups.Packed[created]{
				Group: int(p.GetGroup()), Content: p.GetContent(), Hashes: p.GetIdHashes(),
				Facts: created{p.GetOldestCreatedUs(), p.GetNewestCreatedUs()},
			}) {
				return
			}
		}
	}
}

// checkPage returns an error for a page with an item that cannot be one of an agent.
func checkPage(k plane.Key, page proto.Message) error {
	for _, e := range page.(*workv1.AgentWorkPage).GetItems() {
		rec, h := e.GetWorkItem(), historyOf(e)
		switch id := rec.GetWorkItemId(); {
		case id == "":
			return fmt.Errorf("an item without a record or an id")
		case rec.GetAgentId() != k.ID:
			return fmt.Errorf("item %s belongs to agent %q", id, rec.GetAgentId())
		case !h.Valid():
			return fmt.Errorf("item %s: its history does not end at its last event %d", id, h.Last)
		}
	}
	return nil
}

// writeHead adds what an agent has beside its items to a page. readHead is the inverse.
func (a *agentWork) writeHead(p *workv1.AgentWorkPage) {
	p.CurrentWorkItemId, p.Deleted, p.EndedWaitIds = a.current, a.deleted, slices.Clone(a.ended)
	if !a.changed.IsZero() {
		p.ChangedAt = timestamppb.New(a.changed)
	}
}

func (a *agentWork) readHead(p *workv1.AgentWorkPage) {
	a.current, a.deleted, a.ended = p.GetCurrentWorkItemId(), p.GetDeleted(), p.GetEndedWaitIds()
	if p.GetChangedAt() != nil {
		a.changed = p.GetChangedAt().AsTime()
	}
}

// edited returns an item for a change by Apply, nil if there is none. Its agent becomes resident, its group unpacked.
func (s *State) edited(namespace, itemID string) *item {
	return s.Edit(plane.KeyOf(namespace, itemID), func(a *agentWork, n int) {
		// Group n was packed, so its items, all completed, are in no tree.
		for _, it := range a.items.Groups[n].Items {
			a.done.add(byCreation, it, s.free)
			a.place(it, s.free)
		}
		a.addPackable(n)
	})
}

// settle packs the groups of an agent that can be packed: those whose items are all completed, and of which none is
// among the agent's recentItems. A packed item is in no tree. It skips an evicted agent, which was settled before.
func (s *State) settle(k plane.Key) {
	if _, evicted := s.ByOwner.Summary(k); evicted {
		return
	}
	a := s.ByOwner.Get(k)
	if a == nil || len(a.packable) == 0 {
		return
	}
	// Find the groups of the items that were written last, which are the first ones in the order of the class.
	recent := make(map[int]bool, recentItems)
	n := 0
	a.classes[workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT].Ascend(func(p place) bool {
		recent[p.it.index/groups.Size] = true
		n++
		return n < recentItems
	})

	// Pack the others; what is packed leaves the list. A group that is not full any more would leave it too, but no
	// command opens a completed item again.
	a.packable = slices.DeleteFunc(a.packable, func(n int) bool {
		return !a.items.Groups[n].Full((*item).completed) || !recent[n] && s.pack(k, a, n)
	})
}

// pack packs a group of completed items. It reports whether it did.
func (s *State) pack(k plane.Key, a *agentWork, n int) bool {
	items := a.items.Groups[n].Items
	times := created{derive.CreatedAt(items[0].rec), derive.CreatedAt(items[0].rec)}
	for _, it := range items {
		times.oldest = min(times.oldest, derive.CreatedAt(it.rec))
		times.newest = max(times.newest, derive.CreatedAt(it.rec))
	}
	if !s.Pack(k, a, n, times) {
		return false
	}
	for _, it := range items {
		a.unplace(it)
		a.done.remove(byCreation, it)
	}
	return true
}

// addPackable adds a group to those that are packed as soon as none of their items is recent.
func (a *agentWork) addPackable(n int) {
	if i, has := slices.BinarySearch(a.packable, n); !has {
		a.packable = slices.Insert(a.packable, i, n)
	}
}

// eachPacked calls visit with the records of an agent's packed items in the order byCreation, behind after if it is not
// nil, until it returns false.
func (s *State) eachPacked(a *agentWork, after *workv1.WorkItemRecord, visit func(rec *workv1.WorkItemRecord) bool) {
	if a.items.Packed() == 0 {
		return
	}
	all := a.items.Groups
	var numbers []int // of groups with items behind after
	for n := range all {
		if g := &all[n]; !g.Packed.IsZero() && (after == nil || g.Facts.newest >= derive.CreatedAt(after)) {
			numbers = append(numbers, n)
		}
	}
	byOldest := func(x, y int) int { return cmp.Compare(all[x].Facts.oldest, all[y].Facts.oldest) }
	if !slices.IsSortedFunc(numbers, byOldest) { // the clock was set back
		slices.SortStableFunc(numbers, byOldest)
	}
	var read []*workv1.WorkItemRecord // in order, not visited yet
	for i, n := range numbers {
		for _, it := range s.Group(a.Key, a, n) {
			if after == nil || derive.Older(after, it.rec) {
				read = append(read, it.rec)
			}
		}
		sort.Slice(read, func(i, j int) bool { return derive.Older(read[i], read[j]) })
		// Visit the records that are older than all of the groups that were not read yet.
		for len(read) > 0 && (i+1 == len(numbers) || derive.CreatedAt(read[0]) < all[numbers[i+1]].Facts.oldest) {
			if !visit(read[0]) {
				return
			}
			read = read[1:]
		}
	}
}

// isDeleted reports whether an agent is deleted, or is being deleted. It reads no evicted one.
func (s *State) isDeleted(k plane.Key) bool {
	if left, evicted := s.ByOwner.Summary(k); evicted {
		return left.Plane.deleted
	}
	a := s.ByOwner.Get(k)
	return a != nil && a.deleted
}

// isOpen reports whether there is an open item with an id. It reads no packed group, whose items are completed, and no
// evicted agent without open items.
func (s *State) isOpen(k plane.Key) bool {
	if it := s.Items[k]; it != nil {
		return !it.completed()
	}
	for agent, n := range s.Places(k) {
		left, evicted := s.ByOwner.Summary(agent)
		if !evicted || !left.Plane.open || agent.Namespace != k.Namespace {
			continue
		}
		for _, it := range s.ByOwner.Peek(agent).items.Groups[n].Items {
			if it.rec.GetWorkItemId() == k.ID {
				return !it.completed()
			}
		}
	}
	return false
}

// completed reports whether the item is completed.
func (it *item) completed() bool { return derive.Completed(it.rec) }

// Comparable returns what tests compare; see groups.Store.Content.
func (s *State) Comparable() any { return s.Content() }
