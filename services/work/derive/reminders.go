package derive

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// NextReminder returns the time of the earliest reminder that the agent has not been given yet, of
// the item itself or of one of its waits; nil if there is none. The time may have passed.
func NextReminder(it *workv1.WorkItemRecord) *timestamppb.Timestamp {
	earliest := it.GetOwnRecheckAt()
	for _, w := range it.GetWaits() {
		if reminds(w) && (earliest == nil || Compare(w.GetRecheckAt(), earliest) < 0) {
			earliest = w.GetRecheckAt()
		}
	}
	return earliest
}

// reminds reports whether a wait has a reminder that was not given yet.
func reminds(w *workv1.AttachedWait) bool {
	return w.GetRecheckAt() != nil && w.GetRecheckConsumedAt() == nil
}

// ShowReminder sets the reminder that a record shows, after its reminders changed: the
// earliest that was not given, or else the one that was given last. The caller must be
// allowed to change the record.
func ShowReminder(it *workv1.WorkItemRecord) {
	reminderAt := NextReminder(it)
	switch {
	case reminderAt != nil && it.GetRecheckConsumedAt() != nil: // keep the given one that is shown, and show the next
		it.GivenRecheckAt, it.GivenRecheckConsumedAt = it.GetRecheckAt(), it.GetRecheckConsumedAt()
		fallthrough
	case reminderAt != nil:
		it.RecheckAt, it.RecheckConsumedAt = reminderAt, nil
	case it.GetRecheckConsumedAt() == nil: // the one that is shown is gone, so show the given one that was kept
		it.RecheckAt, it.RecheckConsumedAt = it.GetGivenRecheckAt(), it.GetGivenRecheckConsumedAt()
		it.GivenRecheckAt, it.GivenRecheckConsumedAt = nil, nil
	}
}

// GiveReminder marks the reminder that a record shows as given at now, with every other one
// of the same time, and shows the next. It changes the record and replaces the waits that
// it changes.
func GiveReminder(it *workv1.WorkItemRecord, now time.Time) {
	reminderAt, when := it.GetRecheckAt(), timestamppb.New(now)
	if it.GetOwnRecheckAt() != nil && Compare(it.GetOwnRecheckAt(), reminderAt) == 0 {
		it.OwnRecheckAt = nil
	}
	for i, w := range it.GetWaits() {
		if reminds(w) && Compare(w.GetRecheckAt(), reminderAt) == 0 {
			w = proto.CloneOf(w)
			w.RecheckConsumedAt = when
			it.Waits[i] = w
		}
	}
	// This is now the one given last; an earlier one, which was kept while this one was shown, is forgotten.
	it.RecheckConsumedAt = when
	it.GivenRecheckAt, it.GivenRecheckConsumedAt = nil, nil
	ShowReminder(it)
}

// SplitReminder completes a record of an older version, in which an item had one reminder only: the
// one that it shows belongs to the wait that has the same time, or else to the item. It changes the
// record and its waits, and does nothing to a record of this version.
func SplitReminder(it *workv1.WorkItemRecord) {
	for _, w := range it.GetWaits() {
		if !reminds(w) || it.GetRecheckAt() == nil || Compare(w.GetRecheckAt(), it.GetRecheckAt()) != 0 {
			continue
		}
		w.RecheckConsumedAt = it.GetRecheckConsumedAt()
		if w.GetRecheckConsumedAt() == nil {
			return // the reminder was not given: it is this wait's, and the item has none
		}
	}
	if RecheckPending(it) && (NextReminder(it) == nil || Compare(NextReminder(it), it.GetRecheckAt()) != 0) {
		it.OwnRecheckAt = it.GetRecheckAt()
	}
}
