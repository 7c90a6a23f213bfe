package groups

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/plane"
	"quartet/pkg/resident"
)

// UseFile implements snapshot.Resident.
func (s *Store[V, K, T, F, S]) UseFile(f *resident.File) {
	s.ByOwner.Use(f)
	s.Index, s.File = resident.NewIndex(f), f
}

// Evict implements snapshot.Resident.
func (s *Store[V, K, T, F, S]) Evict(most int, unused bool) (n int, more bool, err error) {
	return s.ByOwner.Evict(most, unused)
}

// Counts implements snapshot.Resident.
func (s *Store[V, K, T, F, S]) Counts() resident.Counts { return s.ByOwner.Counts() }

// evictedPage returns a page with all items of an owner, and their summary. A packed group has its number among all
// groups in it, a reference to its content in the file instead of the content, and no hashes, since these stay in
// Index. evictedPage returns false for an owner that has to stay in memory, that has more than EvictedGroups groups, or
// of which a page was not added yet, so that items are missing before others.
func (s *Store[V, K, T, F, S]) evictedPage(_ plane.Key, v *V) (proto.Message, Summary[S], bool) {
	l := s.codec.List(v)
	for n := range l.Groups { // the bytes of a group stay in memory while the file cannot be written
		l.Groups[n].Packed, _ = l.Groups[n].Packed.Store(s.File)
	}
	page := s.codec.NewPage()
	summary, evictable := s.codec.Evict(v, page)
	if !evictable || len(l.Groups) > s.codec.EvictedGroups {
		return nil, Summary[S]{}, false
	}
	for n := range l.Groups {
		g := &l.Groups[n]
		switch {
		case !g.Packed.IsZero():
			s.codec.WritePacked(page, Packed[F]{Group: n, Content: g.Packed.Ref(), Facts: g.Facts})
		case len(g.Items) == 0 || len(g.Items) < Size && n < len(l.Groups)-1 || slices.Contains(g.Items, nil):
			return nil, Summary[S]{}, false
		default:
			s.codec.Write(page, g.Items)
		}
	}
	return page, Summary[S]{l.number, uint32(l.Len()), summary}, true
}

// evictedOwner is the inverse of evictedPage. It does not change the Store. The page has the items that are not packed
// in order, without the numbers of their groups, which are those that no packed group has.
func (s *Store[V, K, T, F, S]) evictedOwner(owner plane.Key, page proto.Message) (*V, error) {
	summary, _ := s.ByOwner.Summary(owner)
	v := s.codec.New(owner)
	l := s.codec.List(v)
	l.number = summary.number
	s.codec.Restore(v, page)
	items := s.codec.Read(owner, page)
	// addUnpacked adds the next group of items that are not packed.
	addUnpacked := func() {
		group := items[:min(Size, len(items))]
		for i, x := range group {
			*s.codec.Index(x) = len(l.Groups)*Size + i
		}
		l.Groups = append(l.Groups, Group[T, F]{Items: slices.Clip(group)})
		for _, x := range group {
			s.codec.Added(v, x)
		}
		items = items[len(group):]
	}
	for p := range s.codec.ReadPacked(page) {
		for len(l.Groups) < p.Group && len(items) > 0 {
			addUnpacked()
		}
		if len(l.Groups) != p.Group {
			return nil, fmt.Errorf("%s: items before group %d are missing", owner, p.Group)
		}
		content, err := resident.BlobOf(s.File, p.Content)
		if err != nil {
			return nil, fmt.Errorf("%s: group %d: %w", owner, p.Group, err)
		}
		l.Groups = append(l.Groups, Group[T, F]{Packed: content, Facts: p.Facts})
		l.packed++
	}
	for len(items) > 0 {
		addUnpacked()
	}
	return v, nil
}

// evicted is called when an owner is evicted: it moves the items that are in no packed group from Items to Index, which
// has those of packed groups already.
func (s *Store[V, K, T, F, S]) evicted(owner plane.Key, v *V) {
	l := s.codec.List(v)
	for n := range l.Groups {
		s.index(owner, l.Groups[n].Items, l.number, n, s.Index.Add)
		for _, x := range l.Groups[n].Items {
			delete(s.Items, s.codec.Key(owner, x))
		}
	}
}

// loaded is called when an evicted owner is in memory again. It undoes evicted.
func (s *Store[V, K, T, F, S]) loaded(owner plane.Key, v *V) {
	l := s.codec.List(v)
	for n := range l.Groups {
		s.index(owner, l.Groups[n].Items, l.number, n, s.Index.Remove)
		for _, x := range l.Groups[n].Items {
			s.Items[s.codec.Key(owner, x)] = x
		}
	}
}

// Content is what a Store has, whoever is evicted; see Store.Content.
type Content[V any] struct {
	owners map[plane.Key]V
	places map[uint64][]place
	strays int // how many of Items are of no owner in memory
}

// place says which group of an owner has an item.
type place struct {
	owner plane.Key
	group int
}

// Content returns what tests compare (see journaltest.Same). It does not depend on which owners are evicted, where the
// bytes of groups are, and which numbers owners have. It differs if an item is missing in Items or Index, or is in the
// wrong one.
func (s *Store[V, K, T, F, S]) Content() Content[V] {
	c := Content[V]{map[plane.Key]V{}, map[uint64][]place{}, len(s.Items)}

	// Index has the groups of items that are packed or of evicted owners.
	for h, n := range s.Index.All() {
		c.places[h] = append(c.places[h], place{s.Numbers.Key(uint32(n >> 32)), int(uint32(n))})
	}

	// Items has the others; add their groups in the same form.
	for owner := range s.ByOwner.Keys() {
		v := *s.ByOwner.Peek(owner)
		l := s.codec.List(&v)
		l.number = 0
		c.owners[owner] = v
		if _, evicted := s.ByOwner.Summary(owner); evicted {
			continue
		}
		for n := range l.Groups {
			for _, x := range l.Groups[n].Items {
				if k := s.codec.Key(owner, x); s.Items[k] == x {
					c.places[s.Hash(k)] = append(c.places[s.Hash(k)], place{owner, n})
					c.strays--
				}
			}
		}
	}
	for _, places := range c.places {
		slices.SortFunc(places, func(x, y place) int {
			return cmp.Or(cmp.Compare(x.owner.Namespace, y.owner.Namespace), cmp.Compare(x.owner.ID, y.owner.ID),
				cmp.Compare(x.group, y.group))
		})
	}
	return c
}
