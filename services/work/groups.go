package work

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"

	"quartet/pkg/packed"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
	"quartet/services/work/derive"
	"quartet/services/work/past"
)

const (
	// groupItems is how many items of an agent, in the order in which they were added, are a group. It divides
	// pageItems.
	groupItems = 16
	// recentItems is how many completed items of an agent are never packed, those written last: queues show
	// capCompleted of them beside the one in focus.
	recentItems = capCompleted + 1
)

// group is a number of items of an agent that were added one after the other. Once all are completed, and none is among
// the agent's recentItems, the group is packed: its items are in no tree and in no map, and take a tenth of the memory.
type group struct {
	items  []*item       // nil if the group is packed
	packed resident.Blob // an AgentWorkPage with the items; zero if the group is not packed
	// oldest and newest are the earliest and the latest creation of an item of a packed group, in microseconds.
	oldest, newest int64
}

// packedAt says which group of an agent has an item.
type packedAt struct {
	agent uint32 // in State.numbers
	group uint32
}

// number returns at as State.packed has it: the agent in the upper 32 bits, the group in the lower ones.
func (at packedAt) number() uint64 { return uint64(at.agent)<<32 | uint64(at.group) }

// hashOf returns the key of an item in State.packed.
func (s *State) hashOf(k plane.Key) uint64 {
	return s.hash(k.Namespace, k.ID)
}

// item returns an item, nil if there is none. If it is in a packed group or of an evicted agent, it is a copy.
func (s *State) item(namespace, itemID string) *item {
	k := plane.KeyOf(namespace, itemID)
	if it := s.items[k]; it != nil {
		return it
	}
	it, _ := s.packedItem(k)
	return it
}

// packedItem returns a copy of an item that State.packed has, since it is in a packed group or of an evicted agent,
// and where it is; nil if State.packed does not have it.
func (s *State) packedItem(k plane.Key) (*item, packedAt) {
	for at := range s.packedUnder(k) {
		if it := s.agents.Get(s.numbers.Key(at.agent)).find(int(at.group), k.ID); it != nil {
			return it, at
		}
	}
	return nil, packedAt{}
}

// packedUnder returns the groups that may have an item: those of its namespace that State.packed has under its hash.
func (s *State) packedUnder(k plane.Key) iter.Seq[packedAt] {
	return func(yield func(packedAt) bool) {
		for n := range s.packed.Find(s.hashOf(k)) {
			at := packedAt{uint32(n >> 32), uint32(n)}
			if s.numbers.Key(at.agent).Namespace == k.Namespace && !yield(at) {
				return
			}
		}
	}
}

// find returns the item with an id in group n, nil if there is none. If the group is packed, the item is a copy.
func (a *agentWork) find(n int, itemID string) *item {
	g := &a.groups[n]
	if g.packed.IsZero() {
		if i := slices.IndexFunc(g.items, func(it *item) bool { return it.rec.GetWorkItemId() == itemID }); i >= 0 {
			return g.items[i]
		}
		return nil
	}
	for i, e := range g.entries() {
		if e.GetWorkItem().GetWorkItemId() == itemID {
			return &item{rec: e.GetWorkItem(), history: historyOf(e), index: n*groupItems + i}
		}
	}
	return nil
}

// historyOf returns the history of an item of a page.
func historyOf(e *workv1.WorkItemEntry) past.Seqs {
	return past.Seqs{Last: e.GetHistoryLast(), Steps: e.GetHistorySteps()}
}

// edited returns an item for a change by Apply, nil if there is none. Its agent becomes resident, its group unpacked.
func (s *State) edited(namespace, itemID string) *item {
	k := plane.KeyOf(namespace, itemID)
	if it := s.items[k]; it != nil {
		return it
	}
	it, at := s.packedItem(k)
	if it == nil {
		return nil
	}
	a := s.agents.Edit(s.numbers.Key(at.agent))
	if !a.groups[at.group].packed.IsZero() {
		s.unpack(namespace, a, int(at.group))
	}
	return s.items[k]
}

