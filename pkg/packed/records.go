package packed

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
)

// Named is a Codec of elements that have ids.
type Named[T any] interface {
	Codec[T]
	// ID returns the id of an element.
	ID(x T) string
}

// Records holds records of one kind: those that are open, and the newest of those that have ended, most of which are
// packed. Each has a place in the order in which all were made. Two Records to which the same was done are the same,
// whatever of it was read from a page. The zero value is empty. It is not safe for use during a Put or a Drop.
type Records[T any, C Named[T]] struct {
	open  map[string]placed[T]
	next  uint64           // the place of the next record
	ended *endedPart[T, C] // nil until a record has ended
}

// placed is an open record with its place.
type placed[T any] struct {
	place  uint64
	record T
}

// endedPart is the records that have ended, in the order of their ends.
type endedPart[T any, C Named[T]] struct {
	queue Queue[T, C]
	marks []mark // one for each element of queue
}

// mark is what is known of a record that has ended without reading it.
type mark struct{ hash, place uint64 }

// Get returns the record with an id, and whether there is one. One that is packed is a copy.
func (r *Records[T, C]) Get(id string) (x T, ok bool) {
	if p, ok := r.open[id]; ok {
		return p.record, true
	}
	if i := r.find(id); i >= 0 {
		return r.ended.queue.At(i), true
	}
	return x, false
}

// IsOpen reports whether there is an open record with an id.
func (r *Records[T, C]) IsOpen(id string) bool {
	_, ok := r.open[id]
	return ok
}

// find returns the index of the record with an id among those that have ended, -1 if none of them has the id.
func (r *Records[T, C]) find(id string) int {
	if r.ended == nil {
		return -1
	}
	var codec C
	h := Hash("", id)
	for i, m := range r.ended.marks {
		if m.hash == h && codec.ID(r.ended.queue.At(i)) == id {
			return i
		}
	}
	return -1
}

// PutOpen stores an open record in place of the one with its id. One that has ended is open again, in its place.
func (r *Records[T, C]) PutOpen(x T) {
	var codec C
	id := codec.ID(x)
	place, _ := r.take(id, true)
	if r.open == nil {
		r.open = map[string]placed[T]{}
	}
	r.open[id] = placed[T]{place, x}
}

// PutEnded stores a record that has ended in place of the one with its id. A record that had ended before keeps its
// position in the order of ends.
func (r *Records[T, C]) PutEnded(x T) {
	var codec C
	id := codec.ID(x)
	place, at := r.take(id, false)
	if at >= 0 {
		r.ended.queue.Set(at, x)
		return
	}
	if r.ended == nil {
		r.ended = &endedPart[T, C]{}
	}
	r.ended.queue.Append(x)
	r.ended.marks = append(r.ended.marks, mark{Hash("", id), place})
}

// take returns the place of the record with an id, a new place if there is no such record. It removes an open record
// from open, and returns at -1. For a record that has ended, at is its index among these; with reopen it is removed
// from them.
func (r *Records[T, C]) take(id string, reopen bool) (place uint64, at int) {
	if p, ok := r.open[id]; ok {
		delete(r.open, id)
		return p.place, -1
	}
	at = r.find(id)
	if at < 0 {
		r.next++
		return r.next - 1, -1
	}
	place = r.ended.marks[at].place
	if reopen {
		r.ended.queue.Remove(at)
		r.ended.marks = slices.Delete(r.ended.marks, at, at+1)
		if r.ended.queue.Len()+r.ended.queue.Dropped() == 0 {
			r.ended = nil
		}
	}
	return place, at
}

// Drop forgets the record that ended first and returns it. There must be one.
func (r *Records[T, C]) Drop() T {
	r.ended.marks = slices.Delete(r.ended.marks, 0, 1)
	return r.ended.queue.Drop()
}

// Len returns the number of records.
func (r *Records[T, C]) Len() int { return len(r.open) + r.EndedLen() }

// EndedLen returns the number of records that have ended.
func (r *Records[T, C]) EndedLen() int {
	if r.ended == nil {
		return 0
	}
	return r.ended.queue.Len()
}

// Ended returns the records that have ended, in the order of their ends. Those that are packed are copies.
func (r *Records[T, C]) Ended() []T {
	if r.ended == nil {
		return nil
	}
	return r.ended.queue.All()
}

// EachOpen returns the open records in no order.
func (r *Records[T, C]) EachOpen() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, p := range r.open {
			if !yield(p.record) {
				return
			}
		}
	}
}

// Open returns the open records in the order in which they were made.
func (r *Records[T, C]) Open() []T { return inPlace(r.placedOpen(make([]placed[T], 0, len(r.open)))) }

// All returns all records in the order in which they were made. Those that are packed are copies.
func (r *Records[T, C]) All() []T {
	all := r.placedOpen(make([]placed[T], 0, r.Len()))
	for i, x := range r.Ended() {
		all = append(all, placed[T]{r.ended.marks[i].place, x})
	}
	return inPlace(all)
}

func (r *Records[T, C]) placedOpen(into []placed[T]) []placed[T] {
	for _, p := range r.open {
		into = append(into, p)
	}
	return into
}

// inPlace returns records in the order of their places.
func inPlace[T any](all []placed[T]) []T {
	slices.SortFunc(all, func(a, b placed[T]) int { return cmp.Compare(a.place, b.place) })
	records := make([]T, len(all))
	for i, p := range all {
		records[i] = p.record
	}
	return records
}

