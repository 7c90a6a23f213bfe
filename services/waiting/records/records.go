// Package records holds records of one kind that belong to one agent: all that live, and the newest that have ended.
package records

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// KeptEnded is how many ended records a Set holds. Older ones are in the event stream only.
const KeptEnded = 256

// Set holds the records of one kind in order of creation: all that have not ended and the
// newest KeptEnded of those that have. The zero Set is empty.
type Set[R Record] struct {
	byID  map[string]R
	order []string // ids in order of creation
	ended []string // ids of those that have ended, in the order of their ends
}

// Record is a wait, a trigger or a timer.
type Record interface {
	proto.Message
	comparable
	GetCreatedAt() *timestamppb.Timestamp
}

// ID returns the id of a record.
func ID(r proto.Message) string {
	switch r := r.(type) {
	case *waitingv1.Wait:
		return r.GetWaitId()
	case *waitingv1.Trigger:
		return r.GetTriggerId()
	case *waitingv1.Timer:
		return r.GetTimerId()
	}
	return ""
}

// Put stores a record in place of the one with its id. lives says that it has not ended. If it
// has, the record that ended first is dropped when more than KeptEnded are held.
func (s *Set[R]) Put(r R, lives bool) {
	id := ID(r)
	if s.byID == nil {
		s.byID = map[string]R{}
	}
	if _, known := s.byID[id]; !known {
		s.order = append(s.order, id)
	}
	s.byID[id] = r
	if lives || slices.Contains(s.ended, id) {
		return
	}
	s.ended = append(s.ended, id)
	if len(s.ended) > KeptEnded {
		gone := s.ended[0]
		s.ended = slices.Delete(s.ended, 0, 1)
		delete(s.byID, gone)
		if i := slices.Index(s.order, gone); i >= 0 {
			s.order = slices.Delete(s.order, i, i+1)
		}
	}
}

// Get returns the record with an id, nil if there is none.
func (s *Set[R]) Get(id string) R { return s.byID[id] }

// Len returns the number of records.
func (s *Set[R]) Len() int { return len(s.order) }

// ByID returns all records in order of their ids.
func (s *Set[R]) ByID() []R {
	out := s.All()
	slices.SortFunc(out, func(a, b R) int { return cmp.Compare(ID(a), ID(b)) })
	return out
}

// All returns all records in order of creation.
func (s *Set[R]) All() []R {
	out := make([]R, 0, len(s.order))
	for _, id := range s.order {
		out = append(out, s.byID[id])
	}
	return out
}

// Ended returns the ids of the records that have ended, in the order of their ends.
func (s *Set[R]) Ended() []string { return slices.Clone(s.ended) }

// Restore fills an empty Set with what All and Ended returned.
func (s *Set[R]) Restore(all []R, ended []string) error {
	if len(all) > 0 {
		s.byID = make(map[string]R, len(all))
	}
	for _, r := range all {
		id := ID(r)
		if id == "" {
			return errors.New("a record without an id")
		}
		if _, known := s.byID[id]; known {
			return fmt.Errorf("%s is there twice", id)
		}
		s.byID[id] = r
		s.order = append(s.order, id)
	}
	for _, id := range ended {
		if _, known := s.byID[id]; !known {
			return fmt.Errorf("%s has ended and is not there", id)
		}
	}
	s.ended = ended
	return nil
}

// List returns up to limit records that keep accepts, in order of creation, beginning behind
// the record with the id after; "" is the beginning.
func (s *Set[R]) List(after string, limit int, keep func(R) bool) []R {
	var out []R
	start := 0
	if after != "" {
		// Ids grow with creation, so the position is found also if that record was dropped.
		start = len(s.order)
		if i := slices.IndexFunc(s.order, func(id string) bool { return id > after }); i >= 0 {
			start = i
		}
	}
	for _, id := range s.order[start:] {
		if len(out) == limit {
			break
		}
		if r := s.byID[id]; keep(r) {
			out = append(out, r)
		}
	}
	return out
}

// Memory remembers the newest memorySize ids. That is enough: Has is called within
// milliseconds, by callers that have just read the record itself.
type Memory struct {
	ids []string // oldest first
}

// memorySize is how many ids a memory holds.
const memorySize = 256

// Add remembers an id, in place of the oldest one if memorySize are remembered.
func (m *Memory) Add(id string) {
	if m.Has(id) {
		return
	}
	if len(m.ids) == memorySize {
		m.ids = slices.Delete(m.ids, 0, 1)
	}
	m.ids = append(m.ids, id)
}

// Has reports whether an id is remembered.
func (m *Memory) Has(id string) bool { return slices.Contains(m.ids, id) }

// IDs returns the remembered ids, oldest first, in a slice that the caller may change.
func (m *Memory) IDs() []string { return slices.Clone(m.ids) }
