package work

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
	"quartet/services/work/derive"
)

// evictedGroups is how many groups an agent may have to be evicted: whoever reads one item of an evicted agent reads
// all that are not packed, which takes a millisecond for a thousand items. Nearly all items of a larger agent are
// packed anyway.
const evictedGroups = 64

// summary is what is in memory of an evicted agent, beside the places of its items in State.packed.
type summary struct {
	number  uint32 // in State.numbers
	items   uint32
	open    bool // whether it has open items
	deleted bool
	due     due
}

// UseFile gives an empty state the file that has evicted agents. Without one, no agent is evicted.
func (s *State) UseFile(f *resident.File) {
	s.agents.Use(f)
	s.packed, s.file = resident.NewIndex(f), f
}

// Evict looks at up to most further agents and evicts those not used since it looked at them before, or all if unused
// is false. n is how many it evicted; more is false once it has looked at all; see resident.Map. It changes s.
func (s *State) Evict(most int, unused bool) (n int, more bool, err error) {
	return s.agents.Evict(most, unused)
}

// Counts returns how many agents are resident, how many are evicted, and how often an evicted one was read.
func (s *State) Counts() resident.Counts { return s.agents.Counts() }

// isDeleted reports whether an agent is deleted, or is being deleted. It reads no evicted one.
func (s *State) isDeleted(k plane.Key) bool {
	if left, evicted := s.agents.Summary(k); evicted {
		return left.deleted
	}
	a := s.agents.Get(k)
	return a != nil && a.deleted
}

// isOpen reports whether there is an open item with an id. It reads no packed group, whose items are completed, and no
// evicted agent without open items.
func (s *State) isOpen(k plane.Key) bool {
	if it := s.items[k]; it != nil {
		return !derive.Completed(it.rec)
	}
	for at := range s.packedUnder(k) {
		of := s.numbers.Key(at.agent)
		if left, evicted := s.agents.Summary(of); !evicted || !left.open {
			continue
		}
		a := s.agents.Peek(of)
		if !a.groups[at.group].packed.IsZero() {
			continue
		}
		if it := a.find(int(at.group), k.ID); it != nil {
			return !derive.Completed(it.rec)
		}
	}
	return false
}

// evictedPage returns a page with all that an agent has. A packed group has its number among all groups there, a
// reference instead of its content, and no hashes, since these stay in State.packed. It returns false for an agent
// that stays resident: one with more than evictedGroups groups, or with groups that were not added yet.
func (s *State) evictedPage(_ plane.Key, a *agentWork) (proto.Message, summary, bool) {
	a.store(s.file)
	if len(a.groups) > evictedGroups {
		return nil, summary{}, false
	}
	p := a.head()
	for n := range a.groups {
		g := &a.groups[n]
		switch {
		case !g.packed.IsZero():
			p.Packed = append(p.Packed, g.page(n, g.packed.Ref(), nil))
		case len(g.items) == 0 || len(g.items) < groupItems && n < len(a.groups)-1 || slices.Contains(g.items, nil):
			return nil, summary{}, false
		default:
			p.Items = append(p.Items, g.entries()...)
		}
	}
	return p, summary{
		number: a.number, items: uint32(a.size()), open: a.open.size() > 0, deleted: a.deleted,
		due: a.due(),
	}, true
}

