package work

import (
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// index adds the wal_seq of an event to the history of every item that the event is about. A move of the focus
// changes no field of an item, but is in the histories of the item that had the focus and of the one that gets it.
func (s *State) index(ev *journal.Event) error {
	add := func(itemID string) {
		if it := s.edited(ev.Namespace, itemID); it != nil {
			it.history = it.history.With(ev.WalSeq)
		}
	}
	switch p := ev.Payload.(type) {
	case *workv1.WorkItemPicked:
		add(p.GetCurrentWorkItemId())
		if p.GetPreviousWorkItemId() != p.GetCurrentWorkItemId() {
			add(p.GetPreviousWorkItemId())
		}
	case *workv1.WorkItemCreated, *workv1.WorkItemUpdated, *workv1.WorkItemCompleted, *workv1.ReportPromoted,
		*workv1.WaitAttached, *workv1.WaitDetached, *workv1.RecheckConsumed, *workv1.FocusReleased:
		add(ev.WorkItemID)
	case *workv1.WaitAttachRefused, *workv1.HomeFileWritten, *workv1.OwnerDeleted:
		// They change no item. The items of a deleted owner have updates of their own.
	default:
		return journal.UnknownEvent(ev)
	}
	return nil
}
