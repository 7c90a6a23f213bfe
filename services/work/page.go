package work

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

var _ journal.Paged = (*State)(nil)

const (
	// pageItems is how many items of an agent a page has.
	pageItems = 64
	// pageGroups is how many groups these are.
	pageGroups = pageItems / groupItems
)

// headOf returns the owner of the page with what an agent has beside its items.
func headOf(k plane.Key) snapshot.Owner {
	return snapshot.Owner{Namespace: k.Namespace, ID: k.ID + "/"}
}

// blockOf returns the owner of the page with the item of an agent at an index.
func blockOf(k plane.Key, index int) snapshot.Owner {
	return snapshot.Owner{Namespace: k.Namespace, ID: k.ID + "/" + strconv.Itoa(index/pageItems)}
}

// parseOwner returns a page's agent and block number, -1 for the page of headOf; false for an owner without a page.
func parseOwner(o snapshot.Owner) (k plane.Key, block int, ok bool) {
	at := strings.LastIndexByte(o.ID, '/')
	if at < 0 {
		return k, 0, false
	}
	k = plane.KeyOf(o.Namespace, o.ID[:at])
	if o == headOf(k) {
		return k, -1, true
	}
	block, err := strconv.Atoi(o.ID[at+1:])
	return k, block, err == nil && block >= 0 && block < math.MaxInt/pageItems && blockOf(k, block*pageItems) == o
}

// Owners implements journal.Paged. An event changes items of its own agent only. After it, settle may pack groups
// that are in other blocks than the item, so Owners calls touch with the blocks of all packable groups.
func (s *State) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	k := plane.KeyOf(ev.Namespace, ev.AgentID)
	item := func(id string) {
		if it := s.item(ev.Namespace, id); it != nil {
			touch(blockOf(k, it.index))
		} else if a := s.agents.Get(k); a != nil {
			touch(blockOf(k, a.size()))
		} else {
			touch(blockOf(k, 0))
		}
	}
	row, err := eventRows.Of(ev)
	if err != nil || row.fold == nil {
		return
	}
	for _, id := range row.items(ev) {
		item(id)
	}
	if a := s.agents.Get(k); a != nil {
		for _, n := range a.packable {
			touch(blockOf(k, n*groupItems))
		}
	}
	touch(headOf(k))
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for k, a := range s.agents.Resident() {
		ownersOf(k, a.size(), fn)
	}
	for k, left := range s.agents.Summaries() {
		ownersOf(k, int(left.items), fn)
	}
}

// ownersOf calls fn with the owners of the pages of an agent with so many items.
func ownersOf(k plane.Key, items int, fn func(snapshot.Owner)) {
	fn(headOf(k))
	for at := 0; at < items; at += pageItems {
		fn(blockOf(k, at))
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &workv1.AgentWorkPage{} }

// Page implements journal.Paged.
func (s *State) Page(o snapshot.Owner) proto.Message {
	k, block, ok := parseOwner(o)
	if !ok {
		return nil
	}
	a := s.agents.Peek(k)
	switch {
	case a == nil:
		return nil
	case block >= 0:
		return s.itemsPage(a, block)
	}
	return a.head()
}

// head returns a page with what an agent has beside its items.
func (a *agentWork) head() *workv1.AgentWorkPage {
	p := &workv1.AgentWorkPage{CurrentWorkItemId: a.current, Deleted: a.deleted, EndedWaitIds: slices.Clone(a.ended)}
	if !a.changed.IsZero() {
		p.ChangedAt = timestamppb.New(a.changed)
	}
	return p
}

// setHead is the reverse of head.
func (a *agentWork) setHead(p *workv1.AgentWorkPage) {
	a.current, a.deleted, a.ended = p.GetCurrentWorkItemId(), p.GetDeleted(), p.GetEndedWaitIds()
	if p.GetChangedAt() != nil {
		a.changed = p.GetChangedAt().AsTime()
	}
}

// itemsPage returns the page with a block of items, nil if there is none. The records and HistorySteps of its entries
// are shared with the state: records are replaced and never edited, and histories only append to their steps.
func (s *State) itemsPage(a *agentWork, block int) proto.Message {
	p := &workv1.AgentWorkPage{}
	for n := block * pageGroups; n < min((block+1)*pageGroups, len(a.groups)); n++ {
		if g := &a.groups[n]; g.packed.IsZero() {
			p.Items = append(p.Items, g.entries()...)
		} else {
			p.Packed = append(p.Packed, g.page(n%pageGroups, g.packed.Bytes(), s.idHashes(a.namespace, g.entries())))
		}
	}
	if len(p.GetItems())+len(p.GetPacked()) == 0 {
		return nil
	}
	return p
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	p, is := page.(*workv1.AgentWorkPage)
	k, block, ok := parseOwner(o)
	items := len(p.GetItems()) + len(p.GetPacked())*groupItems
	if !is || !ok || items > pageItems || block < 0 && items > 0 {
		return fmt.Errorf("work: %q of %q has no page of type %T with %d items", o.ID, o.Namespace, page, items)
	}
	a := s.agent(k)
	if block < 0 {
		a.setHead(p)
		return nil
	}
	var isPacked [pageGroups]bool
	for _, g := range p.GetPacked() {
		if err := s.addPacked(a, block, g); err != nil {
			return fmt.Errorf("work: agent %s/%s: %w", o.Namespace, k.ID, err)
		}
		isPacked[g.GetGroup()] = true
	}
	at := 0 // in the page
	for _, e := range p.GetItems() {
		for at < pageItems && isPacked[at/groupItems] {
			at += groupItems
		}
		if err := s.addEntry(k, block*pageItems+at, e); err != nil {
			return fmt.Errorf("work: agent %s/%s: %w", o.Namespace, k.ID, err)
		}
		at++
	}
	s.settle(k)
	return nil
}

// addEntry adds an item of a page to the items of its agent, at an index.
func (s *State) addEntry(k plane.Key, index int, e *workv1.WorkItemEntry) error {
	rec := e.GetWorkItem()
	id := rec.GetWorkItemId()
	h := historyOf(e)
	switch {
	case id == "":
		return fmt.Errorf("an item without a record or an id")
	case rec.GetAgentId() != k.ID:
		return fmt.Errorf("item %s belongs to agent %q", id, rec.GetAgentId())
	case s.items[plane.KeyOf(k.Namespace, id)] != nil:
		return fmt.Errorf("item %s is there twice", id)
	case !h.Valid():
		return fmt.Errorf("item %s: its history does not end at its last event %d", id, h.Last)
	}
	a := s.agent(k)
	g := a.groupAt(index / groupItems)
	if !g.packed.IsZero() {
		return fmt.Errorf("item %s is in the place of another one", id)
	}
	for len(g.items) <= index%groupItems {
		g.items = append(g.items, nil)
	}
	if other := g.items[index%groupItems]; other != nil {
		return fmt.Errorf("item %s is in the place of item %s", id, other.rec.GetWorkItemId())
	}
	it := &item{history: h, index: index}
	s.items[plane.KeyOf(k.Namespace, id)], g.items[index%groupItems] = it, it
	s.replace(a, it, rec)
	return nil
}