// entries returns the items of a group.
func (g *group) entries() []*workv1.WorkItemEntry {
	if !g.packed.IsZero() {
		var page workv1.AgentWorkPage
		packed.Read(g.packed.Bytes(), &page)
		return page.GetItems()
	}
	entries, all := make([]workv1.WorkItemEntry, len(g.items)), make([]*workv1.WorkItemEntry, len(g.items))
	for i, it := range g.items {
		e := &entries[i]
		e.WorkItem, e.HistoryLast, e.HistorySteps = it.rec, it.history.Last, it.history.Steps
		all[i] = e
	}
	return all
}

// completed reports whether a group that is not packed has all its items, and these are completed.
func (g *group) completed() bool {
	return len(g.items) == groupItems &&
		!slices.ContainsFunc(g.items, func(it *item) bool { return it == nil || !derive.Completed(it.rec) })
}

// groupAt returns group n. It adds the groups up to n that are missing, empty, since their pages may come later.
func (a *agentWork) groupAt(n int) *group {
	for len(a.groups) <= n {
		a.groups = append(a.groups, group{})
	}
	return &a.groups[n]
}

// page returns the form in which a page has a packed group. The caller gives its number, content and hashes of ids.
func (g *group) page(n int, content []byte, hashes []uint64) *workv1.PackedWorkItems {
	return &workv1.PackedWorkItems{
		Group: uint32(n), Content: content, OldestCreatedUs: g.oldest,
		NewestCreatedUs: g.newest, IdHashes: hashes,
	}
}

// groupOf returns the packed group that a page has. The caller gives its content.
func groupOf(p *workv1.PackedWorkItems, content resident.Blob) group {
	return group{packed: content, oldest: p.GetOldestCreatedUs(), newest: p.GetNewestCreatedUs()}
}

// addToPacked adds a group to State.packed.
func (s *State) addToPacked(hashes []uint64, at packedAt) {
	for _, h := range hashes {
		s.packed.Add(h, at.number())
	}
}

// removeFromPacked removes a group from State.packed.
func (s *State) removeFromPacked(hashes []uint64, at packedAt) {
	for _, h := range hashes {
		s.packed.Remove(h, at.number())
	}
}

// idHashes returns, for each of entries, the key that the item has or would have in State.packed.
func (s *State) idHashes(namespace string, entries []*workv1.WorkItemEntry) []uint64 {
	hashes := make([]uint64, len(entries))
	for i, e := range entries {
		hashes[i] = s.hashOf(plane.KeyOf(namespace, e.GetWorkItem().GetWorkItemId()))
	}
	return hashes
}

// addPacked adds a packed group of the page of a block to the items of agent a. It does not decode the group's items.
func (s *State) addPacked(a *agentWork, block int, p *workv1.PackedWorkItems) error {
	if p.GetGroup() >= pageGroups || len(p.GetIdHashes()) != groupItems || len(p.GetContent()) == 0 {
		return fmt.Errorf("group %d has %d bytes with %d items", p.GetGroup(), len(p.GetContent()),
			len(p.GetIdHashes()))
	}
	n := block*pageGroups + int(p.GetGroup())
	g := a.groupAt(n)
	if !g.packed.IsZero() || len(g.items) > 0 {
		return fmt.Errorf("group %d is there twice", p.GetGroup())
	}
	s.addToPacked(p.GetIdHashes(), packedAt{a.number, uint32(n)})
	*g = groupOf(p, resident.NewBlob(s.file, p.GetContent()))
	a.packed += groupItems
	return nil
}

