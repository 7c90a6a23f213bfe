// Package groups holds the items of many owners, such as the tasks of agents, in the order in which they were added
// and in groups of sixteen. An item is in one of four forms: in memory; in a group that is packed, with a tenth of the
// memory; in the file that has evicted owners; in a page of a snapshot. The package knows all four, and finds an item
// by its key in each. The plane says what its items are; see Codec.
package groups

import (
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/packed"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
)

// Size is how many items of an owner are a group.
const Size = 16

// Group is Size items that were added one after the other; the last group of an owner may have fewer. The plane packs a
// full group of which it expects no change; see Store.Pack.
type Group[T, F any] struct {
	Items  []*T          // nil if the group is packed
	Packed resident.Blob // a page with the items; zero if the group is not packed
	Facts  F             // what is in memory of the items of a packed group
}

// Full reports whether a group that is not packed has all its items, and is true of each.
func (g *Group[T, F]) Full(is func(x *T) bool) bool {
	return len(g.Items) == Size && !slices.ContainsFunc(g.Items, func(x *T) bool { return x == nil || !is(x) })
}

// List has the items of one owner. The zero List is empty.
type List[T, F any] struct {
	Groups []Group[T, F]
	number uint32 // in Store.Numbers
	packed int    // groups
}

// Len returns the number of items. Only the last group may be smaller than Size.
func (l *List[T, F]) Len() int {
	n := len(l.Groups) * Size
	if n > 0 && l.Groups[len(l.Groups)-1].Packed.IsZero() {
		n -= Size - len(l.Groups[len(l.Groups)-1].Items)
	}
	return n
}

// Packed returns the number of items that are in packed groups.
func (l *List[T, F]) Packed() int { return l.packed * Size }

// group returns group n. It adds the groups up to n that are missing, empty, since their pages may come later.
func (l *List[T, F]) group(n int) *Group[T, F] {
	for len(l.Groups) <= n {
		l.Groups = append(l.Groups, Group[T, F]{})
	}
	return &l.Groups[n]
}

// Put puts an item that is in memory at its index, in place of the one there.
func (l *List[T, F]) Put(index int, x *T) {
	g := l.group(index / Size)
	for len(g.Items) <= index%Size {
		g.Items = append(g.Items, nil)
	}
	g.Items[index%Size] = x
}

// Packed is the form in which a page has a packed group.
type Packed[F any] struct {
	Group   int // among those of the page
	Content []byte
	Hashes  []uint64 // of the keys of its items
	Facts   F
}

// Codec says what a plane's items are. V is what the plane has in memory of an owner, T an item, K its key, F what is
// in memory of the items of a packed group, S of an evicted owner.
type Codec[V any, K comparable, T, F, S any] struct {
	// PageGroups is how many groups a page has. EvictedGroups is how many an owner may have to be evicted: whoever
	// reads one item of an evicted owner reads all that are not packed.
	PageGroups, EvictedGroups int
	// New returns an owner without items, and List its list.
	New  func(owner plane.Key) *V
	List func(v *V) *List[T, F]
	// Key returns the key of an item, and Index where its index is, which the Store sets.
	Key   func(owner plane.Key, x *T) K
	Index func(x *T) *int

	// NewPage returns an empty page. Write adds items to a page and WritePacked a packed group. Read and ReadPacked
	// return those of a page, and Keys the keys of its items, without reading these.
	NewPage     func() proto.Message
	Write       func(page proto.Message, items []*T)
	Read        func(owner plane.Key, page proto.Message) []*T
	Keys        func(owner plane.Key, page proto.Message) iter.Seq[K]
	WritePacked func(page proto.Message, p Packed[F])
	ReadPacked  func(page proto.Message) iter.Seq[Packed[F]]
	// Check returns an error for a page whose items are not valid, or not of this owner.
	Check func(owner plane.Key, page proto.Message) error
	// Added adds an item, which is in the list and was read from a page or the file, to what V derives from items. It
	// must change nothing of the state for an owner that can be evicted.
	Added func(v *V, x *T)

	// Evict returns what is in memory of an owner that is evicted, and adds to its page what it has beside its items.
	// It returns false if the owner has to stay in memory. Restore is the inverse.
	Evict   func(v *V, page proto.Message) (S, bool)
	Restore func(v *V, page proto.Message)
}

