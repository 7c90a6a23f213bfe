// Package past turns the events of a work item into the history that people and agents read.
package past

import (
	"fmt"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
)

// chunk is how many events are read at once. A page may be full by its bytes before it has all its entries, and the
// others need not be read.
const chunk = 20

// Past is the history of one item.
type Past struct {
	item    string
	seqs    []uint64
	read    func(seqs []uint64) ([]*journal.Event, error)
	entryOf func(ev *journal.Event, itemID string) Entry
}

// Entry is what an event says about an item.
type Entry struct {
	Record *workv1.WorkItemRecord // after the event; nil if the event does not contain it
	Reason string
	Focus  Focus
}

// Focus is how an event moved the agent's focus. One that moved it wrote no field of the item.
type Focus int

// How an event moved the focus.
const (
	Written     Focus = iota // it wrote the item
	FocusKept                // the item was in focus already
	FocusGained              // the item is in focus
	FocusLost                // the item is no longer in focus
)

// Of returns the history of an item. seqs are the wal_seqs of its events, the oldest first; read reads events back;
// entryOf says what an event is about.
func Of(item string, seqs []uint64, read func(seqs []uint64) ([]*journal.Event, error),
	entryOf func(ev *journal.Event, itemID string) Entry,
) *Past {
	return &Past{item, seqs, read, entryOf}
}

// Page returns at most size mutations from a place on, and fewer if they have more than page.MaxBytes. index is how
// many mutations earlier pages had, in the order of the list, and next the same for the page after this one. Page
// leaves out mutations that were removed because they are old, and sets HistoryRemoved. Where it meets one, it skips
// all of them, since mutations are removed in their order, except that the creation may be left.
func (h *Past) Page(index, size int, newestFirst bool) (resp *workv1.ListWorkItemHistoryResponse, next int, err error) {
	resp = &workv1.ListWorkItemHistoryResponse{}
	bytes := 0
	for index < len(h.seqs) && len(resp.GetMutations()) < size {
		n := min(chunk, len(h.seqs)-index, size-len(resp.GetMutations()))
		low := index
		if newestFirst {
			low = len(h.seqs) - index - n
		}
		read, err := h.mutations(low, low+n)
		if err != nil {
			return nil, 0, err
		}
		if newestFirst {
			slices.Reverse(read)
		}
		for _, m := range read {
			if m == nil {
				resp.HistoryRemoved = true
				if index, err = h.behindRemoved(index, newestFirst); err != nil {
					return nil, 0, err
				}
				break
			}
			if bytes += proto.Size(m); bytes > page.MaxBytes && len(resp.GetMutations()) > 0 {
				return resp, index, nil
			}
			resp.Mutations = append(resp.Mutations, m)
			index++
		}
	}
	return resp, index, nil
}

// behindRemoved returns the index behind all removed mutations; the one at index is one of them. The removed
// ones are those of seqs[1:kept], for some kept, and maybe the creation.
func (h *Past) behindRemoved(index int, newestFirst bool) (int, error) {
	last := len(h.seqs) - 1
	if newestFirst {
		return max(index+1, last), nil // the creation, which is the last of this order, may be left
	}
	var failed error
	kept := index + 1 + sort.Search(last-index, func(i int) bool {
		events, err := h.read(h.seqs[index+1+i : index+2+i])
		if err != nil {
			failed = err
			return true
		}
		return !events[0].Removed()
	})
	return kept, failed
}