// Page returns the open records in the order in which they were made, and rest, the message with everything else that
// a page has of r. rest shares packed groups with r, which do not change.
func (r *Records[T, C]) Page() (open []T, rest *snapshotv1.EndedRecords) {
	open, rest = r.Open(), &snapshotv1.EndedRecords{NextPlace: r.next}
	for _, p := range r.open {
		rest.OpenPlaces = append(rest.OpenPlaces, p.place)
	}
	slices.Sort(rest.GetOpenPlaces())
	if r.ended == nil {
		return open, rest
	}
	q := &r.ended.queue
	rest.Forgotten, rest.Groups = int64(q.dropped), q.groups
	rest.Oldest, rest.Newest = plain[T, C](q.head), plain[T, C](q.tail)
	for _, m := range r.ended.marks {
		rest.IdHashes, rest.Places = append(rest.GetIdHashes(), m.hash), append(rest.GetPlaces(), m.place)
	}
	return open, rest
}

// plain returns records as a message that is not packed.
func plain[T any, C Codec[T]](elements []T) []byte {
	var codec C
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(codec.Message(elements))
	if err != nil {
		panic(fmt.Sprintf("packed: %v", err)) // no message of a valid state
	}
	return b
}

// Restore replaces the records by those that Page returned.
func (r *Records[T, C]) Restore(open []T, rest *snapshotv1.EndedRecords) error {
	if len(rest.GetOpenPlaces()) != len(open) || len(rest.GetPlaces()) != len(rest.GetIdHashes()) {
		return fmt.Errorf("%d open records with %d places, and %d places of %d that have ended", len(open),
			len(rest.GetOpenPlaces()), len(rest.GetPlaces()), len(rest.GetIdHashes()))
	}
	*r = Records[T, C]{next: rest.GetNextPlace()}
	places := map[uint64]bool{}
	for _, place := range slices.Concat(rest.GetOpenPlaces(), rest.GetPlaces()) {
		if places[place] || place >= r.next {
			return fmt.Errorf("place %d is there twice, or behind %d", place, r.next)
		}
		places[place] = true
	}
	if n := len(rest.GetPlaces()); n > 0 || rest.GetForgotten() > 0 {
		r.ended = &endedPart[T, C]{marks: make([]mark, n)}
		for i, h := range rest.GetIdHashes() {
			r.ended.marks[i] = mark{h, rest.GetPlaces()[i]}
		}
		if err := r.ended.restore(rest); err != nil {
			return err
		}
	}
	var codec C
	for i, x := range open {
		id := codec.ID(x)
		if _, taken := r.Get(id); taken || id == "" {
			return fmt.Errorf("%q is there twice, or no id", id)
		}
		if r.open == nil {
			r.open = make(map[string]placed[T], len(open))
		}
		r.open[id] = placed[T]{rest.GetOpenPlaces()[i], x}
	}
	return nil
}

// restore fills the queue from a page.
func (e *endedPart[T, C]) restore(rest *snapshotv1.EndedRecords) error {
	q := &e.queue
	head, err := unplain[T, C](rest.GetOldest())
	if err != nil {
		return err
	}
	if q.tail, err = unplain[T, C](rest.GetNewest()); err != nil {
		return err
	}
	q.dropped, q.groups = int(rest.GetForgotten()), rest.GetGroups()
	if len(head) > 0 {
		q.head = head
	}
	begun := (q.dropped + len(q.head)) % GroupSize
	if q.dropped < 0 || begun > 0 && len(q.head)+len(q.groups) > 0 || begun+len(q.tail) >= GroupSize+Kept ||
		len(q.head)+len(q.groups) > 0 && len(q.tail) < Kept ||
		q.Len() != len(e.marks) || len(q.head) >= GroupSize {
		return fmt.Errorf("%d groups between %d and %d records, of which %d are known, and %d were forgotten",
			len(q.groups), len(q.head), len(q.tail), len(e.marks), q.dropped)
	}
	var codec C
	for i, x := range slices.Concat(q.head, q.tail) {
		at := i
		if i >= len(q.head) {
			at += len(q.groups) * GroupSize
		}
		if Hash("", codec.ID(x)) != e.marks[at].hash {
			return fmt.Errorf("%q is in the place of another record", codec.ID(x))
		}
	}
	return nil
}

// unplain returns the records that plain was given.
func unplain[T any, C Codec[T]](b []byte) ([]T, error) {
	var codec C
	m := codec.New()
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, errors.New("the records that are not packed cannot be read")
	}
	return codec.Elements(m)
}

// RestoreAll replaces the records by all, which must be in the order in which they were made. ended has the ids of
// those that have ended, in the order of their ends.
func (r *Records[T, C]) RestoreAll(all []T, ended []string) error {
	*r = Records[T, C]{}
	var codec C
	for _, x := range all {
		id := codec.ID(x)
		if id == "" || r.IsOpen(id) {
			return fmt.Errorf("%q is there twice, or no id", id)
		}
		r.PutOpen(x)
	}
	for _, id := range ended {
		if !r.IsOpen(id) {
			return fmt.Errorf("%s has ended and is not there", id)
		}
		x, _ := r.Get(id)
		r.PutEnded(x)
	}
	return nil
}