// Summary is what is in memory of an evicted owner, beside the places of its items in Store.Index.
type Summary[S any] struct {
	number uint32 // in Store.Numbers
	Items  uint32
	Plane  S
}

// Store has the items of a partition. The methods that only read may be called concurrently with each other, all
// others exclusively. They panic with resident.ErrUnreadable if the file cannot be read.
type Store[V any, K comparable, T, F, S any] struct {
	Items   map[K]*T        // those of owners in memory that are in no packed group
	Index   *resident.Index // of all others, by Hash: the owner in the upper 32 bits, the group in the lower ones
	ByOwner *resident.Map[plane.Key, V, Summary[S]]
	Numbers resident.Numbers[plane.Key] // of owners
	File    *resident.File              // that has the bytes of packed groups; nil: they are in memory
	Hash    func(k K) uint64            // tests have one that makes the same hash of two keys
	codec   Codec[V, K, T, F, S]
}

// New returns an empty Store.
func New[V any, K comparable, T, F, S any](hash func(k K) uint64, codec Codec[V, K, T, F, S]) *Store[V, K, T, F, S] {
	s := &Store[V, K, T, F, S]{Items: map[K]*T{}, Index: resident.NewIndex(nil), Hash: hash, codec: codec}
	s.ByOwner = resident.New(resident.Codec[plane.Key, V, Summary[S]]{
		Page: s.evictedPage, New: codec.NewPage, Value: s.evictedOwner, Evicted: s.evicted, Loaded: s.loaded,
	})
	return s
}

// Owner returns what is held of an owner, to be changed, and creates it if there is nothing yet.
func (s *Store[V, K, T, F, S]) Owner(k plane.Key) *V {
	v := s.ByOwner.Edit(k)
	if v == nil {
		v = s.codec.New(k)
		s.codec.List(v).number = s.Numbers.Take(k)
		s.ByOwner.Put(k, v)
	}
	return v
}

// Len returns the number of items of an owner. It does not read an evicted one.
func (s *Store[V, K, T, F, S]) Len(k plane.Key) int {
	if summary, evicted := s.ByOwner.Summary(k); evicted {
		return int(summary.Items)
	}
	if v := s.ByOwner.Peek(k); v != nil {
		return s.codec.List(v).Len()
	}
	return 0
}

// Add adds an item behind all others of its owner.
func (s *Store[V, K, T, F, S]) Add(owner plane.Key, v *V, x *T) {
	l := s.codec.List(v)
	*s.codec.Index(x) = l.Len()
	l.Put(l.Len(), x)
	s.Items[s.codec.Key(owner, x)] = x
}

// Find returns an item, nil if there is none. If it is in a packed group or of an evicted owner, it is a copy.
func (s *Store[V, K, T, F, S]) Find(k K) *T {
	if x := s.Items[k]; x != nil {
		return x
	}
	x, _, _ := s.find(k)
	return x
}

// Edit returns an item for a change, nil if there is none. Its owner is in memory afterwards, its group not packed.
// unpacked is called if the group was packed.
func (s *Store[V, K, T, F, S]) Edit(k K, unpacked func(v *V, n int)) *T {
	if x := s.Items[k]; x != nil {
		return x
	}
	x, owner, n := s.find(k)
	if x == nil {
		return nil
	}
	v := s.ByOwner.Edit(owner)
	if !s.codec.List(v).Groups[n].Packed.IsZero() {
		s.unpack(owner, v, n)
		unpacked(v, n)
	}
	return s.Items[k]
}

