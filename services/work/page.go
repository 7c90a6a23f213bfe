package work

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
)

var (
	_ journal.Paged     = (*State)(nil)
	_ snapshot.Resident = (*State)(nil)
)

// headOf returns the owner of the page with what an agent has beside its items. Its other pages have its items.
func headOf(k plane.Key) snapshot.Owner {
	return snapshot.Owner{Namespace: k.Namespace, ID: k.ID + "/"}
}

// isHead returns the agent whose headOf is o.
func isHead(o snapshot.Owner) (plane.Key, bool) {
	id, is := strings.CutSuffix(o.ID, "/")
	return plane.KeyOf(o.Namespace, id), is
}

// Owners implements journal.Paged. An event changes items of its own agent only. After it, settle may pack groups
// that are in other blocks than the item, so Owners calls touch with the blocks of all packable groups.
func (s *State) Owners(ev *journal.Event, touch func(snapshot.Owner)) {
	row, err := eventRows.Of(ev)
	if err != nil || row.fold == nil {
		return
	}
	k := plane.KeyOf(ev.Namespace, ev.AgentID)
	for _, id := range row.items(ev) {
		if it := s.item(ev.Namespace, id); it != nil {
			touch(s.PageOf(k, it.index))
		} else { // a new item, which gets the next index
			touch(s.PageOf(k, s.Len(k)))
		}
	}
	if a := s.ByOwner.Get(k); a != nil {
		for _, n := range a.packable {
			touch(s.PageOf(k, n*groups.Size))
		}
	}
	touch(headOf(k))
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(snapshot.Owner)) {
	for k := range s.ByOwner.Keys() {
		fn(headOf(k))
		s.Pages(k, s.Len(k), fn)
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &workv1.AgentWorkPage{} }

// Page implements journal.Paged.
func (s *State) Page(o snapshot.Owner) proto.Message {
	p := &workv1.AgentWorkPage{}
	if k, is := isHead(o); is {
		if a := s.ByOwner.Peek(k); a != nil {
			a.writeHead(p)
			return p
		}
	} else if k, block, ok := s.Block(o); ok && s.WriteBlock(p, k, block) {
		return p
	}
	return nil
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o snapshot.Owner, page proto.Message) error {
	p, is := page.(*workv1.AgentWorkPage)
	head, isHead := isHead(o)
	k, block, ok := s.Block(o)
	switch {
	case is && isHead && len(p.GetItems())+len(p.GetPacked()) == 0: // a head has no items
		s.Owner(head).readHead(p)
		return nil
	case !is || !ok:
		return fmt.Errorf("work: %q of %q has no page of type %T with %d items", o.ID, o.Namespace, page,
			len(p.GetItems())+len(p.GetPacked())*groups.Size)
	}
	if err := s.ReadBlock(p, k, block); err != nil {
		return fmt.Errorf("work: agent %s/%s: %w", o.Namespace, k.ID, err)
	}
	s.settle(k)
	return nil
}
