package work

import (
	"time"

	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

var _ journal.Retaining = (*State)(nil)

// Needs implements journal.Retaining: who counts open items from the beginning of the journal needs the creation of each. An item is never
// opened again, so a completed one needs nothing: the creation precedes the completion and is removed before it, and a completion whose creation is
// missing counts for nothing. Only if the clock was set back between them, the completion may be old before the creation, and is kept until both
// are.
func (s *State) Needs(ev *journal.Event, before time.Time) bool {
	switch p := ev.Payload.(type) {
	case *workv1.WorkItemCreated:
		it := s.items[plane.KeyOf(ev.Namespace, p.GetWorkItem().GetWorkItemId())] // those in packed groups are completed
		return it != nil && !isCompleted(it.rec)
	case *workv1.WorkItemCompleted:
		return !p.GetWorkItem().GetCreatedAt().AsTime().Before(before)
	}
	return false
}
