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

// Queue holds elements in the order in which they were added, of which the oldest can be forgotten. All but the newest are packed. Two queues
// that have the same elements, and have forgotten the same number, are the same. The zero Queue is empty. It is not
// safe for use during an Append or a Forget.
type Queue[T any, C Codec[T]] struct {
	dropped int      // how many elements were forgotten; a multiple of GroupSize
	groups  [][]byte // of GroupSize elements each
	tail    []T
}

// Restored returns a queue that has forgotten so many elements and has others.
func Restored[T any, C Codec[T]](dropped int, elements []T) (q Queue[T, C], err error) {
	if dropped < 0 || dropped%GroupSize != 0 {
		return q, fmt.Errorf("packed: a queue that has forgotten %d elements", dropped)
	}
	q.dropped = dropped
	for _, x := range elements {
		q.Append(x)
	}
	return q, nil
}

// Forget forgets the oldest elements in groups, as long as so many are left, and returns them.
func (q *Queue[T, C]) Forget(keep int) (forgotten []T) {
	for len(q.groups) > 0 && q.Len()-GroupSize >= keep {
		forgotten = append(forgotten, q.group(0)...)
		q.groups = slices.Clone(q.groups[1:])
		q.dropped += GroupSize
	}
	return forgotten
}

// Append adds an element.
func (q *Queue[T, C]) Append(x T) {
	q.tail = append(q.tail, x)
	if len(q.tail) < GroupSize+Kept {
		return
	}
	var codec C
	b, err := Encode(codec.Message(q.tail[:GroupSize]))
	if err != nil {
		panic(fmt.Sprintf("packed: %v", err)) // no message of a valid state
	}
	q.groups, q.tail = append(slices.Clip(q.groups), b), slices.Clone(q.tail[GroupSize:])
}

// group returns the elements of a packed group. Bytes that were changed in memory are a panic, as every call that needs them would
// fail.
func (q *Queue[T, C]) group(i int) []T {
	var codec C
	m := codec.New()
	err := Decode(q.groups[i], m)
	var elements []T
	if err == nil {
		elements, err = codec.Elements(m)
	}
	if err != nil {
		panic(fmt.Sprintf("packed: what was kept in memory cannot be read: %v", err))
	}
	return elements
}

// Len returns the number of elements.
func (q *Queue[T, C]) Len() int { return len(q.groups)*GroupSize + len(q.tail) }

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
		for _, x := range slices.Backward(q.tail) {
			if !yield(x) {
				return
			}
		}
		for i := range slices.Backward(q.groups) {
			for _, x := range slices.Backward(q.group(i)) {
				if !yield(x) {
					return
				}
			}
		}
	}
}

// All returns the elements, the oldest first. Those that are packed are copies.
func (q *Queue[T, C]) All() []T {
	all := make([]T, 0, q.Len())
	for i := range q.groups {
		all = append(all, q.group(i)...)
	}
	return append(all, q.tail...)
}
