package waiting

import (
	"slices"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// records holds the records of one kind in order of creation: all that have not ended and
// the newest keptEnded of those that have.
type records[R record] struct {
	byID  map[string]R
	order []string // ids in order of creation
	ended []string // ids of those that have ended, in the order of their ends
}

// record is a wait, a trigger or a timer.
type record interface {
	proto.Message
	comparable
	GetCreatedAt() *timestamppb.Timestamp
}

// idOf returns the id of a record.
func idOf(r proto.Message) string {
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

// put stores a record in place of the one with its id. lives says that it has not ended. If it
// has, the record that ended first is dropped when more than keptEnded are held.
func (rs *records[R]) put(r R, lives bool) {
	id := idOf(r)
	if rs.byID == nil {
		rs.byID = map[string]R{}
	}
	if _, known := rs.byID[id]; !known {
		rs.order = append(rs.order, id)
	}
	rs.byID[id] = r
	if lives || slices.Contains(rs.ended, id) {
		return
	}
	rs.ended = append(rs.ended, id)
	if len(rs.ended) > keptEnded {
		gone := rs.ended[0]
		rs.ended = slices.Delete(rs.ended, 0, 1)
		delete(rs.byID, gone)
		if i := slices.Index(rs.order, gone); i >= 0 {
			rs.order = slices.Delete(rs.order, i, i+1)
		}
	}
}

// list returns up to limit records that keep accepts, in order of creation, beginning behind
// the record with the id after; "" is the beginning.
func (rs *records[R]) list(after string, limit int, keep func(R) bool) []R {
	var out []R
	start := 0
	if after != "" {
		// Ids grow with creation, so the position is found also if that record was dropped.
		start = len(rs.order)
		if i := slices.IndexFunc(rs.order, func(id string) bool { return id > after }); i >= 0 {
			start = i
		}
	}
	for _, id := range rs.order[start:] {
		if len(out) == limit {
			break
		}
		if r := rs.byID[id]; keep(r) {
			out = append(out, r)
		}
	}
	return out
}

// memory remembers the newest memorySize ids. That is enough: has is called within
// milliseconds, by callers that have just read the record itself.
type memory struct {
	ids   map[string]struct{}
	order []string
}

// memorySize is how many ids a memory holds.
const memorySize = 4096

// add remembers an id, in place of the oldest one if memorySize are remembered.
func (m *memory) add(id string) {
	if m.ids == nil {
		m.ids = map[string]struct{}{}
	}
	if _, known := m.ids[id]; known {
		return
	}
	if len(m.order) == memorySize {
		delete(m.ids, m.order[0])
		m.order = slices.Delete(m.order, 0, 1)
	}
	m.ids[id] = struct{}{}
	m.order = append(m.order, id)
}

// has reports whether an id is remembered.
func (m *memory) has(id string) bool {
	_, ok := m.ids[id]
	return ok
}
