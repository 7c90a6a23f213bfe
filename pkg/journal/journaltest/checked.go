package journaltest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/resident"
)

// evict evicts everything that a state can evict. It does nothing to a state without a file.
func evict(s any) {
	if e, can := s.(snapshot.Resident); can {
		if _, _, err := e.Evict(math.MaxInt, false); err != nil {
			panic(err)
		}
	}
}

// CheckedState is a state that a test observes. It panics where the contract of journal.Paged is broken, since Apply
// may not fail in other ways than that of the plane; the partition reports a panic as an error of the call, with its
// text.
type CheckedState[S journal.Paged] struct {
	Paged S
	fresh func() S
	every int // how many observed events are between two comparisons of all pages
	count int
	was   map[snapshot.Owner][]byte
	seen  *Seen

	applied int
	bytes   int // of all pages that were encoded
	// owners that were touched by an event that was not observed, and by none that was since
	unobserved map[snapshot.Owner]bool
}

// Once observedBytes of pages were encoded, only one of observedOf events is observed: a long history of large pages
// would take minutes.
const (
	observedBytes = 16 << 20
	observedOf    = 16
)

// Checked returns a fresh state that is checked. At each observed Apply, pages that were taken before must not
// change, nor may the pages of owners that were not touched; after each every of these, the state must be the same
// when it is read from its pages. In a history that is long and has large pages, only some of the events are
// observed. seen, if not nil, collects which fields of pages had a value. What the state can evict is evicted after
// two of three observed events, before each comparison, and while it is read from its pages.
func Checked[S journal.Paged](fresh func() S, every int, seen *Seen) *CheckedState[S] {
	c := &CheckedState[S]{
		Paged: fresh(), fresh: fresh, every: every, was: map[snapshot.Owner][]byte{}, seen: seen,
		unobserved: map[snapshot.Owner]bool{},
	}
	if of, can := any(c.Paged).(snapshot.Resident); can {
		f, err := resident.Create("")
		if err != nil {
			panic(err)
		}
		of.UseFile(f)
	}
	return c
}

// Apply implements journal.State.
func (c *CheckedState[S]) Apply(ev *journal.Event) error {
	type taken struct {
		page  proto.Message
		bytes []byte
	}
	if c.applied++; c.bytes > observedBytes && c.applied%observedOf > 0 {
		c.Paged.Owners(ev, func(o snapshot.Owner) { c.unobserved[o] = true })
		return c.Paged.Apply(ev)
	}
	touched := map[snapshot.Owner]taken{}
	c.Paged.Owners(ev, func(o snapshot.Owner) {
		before := taken{page: c.Paged.Page(o)}
		if before.page != nil {
			before.bytes = encode(before.page)
		}
		if !c.unobserved[o] && !bytes.Equal(before.bytes, c.was[o]) {
			panic(fmt.Sprintf("before %s, wal_seq %d: the page of %v changed, and no event since touched it", ev.Type,
				ev.WalSeq, o))
		}
		touched[o] = before
	})
	if err := c.Paged.Apply(ev); err != nil {
		return err
	}
	for o, before := range touched {
		delete(c.unobserved, o)
		if before.page != nil && !bytes.Equal(encode(before.page), before.bytes) {
			panic(fmt.Sprintf("%s, wal_seq %d, changed the page of %v that was taken before", ev.Type, ev.WalSeq, o))
		}
		if b := c.encoded(o); b == nil {
			delete(c.was, o)
		} else {
			c.was[o] = b
		}
	}
	if c.applied%3 > 0 {
		evict(c.Paged)
	}
	if c.count++; c.every > 0 && c.count%c.every == 0 {
		if err := c.Check(); err != nil {
			panic(fmt.Sprintf("after %s, wal_seq %d: %v", ev.Type, ev.WalSeq, err))
		}
	}
	return nil
}

// Check returns an error if a page changed since it was last observed and no event touched its owner, or if the state
// is another one when it is read from its pages.
func (c *CheckedState[S]) Check() error {
	evict(c.Paged)
	all := map[snapshot.Owner]bool{}
	c.Paged.AllOwners(func(o snapshot.Owner) {
		if all[o] {
			panic(fmt.Sprintf("AllOwners names %v twice", o))
		}
		all[o] = true
	})
	for o := range all {
		now := c.encoded(o)
		c.bytes += 2 * len(now) // RoundTrip encodes it twice
		if !c.unobserved[o] && !bytes.Equal(now, c.was[o]) {
			return fmt.Errorf("the page of %v changed, and no event since touched it", o)
		}
	}
	for o := range c.was {
		if !all[o] && !c.unobserved[o] {
			return fmt.Errorf("the page of %v is gone, and no event since touched it", o)
		}
	}
	return RoundTrip(c.Paged, c.fresh)
}

