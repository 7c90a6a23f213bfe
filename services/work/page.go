package work

import (
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/pages"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

var _ journal.Paged = (*State)(nil)

// Owners implements journal.Paged. Each agent has a page, and an event changes items of its own
// agent only.
func (s *State) Owners(ev *journal.Event, touch func(pages.Owner)) {
	switch ev.Payload.(type) {
	case *workv1.WaitAttachRefused, *workv1.HomeFileWritten:
		// They change nothing; see fold.
	default:
		touch(pages.Owner{Namespace: ev.Namespace, ID: ev.AgentID})
	}
}

// AllOwners implements journal.Paged.
func (s *State) AllOwners(fn func(pages.Owner)) {
	for k := range s.agents {
		fn(pages.Owner(k))
	}
}

// NewPage implements journal.Paged.
func (s *State) NewPage() proto.Message { return &workv1.AgentWorkPage{} }

// Page implements journal.Paged.
func (s *State) Page(o pages.Owner) proto.Message {
	a := s.agents[plane.Key(o)]
	if a == nil {
		return nil
	}
	p := &workv1.AgentWorkPage{
		Items: a.entries(), CurrentWorkItemId: a.current, Deleted: a.deleted, EndedWaitIds: slices.Clone(a.ended),
	}
	if !a.changed.IsZero() {
		p.ChangedAt = timestamppb.New(a.changed)
	}
	return p
}

// entries returns the items of an agent as its page has them. Steps are shared with the
// history, which only appends to them.
func (a *agentWork) entries() []*workv1.WorkItemEntry {
	entries := make([]workv1.WorkItemEntry, a.open.size()+a.done.size()) // at once, since an agent may have many
	out := make([]*workv1.WorkItemEntry, 0, len(entries))
	for _, t := range []tree{a.open, a.done} {
		if t.BTreeG == nil {
			continue
		}
		t.Ascend(func(p place) bool {
			e := &entries[len(out)]
			e.WorkItem, e.HistoryLast, e.HistorySteps = p.it.rec, p.it.history.last, p.it.history.steps
			out = append(out, e)
			return true
		})
	}
	return out
}

// AddPage implements journal.Paged.
func (s *State) AddPage(o pages.Owner, page proto.Message) error {
	p, ok := page.(*workv1.AgentWorkPage)
	if !ok {
		return fmt.Errorf("work: a page of type %T", page)
	}
	k := plane.Key(o)
	if s.agents[k] != nil {
		return fmt.Errorf("work: a second page of agent %s/%s", o.Namespace, o.ID)
	}
	a := s.agent(k)
	for _, e := range p.GetItems() {
		if err := s.addEntry(k, e); err != nil {
			return fmt.Errorf("work: agent %s/%s: %w", o.Namespace, o.ID, err)
		}
	}
	a.current, a.deleted, a.ended = p.GetCurrentWorkItemId(), p.GetDeleted(), p.GetEndedWaitIds()
	if p.GetChangedAt() != nil {
		a.changed = p.GetChangedAt().AsTime()
	}
	return nil
}

// addEntry adds an item of a page to the items of its agent.
func (s *State) addEntry(k plane.Key, e *workv1.WorkItemEntry) error {
	rec := e.GetWorkItem()
	id := rec.GetWorkItemId()
	h := history{e.GetHistoryLast(), e.GetHistorySteps()}
	switch {
	case id == "":
		return fmt.Errorf("an item without a record or an id")
	case rec.GetAgentId() != k.ID:
		return fmt.Errorf("item %s belongs to agent %q", id, rec.GetAgentId())
	case s.record(k.Namespace, id) != nil:
		return fmt.Errorf("item %s is there twice", id)
	case !h.valid():
		return fmt.Errorf("item %s: its history does not end at its last event %d", id, h.last)
	}
	s.put(k, rec)
	s.items[plane.KeyOf(k.Namespace, id)].history = h
	return nil
}

// valid reports whether the steps are varints that lead to the last event.
func (h history) valid() bool {
	at := uint64(0)
	for rest := h.steps; len(rest) > 0; {
		step, n := binary.Uvarint(rest)
		if n <= 0 {
			return false
		}
		at, rest = at+step, rest[n:]
	}
	return at == h.last
}
