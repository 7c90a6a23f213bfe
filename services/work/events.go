package work

import (
	"time"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/services/work/past"
)

// eventRows has a row for each event type of the plane. Its columns are the arguments of on.
var eventRows = plane.NewRows(
	on[*workv1.WorkItemCreated](put, itself, always, whileOpen, countCreated, written),
	on[*workv1.WorkItemUpdated](foldUpdated, itself, always, unneeded, uncounted, written),
	on[*workv1.WorkItemPicked](foldPicked, bothPicked, always, unneeded, uncounted, picked),
	on[*workv1.FocusReleased](foldReleased, itself, never, unneeded, uncounted, released),
	on[*workv1.WorkItemCompleted](put, itself, always, whileCreationIsKept, countCompleted, written),
	on[*workv1.ReportPromoted](put, itself, never, unneeded, uncounted, written),
	on[*workv1.WaitAttached](foldAttached, itself, newWaitOrTrigger, unneeded, uncounted, written),
	on[*workv1.WaitDetached](foldDetached, itself, always, unneeded, uncounted, written),
	on[*workv1.RecheckConsumed](put, itself, never, unneeded, uncounted, written),
	// The items of a deleted owner have updates of their own.
	on[*workv1.OwnerDeleted](foldOwnerDeleted, noItem, always, unneeded, uncounted, nil),
	// It is for the waiting plane.
	on[*workv1.WaitAttachRefused](nil, noItem, never, unneeded, uncounted, nil),
	// It is for those who watch events; the content is in the file.
	on[*workv1.HomeFileWritten](nil, noItem, never, unneeded, uncounted, nil),
)

// row is a row of eventRows; see on.
type row struct {
	fold    func(s *State, ev *journal.Event)
	items   func(ev *journal.Event) []string
	changes func(s *State, ev *journal.Event) bool
	needed  func(s *State, ev *journal.Event, before time.Time) bool
	count   func(m *transitionCounts, ev *journal.Event)
	entry   func(ev *journal.Event, itemID string) past.Entry
}

// on returns the row of an event type:
//   - fold applies an event to the records and the focus of its agent; nil: it changes nothing of the state.
//   - items returns the items in whose histories the event is, and whose pages it changes.
//   - changes reports whether it counts as a change of the agent's work: an item was created, written, picked or
//     completed, the owner was deleted, or a wait was attached, triggered or detached. Events that only accompany
//     such a change, such as the release of the focus, and the record that a turn has seen a trigger do not count.
//     It is called before fold.
//   - needed is State.Needs for events of the type.
//   - count counts a durable event.
//   - entry returns what the history of an item has of the event; nil: it is in none.
func on[P proto.Message](
	fold func(s *State, k plane.Key, p P),
	items func(ev *journal.Event, p P) []string,
	changes func(s *State, ev *journal.Event, p P) bool,
	needed func(s *State, ev *journal.Event, p P, before time.Time) bool,
	count func(m *transitionCounts, p P),
	entry func(p P, itemID string) past.Entry,
) plane.Row[row] {
	r := row{
		items:   func(ev *journal.Event) []string { return items(ev, plane.PayloadOf[P](ev)) },
		changes: func(s *State, ev *journal.Event) bool { return changes(s, ev, plane.PayloadOf[P](ev)) },
		needed: func(s *State, ev *journal.Event, before time.Time) bool {
			return needed(s, ev, plane.PayloadOf[P](ev), before)
		},
		count: func(m *transitionCounts, ev *journal.Event) { count(m, plane.PayloadOf[P](ev)) },
	}
	if fold != nil {
		r.fold = func(s *State, ev *journal.Event) {
			fold(s, plane.KeyOf(ev.Namespace, ev.AgentID), plane.PayloadOf[P](ev))
		}
	}
	if entry != nil {
		r.entry = func(ev *journal.Event, itemID string) past.Entry { return entry(plane.PayloadOf[P](ev), itemID) }
	}
	return plane.RowOf[P](r)
}

// withItem is a payload that has the item after the event.
type withItem interface {
	proto.Message
	GetWorkItem() *workv1.WorkItemRecord
}

func put[P withItem](s *State, k plane.Key, p P) { s.put(k, p.GetWorkItem()) }

func foldUpdated(s *State, k plane.Key, p *workv1.WorkItemUpdated) {
	s.put(k, p.GetWorkItem())
	s.Owner(k).end(p.GetEndedWaitId())
}

