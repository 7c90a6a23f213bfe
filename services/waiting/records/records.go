// Package records holds records of one kind that belong to one agent: all that live, and the newest that have ended.
package records

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/packed"
	snapshotv1 "quartet/pkg/pb/quartet/snapshot/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// KeptEnded is how many ended records a Set holds. Older ones are in the event stream only.
const KeptEnded = 256

// Set holds the records of one kind in order of creation: all that have not ended and the
// newest KeptEnded of those that have, which are packed. The zero Set is empty.
type Set[R Record] struct {
	all packed.Records[R, codec[R]]
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

// codec packs records of one kind as an AgentWaitsPage.
type codec[R Record] struct{}

// Message implements packed.Codec.
func (codec[R]) Message(all []R) proto.Message {
	p := &waitingv1.AgentWaitsPage{}
	switch all := any(all).(type) {
	case []*waitingv1.Wait:
		p.Waits = all
	case []*waitingv1.Trigger:
		p.Triggers = all
	case []*waitingv1.Timer:
		p.Timers = all
	}
	return p
}

// New implements packed.Codec.
func (codec[R]) New() proto.Message { return &waitingv1.AgentWaitsPage{} }

// Elements implements packed.Codec.
func (codec[R]) Elements(m proto.Message) (all []R, err error) {
	p, _ := m.(*waitingv1.AgentWaitsPage)
	switch all := any(&all).(type) {
	case *[]*waitingv1.Wait:
		*all = p.GetWaits()
	case *[]*waitingv1.Trigger:
		*all = p.GetTriggers()
	case *[]*waitingv1.Timer:
		*all = p.GetTimers()
	}
	return all, nil
}

// ID implements packed.Named.
func (codec[R]) ID(r R) string { return ID(r) }

// Put stores a record in place of the one with its id. lives says that it has not ended. If more
// than KeptEnded records have ended, the one that ended first is dropped.
func (s *Set[R]) Put(r R, lives bool) {
	if lives {
		s.all.PutOpen(r)
		return
	}
	s.all.PutEnded(r)
	if s.all.EndedLen() > KeptEnded {
		s.all.Drop()
	}
}

// Get returns the record with an id, nil if there is none. One that has ended may be a copy.
func (s *Set[R]) Get(id string) R {
	r, _ := s.all.Get(id)
	return r
}

// Len returns the number of records.
func (s *Set[R]) Len() int { return s.all.Len() }

// Living returns the records that have not ended, in order of creation.
func (s *Set[R]) Living() []R { return s.all.Open() }

// LivingByID is Living in order of the ids.
func (s *Set[R]) LivingByID() []R {
	out := s.all.Open()
	slices.SortFunc(out, func(a, b R) int { return cmp.Compare(ID(a), ID(b)) })
	return out
}

// Page returns the records that have not ended, in order of creation, and the rest as pages have it.
func (s *Set[R]) Page() ([]R, *snapshotv1.EndedRecords) { return s.all.Page() }

// Restore fills an empty Set with what Page returned. A page of format 2 has no rest: there all has all records in
// order of creation, and ended the ids of those that have ended, in the order of their ends.
func (s *Set[R]) Restore(all []R, rest *snapshotv1.EndedRecords, ended []string) error {
	if rest == nil {
		return s.all.RestoreAll(all, ended)
	}
	return s.all.Restore(all, rest)
}

// List returns up to limit records that keep accepts, in order of creation, beginning behind the
// record with the id after; "" is the beginning. If ended is false, keep must refuse records that have ended.
func (s *Set[R]) List(after string, limit int, ended bool, keep func(R) bool) []R {
	var all []R
	if after == "" && !ended {
		all = s.all.Open() // unpacks none
	} else {
		all = s.all.All()
	}
	if after != "" {
		// Ids grow with creation, so the position is found also if that record was dropped.
		start := slices.IndexFunc(all, func(r R) bool { return ID(r) > after })
		if start < 0 {
			return nil
		}
		all = all[start:]
	}
	var out []R
	for _, r := range all {
		if len(out) == limit {
			break
		}
		if keep(r) {
			out = append(out, r)
		}
	}
	return out
}

// Memory remembers the newest memorySize ids, which is enough for callers that have read the
// record itself within milliseconds, and older ones for as long as something names them.
type Memory struct {
	ids []string // oldest first
}

// memorySize is how many ids a memory holds that nothing names.
const memorySize = 256

// Add remembers an id. It forgets those that have memorySize newer ones, but for those in the set
// that named returns; named may be nil, and is called only if there are any.
func (m *Memory) Add(id string, named func() map[string]bool) {
	if m.Has(id) {
		return
	}
	m.ids = append(m.ids, id)
	older := len(m.ids) - memorySize
	if older <= 0 {
		return
	}
	var keep map[string]bool
	if named != nil {
		keep = named()
	}
	// Move the ids that stay to the front of the older ones, and remove the others of these.
	kept := len(slices.DeleteFunc(m.ids[:older], func(id string) bool { return !keep[id] }))
	m.ids = slices.Delete(m.ids, kept, older)
}

// Restore fills an empty Memory with what IDs returned.
func (m *Memory) Restore(ids []string) { m.ids = slices.Clone(ids) }

// Has reports whether an id is remembered.
func (m *Memory) Has(id string) bool { return slices.Contains(m.ids, id) }

// IDs returns the remembered ids, oldest first, in a slice that the caller may change.
func (m *Memory) IDs() []string { return slices.Clone(m.ids) }