// mutations returns the mutations of seqs[low:high], the oldest first, nil for those that were removed. A change is the
// difference to the record before it, so earlier events are read until one contains the
// record, or was removed.
func (h *Past) mutations(low, high int) ([]*workv1.WorkItemMutation, error) {
	first := low
	var previous *workv1.WorkItemRecord
	unknown := false // whether a removed mutation had the record before
	for first > 0 && previous == nil {
		first--
		events, err := h.read(h.seqs[first : first+1])
		if err != nil {
			return nil, err
		}
		if events[0].Removed() {
			unknown = true
			break
		}
		previous = h.entryOf(events[0], h.item).Record
	}
	events, err := h.read(h.seqs[low:high])
	if err != nil {
		return nil, err
	}
	var out []*workv1.WorkItemMutation
	for i, ev := range events {
		if ev.Removed() {
			out, previous, unknown = append(out, nil), nil, true
			continue
		}
		entry := h.entryOf(ev, h.item)
		if unknown && entry.Record != nil {
			previous, unknown = entry.Record, false // compared with itself: what it changed is not known
		}
		m, after, err := mutation(ev, entry, previous)
		if err != nil {
			return nil, err
		}
		m.Number = int64(low + i + 1)
		out = append(out, m)
		previous = after
	}
	return out, nil
}

// mutation returns the mutation of an event, and the item's record after the event, which is previous if the event
// moved the focus. previous is the record before the event, nil for the item's first.
func mutation(ev *journal.Event, e Entry, previous *workv1.WorkItemRecord) (m *workv1.WorkItemMutation,
	after *workv1.WorkItemRecord, err error,
) {
	m = &workv1.WorkItemMutation{
		EventId: ev.ID, EventType: ev.Type, At: timestamppb.New(ev.CreatedAt),
		Principal: ev.Principal, Role: ev.Role, ActorKeyId: ev.ActorKeyID, ActorAgentId: ev.ActorAgentID,
		RunId: ev.ActorRunID, TurnId: id.TurnOf(ev.ActorRunID),
	}
	if ev.RequestHash != "" {
		m.RequestId = ev.RequestID // without a hash, the journal made the request id, and no caller knows it
	}
	after, m.Reason = previous, e.Reason
	switch e.Focus {
	case FocusKept:
	case FocusGained, FocusLost:
		m.Changes = focusChange(e.Focus == FocusGained)
	case Written:
		after = e.Record
		if m.Changes, err = changes(previous, after); err != nil {
			return nil, nil, err
		}
	}
	m.Revision = after.GetRevision()
	return m, after, nil
}

// focusChange returns the change of is_current to focused.
func focusChange(focused bool) []*workv1.FieldChange {
	return []*workv1.FieldChange{{
		Field: "is_current", From: structpb.NewBoolValue(!focused),
		To: structpb.NewBoolValue(focused),
	}}
}

// Uncompared are the fields that name the item, that change with every mutation, or, as resumed,
// that repeat what the mutation before says.
var Uncompared = []string{"work_item_id", "agent_id", "revision", "updated_at", "resumed"}

// changes returns the fields in which two records differ, except the Uncompared ones, in the
// order of the record's fields. previous may be nil.
func changes(previous, after *workv1.WorkItemRecord) ([]*workv1.FieldChange, error) {
	oldFields, err := Fields(previous)
	if err != nil {
		return nil, err
	}
	to, err := Fields(after)
	if err != nil {
		return nil, err
	}
	var out []*workv1.FieldChange
	fields := after.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := string(fields.Get(i).Name())
		a, b := oldFields[name], to[name]
		if slices.Contains(Uncompared, name) || proto.Equal(a, b) {
			continue
		}
		out = append(out, &workv1.FieldChange{Field: name, From: a, To: b})
	}
	return out, nil
}

// Fields returns the set fields of a record as JSON values, by name; nil for a nil record.
func Fields(it *workv1.WorkItemRecord) (map[string]*structpb.Value, error) {
	if it == nil {
		return nil, nil
	}
	raw, err := pbjson.Append(nil, it)
	if err != nil {
		return nil, fault.Internal(fmt.Errorf("work: history: %w", err))
	}
	s := &structpb.Struct{}
	if err := pbjson.Unmarshal(raw, s); err != nil {
		return nil, fault.Internal(fmt.Errorf("work: history: %w", err))
	}
	return s.GetFields(), nil
}
