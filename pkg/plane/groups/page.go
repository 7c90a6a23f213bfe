package groups

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane"
	"quartet/pkg/resident"
)

// PageOf returns the owner of the page with the item of an owner at an index.
func (s *Store[V, K, T, F, S]) PageOf(owner plane.Key, index int) snapshot.Owner {
	return s.block(owner, index/Size/s.codec.PageGroups)
}

// block returns the owner of page number block of an owner.
func (s *Store[V, K, T, F, S]) block(owner plane.Key, block int) snapshot.Owner {
	return snapshot.Owner{Namespace: owner.Namespace, ID: owner.ID + "/" + strconv.Itoa(block)}
}

// Block is the inverse of PageOf: it returns the number of a page among those of its owner. ok is false unless PageOf
// returns o for a page of this number, whose items have indexes that an int can hold.
func (s *Store[V, K, T, F, S]) Block(o snapshot.Owner) (owner plane.Key, block int, ok bool) {
	slash := max(strings.LastIndexByte(o.ID, '/'), 0)
	owner = plane.KeyOf(o.Namespace, o.ID[:slash])
	block, err := strconv.Atoi(strings.TrimPrefix(o.ID[slash:], "/"))
	return owner, block, err == nil && block >= 0 && block < math.MaxInt/Size/s.codec.PageGroups &&
		s.block(owner, block) == o
}

// Pages calls fn with the owners of all pages of an owner with so many items.
func (s *Store[V, K, T, F, S]) Pages(owner plane.Key, items int, fn func(snapshot.Owner)) {
	for first := 0; first < items; first += Size * s.codec.PageGroups {
		fn(s.PageOf(owner, first))
	}
}

// WriteBlock adds a block of items to its page. It reports whether there are any.
func (s *Store[V, K, T, F, S]) WriteBlock(page proto.Message, owner plane.Key, block int) bool {
	v := s.ByOwner.Peek(owner)
	if v == nil {
		return false
	}
	l, first := s.codec.List(v), block*s.codec.PageGroups
	for n := first; n < min(first+s.codec.PageGroups, len(l.Groups)); n++ {
		g := &l.Groups[n]
		if g.Packed.IsZero() {
			s.codec.Write(page, g.Items)
			continue
		}
		hashes := make([]uint64, 0, Size)
		for k := range s.codec.Keys(owner, s.unpacked(g)) {
			hashes = append(hashes, s.Hash(k))
		}
		s.codec.WritePacked(page, Packed[F]{n - first, g.Packed.Bytes(), hashes, g.Facts})
	}
	return first < len(l.Groups)
}

// ReadBlock adds the items of a page. It does not decode those of packed groups.
func (s *Store[V, K, T, F, S]) ReadBlock(page proto.Message, owner plane.Key, block int) error {
	items := s.codec.Read(owner, page) // those that are not packed
	n := len(items)
	for range s.codec.ReadPacked(page) {
		n += Size
	}
	if n > Size*s.codec.PageGroups {
		return fmt.Errorf("a page with %d items", n)
	}
	if err := s.codec.Check(owner, page); err != nil {
		return err
	}
	v := s.Owner(owner)

	// Add the packed groups, each at its number.
	l, first := s.codec.List(v), block*s.codec.PageGroups
	for p := range s.codec.ReadPacked(page) {
		if p.Group >= s.codec.PageGroups || len(p.Hashes) != Size || len(p.Content) == 0 {
			return fmt.Errorf("group %d has %d bytes with %d items", p.Group, len(p.Content), len(p.Hashes))
		}
		g := l.group(first + p.Group)
		if !g.Packed.IsZero() || len(g.Items) > 0 {
			return fmt.Errorf("group %d is there twice", p.Group)
		}
		for _, h := range p.Hashes {
			s.Index.Add(h, uint64(l.number)<<32|uint64(first+p.Group))
		}
		g.Packed, g.Facts = resident.NewBlob(s.File, p.Content), p.Facts
		l.packed++
	}

	// The other items fill the groups that are not packed, in order.
	index := first * Size
	for _, x := range items {
		for !l.group(index / Size).Packed.IsZero() {
			index += Size
		}
		if err := s.read(owner, v, x, index); err != nil {
			return err
		}
		index++
	}
	return nil
}

// read adds an item of a page at an index.
func (s *Store[V, K, T, F, S]) read(owner plane.Key, v *V, x *T, index int) error {
	k, l := s.codec.Key(owner, x), s.codec.List(v)
	if s.Items[k] != nil {
		return fmt.Errorf("item %v is there twice", k)
	}
	if g := l.group(index / Size); index%Size < len(g.Items) && g.Items[index%Size] != nil {
		return fmt.Errorf("item %v is in the place of item %v", k, s.codec.Key(owner, g.Items[index%Size]))
	}
	*s.codec.Index(x) = index
	l.Put(index, x)
	s.Items[k] = x
	s.codec.Added(v, x)
	return nil
}