// evictedAgent is the inverse of evictedPage. It does not change the state.
func (s *State) evictedAgent(k plane.Key, page proto.Message) (*agentWork, error) {
	p, is := page.(*workv1.AgentWorkPage)
	left, evicted := s.agents.Summary(k)
	if !is || !evicted {
		return nil, fmt.Errorf("work: agent %s/%s is not evicted to a %T", k.Namespace, k.ID, page)
	}
	a := &agentWork{namespace: k.Namespace, number: left.number}
	a.setHead(p)
	items, packed := p.GetItems(), p.GetPacked()
	for len(items)+len(packed) > 0 {
		if len(packed) > 0 && int(packed[0].GetGroup()) == len(a.groups) {
			content, err := resident.BlobOf(s.file, packed[0].GetContent())
			if err != nil {
				return nil, fmt.Errorf("work: agent %s/%s: group %d: %w", k.Namespace, k.ID, packed[0].GetGroup(), err)
			}
			a.groups = append(a.groups, groupOf(packed[0], content))
			a.packed += groupItems
			packed = packed[1:]
			continue
		}
		if len(items) == 0 {
			return nil, fmt.Errorf("work: agent %s/%s: items before group %d are missing", k.Namespace, k.ID,
				packed[0].GetGroup())
		}
		n := min(groupItems, len(items))
		for _, e := range items[:n] {
			s.replace(a, a.append(historyOf(e)), e.GetWorkItem())
		}
		items = items[n:]
	}
	return a, nil
}

// evicted is called when an agent is evicted. It moves the items that are not packed from s.items to s.packed.
func (s *State) evicted(k plane.Key, a *agentWork) {
	for n := range a.groups {
		g := &a.groups[n]
		if g.packed.IsZero() {
			s.addToPacked(s.idHashes(k.Namespace, g.entries()), packedAt{a.number, uint32(n)})
		}
		for _, it := range g.items {
			delete(s.items, plane.KeyOf(k.Namespace, it.rec.GetWorkItemId()))
		}
	}
}

// loaded is called when an evicted agent becomes resident again. It undoes evicted.
func (s *State) loaded(k plane.Key, a *agentWork) {
	for n := range a.groups {
		if g := &a.groups[n]; g.packed.IsZero() {
			s.removeFromPacked(s.idHashes(k.Namespace, g.entries()), packedAt{a.number, uint32(n)})
		}
		for _, it := range a.groups[n].items {
			s.items[plane.KeyOf(k.Namespace, it.rec.GetWorkItemId())] = it
		}
	}
}

// unpacked returns the items of an agent that are not packed.
func unpacked(a *agentWork) (items []*item) {
	for i := range a.groups {
		items = append(items, a.groups[i].items...)
	}
	return items
}

// Comparable returns what tests compare (see pagestest.Same). It does not depend on which agents are evicted and on
// their numbers. It differs if an item is missing in State.items or State.packed, or is in the wrong one.
func (s *State) Comparable() any {
	type itemAt struct {
		agent plane.Key
		group uint32
	}
	all := struct {
		items  map[plane.Key]*item
		packed map[uint64][]itemAt
		agents map[plane.Key]agentWork
	}{maps.Clone(s.items), map[uint64][]itemAt{}, map[plane.Key]agentWork{}}
	for h, n := range s.packed.All() {
		all.packed[h] = append(all.packed[h], itemAt{s.numbers.Key(uint32(n >> 32)), uint32(n)})
	}
	for k := range s.agents.Keys() {
		a := *s.agents.Peek(k)
		if _, evicted := s.agents.Summary(k); evicted {
			for _, it := range unpacked(&a) {
				ik := plane.KeyOf(k.Namespace, it.rec.GetWorkItemId())
				h := s.hashOf(ik)
				if i := slices.Index(all.packed[h], itemAt{k, uint32(it.index / groupItems)}); s.items[ik] == nil &&
					i >= 0 {
					all.items[ik] = it
					if all.packed[h] = slices.Delete(all.packed[h], i, i+1); len(all.packed[h]) == 0 {
						delete(all.packed, h)
					}
				}
			}
		}
		a.number = 0
		all.agents[k] = a
	}
	for _, at := range all.packed {
		slices.SortFunc(at, func(x, y itemAt) int {
			return cmp.Or(cmp.Compare(x.agent.Namespace, y.agent.Namespace), cmp.Compare(x.agent.ID, y.agent.ID),
				cmp.Compare(x.group, y.group))
		})
	}
	return all
}
