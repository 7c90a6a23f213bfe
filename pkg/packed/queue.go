package packed

import (
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"
)

const (
	// GroupSize is how many elements of a Queue are packed together.
	GroupSize = 8
	// Kept is how many of the newest elements of a Queue are not packed.
	Kept = 4
)

// Codec turns elements into a message and back. Its zero value is used.
type Codec[T any] interface {
	// Message returns a message with elements.
	Message(elements []T) proto.Message
	// New returns an empty message of that type.
	New() proto.Message
	// Elements returns the elements of a message.
	Elements(m proto.Message) ([]T, error)
}

// Queue holds elements in the order in which they were added, of which the oldest can be forgotten. All but the newest
// are packed. Two queues that have the same elements, and have forgotten the same number, are the same. The zero Queue
// is empty. It is not safe for use during an Append, a Forget, a Drop, a Set or a Remove.
//
// Groups begin at the multiples of GroupSize, counted from the first element that was ever added. What is left of a
// group of which elements were forgotten is not packed.
type Queue[T any, C Codec[T]] struct {
	dropped int // how many elements were forgotten
	head    []T // what is left of the group before groups
	groups  [][]byte
	tail    []T
}

// Restored returns the queue that holds elements and has forgotten as many elements before them as dropped says.
func Restored[T any, C Codec[T]](dropped int, elements []T) (q Queue[T, C], err error) {
	if dropped < 0 {
		return q, fmt.Errorf("packed: a queue that has forgotten %d elements", dropped)
	}
	q.dropped = dropped
	for _, x := range elements {
		q.Append(x)
	}
	return q, nil
}

// Forget forgets the oldest GroupSize elements at a time, as long as there are packed groups and at least keep
// elements remain. It returns what it forgot.
func (q *Queue[T, C]) Forget(keep int) (forgotten []T) {
	for len(q.groups) > 0 && q.Len()-GroupSize >= keep {
		for range GroupSize {
			forgotten = append(forgotten, q.Drop())
		}
	}
	return forgotten
}

// Drop forgets the oldest element and returns it. The queue must not be empty.
func (q *Queue[T, C]) Drop() T {
	if len(q.head) == 0 && len(q.groups) > 0 {
		q.head, q.groups = q.group(0), slices.Clone(q.groups[1:])
	}
	from := &q.head
	if len(q.head) == 0 {
		from = &q.tail
	}
	oldest := (*from)[0]
	*from = slices.Clone((*from)[1:])
	q.dropped++
	return oldest
}

// Append adds an element.
func (q *Queue[T, C]) Append(x T) {
	// how many elements of the tail's first group were forgotten
	begun := (q.dropped + len(q.head) + len(q.groups)*GroupSize) % GroupSize
	q.tail = append(q.tail, x)
	if begun+len(q.tail) < GroupSize+Kept {
		return
	}
	full := q.tail[:GroupSize-begun]
	q.tail = slices.Clone(q.tail[len(full):])
	if begun > 0 {
		q.head = slices.Clone(full)
		return
	}
	q.groups = append(slices.Clip(q.groups), encoded[T, C](full))
}

// encoded returns elements as a packed group. It panics if they cannot be encoded; those of a valid state can.
func encoded[T any, C Codec[T]](elements []T) []byte {
	var codec C
	b, err := Encode(codec.Message(elements))
	if err != nil {
		panic(fmt.Sprintf("packed: %v", err)) // no message of a valid state
	}
	return b
}

// Set replaces the element at an index; 0 is the oldest one that was not forgotten.
func (q *Queue[T, C]) Set(i int, x T) {
	part, g, at := q.find(i)
	if part != nil {
		*part = slices.Clone(*part)
		(*part)[at] = x
		return
	}
	elements := q.group(g)
	elements[at] = x
	q.groups = slices.Clone(q.groups)
	q.groups[g] = encoded[T, C](elements)
}

// At returns the element at an index. One that is packed is a copy.
func (q *Queue[T, C]) At(i int) T {
	part, g, at := q.find(i)
	if part == nil {
		elements := q.group(g)
		part = &elements
	}
	return (*part)[at]
}

// find returns the part of the queue with an index, nil for a packed group, and where in it the element is.
func (q *Queue[T, C]) find(i int) (part *[]T, group, at int) {
	if i < len(q.head) {
		return &q.head, 0, i
	}
	if i -= len(q.head); i < len(q.groups)*GroupSize {
		return nil, i / GroupSize, i % GroupSize
	}
	return &q.tail, 0, i - len(q.groups)*GroupSize
}

// Remove removes the element at an index, as if it had never been added. It takes as long as adding all others.
func (q *Queue[T, C]) Remove(i int) {
	elements := slices.Delete(q.All(), i, i+1)
	*q = Queue[T, C]{dropped: q.dropped}
	for _, x := range elements {
		q.Append(x)
	}
}

// group returns the elements of a packed group. It panics if its bytes were changed in memory; see Read.
func (q *Queue[T, C]) group(i int) []T {
	var codec C
	m := codec.New()
	Read(q.groups[i], m)
	elements, err := codec.Elements(m)
	if err == nil && len(elements) != GroupSize {
		err = fmt.Errorf("a group has %d elements", len(elements))
	}
	if err != nil {
		panic(unreadable(err))
	}
	return elements
}

// Len returns the number of elements.
func (q *Queue[T, C]) Len() int { return len(q.head) + len(q.groups)*GroupSize + len(q.tail) }

// Dropped returns how many elements were forgotten.
func (q *Queue[T, C]) Dropped() int { return q.dropped }

// Last returns the newest element, the zero value if there is none.
func (q *Queue[T, C]) Last() (last T) {
	if n := len(q.tail); n > 0 {
		last = q.tail[n-1]
	}
	return last
}

// Recent returns the newest elements, Kept at most, the oldest first. They are the queue's own.
func (q *Queue[T, C]) Recent() []T { return q.tail[max(0, len(q.tail)-Kept):] }

// Backward returns the elements, the newest first. Those that are packed are copies.
func (q *Queue[T, C]) Backward() iter.Seq[T] {
	return func(yield func(T) bool) {
		backward := func(elements []T) bool {
			for _, x := range slices.Backward(elements) {
				if !yield(x) {
					return false
				}
			}
			return true
		}
		if !backward(q.tail) {
			return
		}
		for i := range slices.Backward(q.groups) {
			if !backward(q.group(i)) {
				return
			}
		}
		backward(q.head)
	}
}

// All returns the elements, the oldest first. Those that are packed are copies.
func (q *Queue[T, C]) All() []T {
	all := append(make([]T, 0, q.Len()), q.head...)
	for i := range q.groups {
		all = append(all, q.group(i)...)
	}
	return append(all, q.tail...)
}