// settle packs the groups of an agent that can be packed. It skips an evicted agent, which was settled before.
func (s *State) settle(k plane.Key) {
	if _, evicted := s.agents.Summary(k); evicted {
		return
	}
	a := s.agents.Get(k)
	if a == nil || len(a.packable) == 0 {
		return
	}
	recent := make(map[int]bool, recentItems)
	n := 0
	a.classes[workv1.CandidateClass_CANDIDATE_CLASS_COMPLETED_RECENT].Ascend(func(p place) bool {
		recent[p.it.index/groupItems] = true
		n++
		return n < recentItems
	})
	a.packable = slices.DeleteFunc(a.packable, func(n int) bool {
		return !a.groups[n].completed() || !recent[n] && s.pack(k, a, n)
	})
}

// pack packs a group of completed items. It reports whether it did.
func (s *State) pack(k plane.Key, a *agentWork, n int) bool {
	g := &a.groups[n]
	b, err := packed.Encode(&workv1.AgentWorkPage{Items: g.entries()})
	if err != nil {
		return false
	}
	s.addToPacked(s.idHashes(k.Namespace, g.entries()), packedAt{a.number, uint32(n)})
	for i, it := range g.items {
		at := derive.CreatedAt(it.rec)
		if i == 0 {
			g.oldest, g.newest = at, at
		}
		g.oldest, g.newest = min(g.oldest, at), max(g.newest, at)
		a.unplace(it)
		a.done.remove(byCreation, it)
		delete(s.items, plane.KeyOf(k.Namespace, it.rec.GetWorkItemId()))
	}
	a.packed += len(g.items)
	g.items, g.packed = nil, resident.NewBlob(s.file, b)
	return true
}

// store stores the packed groups whose bytes are in memory, since the file could not be written before.
func (a *agentWork) store(f *resident.File) {
	for n := range a.groups {
		a.groups[n].packed, _ = a.groups[n].packed.Store(f)
	}
}

// unpack undoes pack, so that the items of a group can be changed.
func (s *State) unpack(namespace string, a *agentWork, n int) {
	entries := a.groups[n].entries()
	g := &a.groups[n]
	g.packed.Free()
	*g = group{items: make([]*item, len(entries))}
	a.packed -= len(entries)
	s.removeFromPacked(s.idHashes(namespace, entries), packedAt{a.number, uint32(n)})
	for i, e := range entries {
		it := &item{rec: e.GetWorkItem(), history: historyOf(e), index: n*groupItems + i}
		ik := plane.KeyOf(namespace, it.rec.GetWorkItemId())
		s.items[ik], g.items[i] = it, it
		a.done.add(byCreation, it, s.free)
		a.place(it, s.free)
	}
	a.addPackable(n)
}

// addPackable adds a group to those that are packed as soon as none of their items is recent.
func (a *agentWork) addPackable(n int) {
	if i, has := slices.BinarySearch(a.packable, n); !has {
		a.packable = slices.Insert(a.packable, i, n)
	}
}

// eachPacked calls visit with the records of packed items in the order byCreation, behind after if it is not nil, until
// it returns false.
func (a *agentWork) eachPacked(after *workv1.WorkItemRecord, visit func(rec *workv1.WorkItemRecord) bool) {
	if a.packed == 0 {
		return
	}
	var groups []*group // with items behind after
	for i := range a.groups {
		if g := &a.groups[i]; !g.packed.IsZero() && (after == nil || g.newest >= derive.CreatedAt(after)) {
			groups = append(groups, g)
		}
	}
	byOldest := func(x, y *group) int { return cmp.Compare(x.oldest, y.oldest) }
	if !slices.IsSortedFunc(groups, byOldest) { // the clock was set back
		slices.SortStableFunc(groups, byOldest)
	}
	var read []*workv1.WorkItemRecord // in order, not visited yet
	for i, g := range groups {
		for _, e := range g.entries() {
			if after == nil || derive.Older(after, e.GetWorkItem()) {
				read = append(read, e.GetWorkItem())
			}
		}
		sort.Slice(read, func(i, j int) bool { return derive.Older(read[i], read[j]) })
		for len(read) > 0 && (i+1 == len(groups) || derive.CreatedAt(read[0]) < groups[i+1].oldest) {
			if !visit(read[0]) {
				return
			}
			read = read[1:]
		}
	}
}