// find returns a copy of an item that Index has, and the number of its group; nil if there is none. It compares keys,
// since two may have one hash.
func (s *Store[V, K, T, F, S]) find(k K) (x *T, owner plane.Key, n int) {
	for owner, n := range s.Places(k) {
		for _, x := range s.Group(owner, s.ByOwner.Get(owner), n) {
			if s.codec.Key(owner, x) == k {
				return x, owner, n
			}
		}
	}
	return nil, plane.Key{}, 0
}

// Places returns the owners and the numbers of the groups that may have an item that is not in Items.
func (s *Store[V, K, T, F, S]) Places(k K) iter.Seq2[plane.Key, int] {
	return func(yield func(plane.Key, int) bool) {
		for n := range s.Index.Find(s.Hash(k)) {
			if !yield(s.Numbers.Key(uint32(n>>32)), int(uint32(n))) {
				return
			}
		}
	}
}

// Group returns the items of group n. Those of a packed group are copies.
func (s *Store[V, K, T, F, S]) Group(owner plane.Key, v *V, n int) []*T {
	g := &s.codec.List(v).Groups[n]
	if g.Packed.IsZero() {
		return g.Items
	}
	items := s.codec.Read(owner, s.unpacked(g))
	for i, x := range items {
		*s.codec.Index(x) = n*Size + i
	}
	return items
}

// unpacked returns the page with the items of a packed group. It panics if their bytes cannot be read.
func (s *Store[V, K, T, F, S]) unpacked(g *Group[T, F]) proto.Message {
	page := s.codec.NewPage()
	packed.Read(g.Packed.Bytes(), page)
	return page
}

// Pack packs group n, which must be full; see Group.Full. It returns false, and changes nothing, if the items cannot be
// encoded.
func (s *Store[V, K, T, F, S]) Pack(owner plane.Key, v *V, n int, facts F) bool {
	l := s.codec.List(v)
	g, page := &l.Groups[n], s.codec.NewPage()
	s.codec.Write(page, g.Items)
	b, err := packed.Encode(page)
	if err != nil {
		return false
	}
	s.index(owner, g.Items, l.number, n, s.Index.Add)
	for _, x := range g.Items {
		delete(s.Items, s.codec.Key(owner, x))
	}
	g.Items, g.Packed, g.Facts = nil, resident.NewBlob(s.File, b), facts
	l.packed++
	return true
}

// unpack undoes Pack, so that the items of a group can be changed.
func (s *Store[V, K, T, F, S]) unpack(owner plane.Key, v *V, n int) {
	l, items := s.codec.List(v), s.Group(owner, v, n)
	l.Groups[n].Packed.Free()
	l.Groups[n] = Group[T, F]{Items: items}
	l.packed--
	s.index(owner, items, l.number, n, s.Index.Remove)
	for _, x := range items {
		s.Items[s.codec.Key(owner, x)] = x
	}
}

// index calls change, which is a method of Index, for items of a group.
func (s *Store[V, K, T, F, S]) index(owner plane.Key, items []*T, number uint32, n int,
	change func(hash, number uint64),
) {
	for _, x := range items {
		change(s.Hash(s.codec.Key(owner, x)), uint64(number)<<32|uint64(n))
	}
}

// Erase removes an owner with its items.
func (s *Store[V, K, T, F, S]) Erase(k plane.Key) {
	v := s.ByOwner.Edit(k)
	if v == nil {
		return
	}
	l := s.codec.List(v)
	for n := range l.Groups {
		if g := &l.Groups[n]; !g.Packed.IsZero() {
			s.index(k, s.Group(k, v, n), l.number, n, s.Index.Remove)
			g.Packed.Free()
		}
		for _, x := range l.Groups[n].Items {
			delete(s.Items, s.codec.Key(k, x))
		}
	}
	s.ByOwner.Delete(k)
	s.Numbers.Give(l.number)
}