// foldPicked moves the focus. Of the item it changes only Resumed, which the record in the event does not have.
func foldPicked(s *State, k plane.Key, p *workv1.WorkItemPicked) {
	s.Owner(k).current = p.GetCurrentWorkItemId()
	if s.record(k.Namespace, p.GetCurrentWorkItemId()).GetResumed() != nil {
		s.put(k, p.GetWorkItem())
	}
}

func foldReleased(s *State, k plane.Key, p *workv1.FocusReleased) {
	if a := s.Owner(k); a.current == p.GetWorkItemId() {
		a.current = ""
	}
}

func foldAttached(s *State, k plane.Key, p *workv1.WaitAttached) {
	s.put(k, p.GetWorkItem())
	s.Owner(k).end(p.GetReplacedWaitIds()...)
}

func foldDetached(s *State, k plane.Key, p *workv1.WaitDetached) {
	s.put(k, p.GetWorkItem())
	s.Owner(k).end(p.GetWaitId())
}

func foldOwnerDeleted(s *State, k plane.Key, _ *workv1.OwnerDeleted) { s.Owner(k).deleted = true }

func itself[P proto.Message](ev *journal.Event, _ P) []string { return []string{ev.WorkItemID} }

func noItem[P proto.Message](*journal.Event, P) []string { return nil }

// bothPicked returns the items that a move of the focus is about. It changes no field of them that histories show.
func bothPicked(_ *journal.Event, p *workv1.WorkItemPicked) []string {
	if p.GetPreviousWorkItemId() == p.GetCurrentWorkItemId() || p.GetPreviousWorkItemId() == "" {
		return []string{p.GetCurrentWorkItemId()}
	}
	return []string{p.GetCurrentWorkItemId(), p.GetPreviousWorkItemId()}
}

func always[P proto.Message](*State, *journal.Event, P) bool { return true }

func never[P proto.Message](*State, *journal.Event, P) bool { return false }

// newWaitOrTrigger reports whether an event attaches a wait that its item does not have, or brings deliveries for it.
func newWaitOrTrigger(s *State, ev *journal.Event, p *workv1.WaitAttached) bool {
	known := attached(s.record(ev.Namespace, ev.WorkItemID), p.GetWait().GetWaitId())
	return known == nil || p.GetWait().GetTriggerCount() > known.GetTriggerCount()
}

func unneeded[P proto.Message](*State, *journal.Event, P, time.Time) bool { return false }

func whileOpen(s *State, ev *journal.Event, p *workv1.WorkItemCreated, _ time.Time) bool {
	return s.isOpen(plane.KeyOf(ev.Namespace, p.GetWorkItem().GetWorkItemId()))
}

func whileCreationIsKept(_ *State, _ *journal.Event, p *workv1.WorkItemCompleted, before time.Time) bool {
	return !p.GetWorkItem().GetCreatedAt().AsTime().Before(before)
}

func uncounted[P proto.Message](*transitionCounts, P) {}

func countCreated(m *transitionCounts, _ *workv1.WorkItemCreated) { m.created.WithLabelValues().Inc() }

func countCompleted(m *transitionCounts, p *workv1.WorkItemCompleted) {
	it := p.GetWorkItem()
	m.completed.WithLabelValues().Inc()
	m.took.WithLabelValues().Observe(max(it.GetCompletedAt().AsTime().Sub(it.GetCreatedAt().AsTime()), 0).Seconds())
}

func written[P withItem](p P, _ string) past.Entry { return past.Entry{Record: p.GetWorkItem()} }

// picked has the record of either item, as it stood.
func picked(p *workv1.WorkItemPicked, itemID string) past.Entry {
	e := past.Entry{Record: p.GetWorkItem(), Reason: p.GetReason(), Focus: past.FocusGained}
	switch {
	case p.GetPreviousWorkItemId() == p.GetCurrentWorkItemId():
		e.Focus = past.FocusKept
	case p.GetPreviousWorkItemId() == itemID:
		e.Record, e.Focus = p.GetPreviousWorkItem(), past.FocusLost
	}
	return e
}

func released(p *workv1.FocusReleased, _ string) past.Entry {
	return past.Entry{Reason: pbjson.EnumText(p.GetReason()), Focus: past.FocusLost}
}