// EraseDeleted erases each owner that can be erased, one after the other, and calls Check after each. It returns
// these owners.
func (c *CheckedState[S]) EraseDeleted() ([]snapshot.Owner, error) {
	of, can := any(c.Paged).(journal.Erasable)
	if !can {
		return nil, fmt.Errorf("nothing of a %T can be erased", c.Paged)
	}
	all := of.DeletedBefore(time.Unix(1<<40, 0))
	slices.SortFunc(all, snapshot.Owner.Compare)
	for _, owner := range all {
		touched := map[snapshot.Owner]bool{}
		of.Erase(func(namespace, id string) bool { return owner == snapshot.Owner{Namespace: namespace, ID: id} },
			func(o snapshot.Owner) {
				touched[o] = true
				if b := c.encoded(o); !c.unobserved[o] && !bytes.Equal(b, c.was[o]) {
					panic(fmt.Sprintf("the page of %v changed before it was touched", o))
				}
			})
		for o := range touched {
			delete(c.unobserved, o)
			if b := c.encoded(o); b != nil {
				c.was[o] = b
			} else {
				delete(c.was, o)
			}
		}
		if err := c.Check(); err != nil {
			return nil, fmt.Errorf("after %v was erased: %w", owner, err)
		}
	}
	if left := of.DeletedBefore(time.Unix(1<<40, 0)); len(left) > 0 {
		return nil, fmt.Errorf("%v were not erased", left)
	}
	return all, nil
}

// encoded returns the page of an owner as it is written.
func (c *CheckedState[S]) encoded(o snapshot.Owner) []byte {
	page := c.Paged.Page(o)
	if page == nil {
		return nil
	}
	c.seen.add(page.ProtoReflect())
	b := encode(page)
	c.bytes += len(b)
	return b
}

// encode returns the bytes of a page and one more, so that an empty page is not like none.
func encode(page proto.Message) []byte {
	b, err := snapshot.EncodePage(page)
	if err != nil {
		panic(err)
	}
	return append(b, 0)
}

// RoundTrip writes all pages of a state, reads them into a fresh one in a random order, and returns an error unless the
// two are the same, field by field, and have the same pages.
func RoundTrip[S journal.Paged](s S, fresh func() S) error {
	var owners []snapshot.Owner
	s.AllOwners(func(o snapshot.Owner) { owners = append(owners, o) })
	rand.Shuffle(len(owners), func(i, j int) { owners[i], owners[j] = owners[j], owners[i] })
	read, written := fresh(), map[snapshot.Owner][]byte{}
	for _, o := range owners {
		page := s.Page(o)
		if page == nil {
			return fmt.Errorf("%v has no page, and AllOwners names it", o)
		}
		b, err := snapshot.EncodePage(page)
		if err != nil {
			return err
		}
		written[o] = b
		into := read.NewPage()
		if err := proto.Unmarshal(b, into); err != nil {
			return err
		}
		if err := read.AddPage(o, into); err != nil {
			return fmt.Errorf("page of %v: %w", o, err)
		}
		if rand.IntN(2) == 0 {
			evict(read)
		}
	}
	if err := Same(s, read); err != nil {
		return fmt.Errorf("a state that was read from its pages differs: %w", err)
	}
	n := 0
	read.AllOwners(func(snapshot.Owner) { n++ })
	if n != len(owners) {
		return fmt.Errorf("%d owners were written, %d read", len(owners), n)
	}
	for o, was := range written {
		page := read.Page(o)
		if page == nil {
			return fmt.Errorf("%v has no page after reading", o)
		}
		if b, err := snapshot.EncodePage(page); err != nil || !bytes.Equal(b, was) {
			return fmt.Errorf("the page of %v has other bytes after reading: %w", o, err)
		}
	}
	return nil
}

// Seen collects which fields of messages had a value. Nil collects nothing.
type Seen struct {
	fields map[protoreflect.FullName]bool
}

// add collects the fields of a page and of the messages in it.
func (s *Seen) add(m protoreflect.Message) {
	if s == nil {
		return
	}
	if s.fields == nil {
		s.fields = map[protoreflect.FullName]bool{}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		s.fields[f.FullName()] = true
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					s.add(v.Message())
					return true
				})
			}
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				s.add(v.List().Get(i).Message())
			}
		default:
			s.add(v.Message())
		}
		return true
	})
}

// Missing returns the names of the fields of a page, and of the messages that its file defines, that never had a value.
func (s *Seen) Missing(page proto.Message) (names []string) {
	file := page.ProtoReflect().Descriptor().ParentFile()
	var of func(protoreflect.MessageDescriptors)
	of = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			m := all.Get(i)
			for j := range m.Fields().Len() {
				if name := m.Fields().Get(j).FullName(); !m.IsMapEntry() && !s.fields[name] {
					names = append(names, string(name))
				}
			}
			of(m.Messages())
		}
	}
	of(file.Messages())
	slices.Sort(names)
	return names
}
