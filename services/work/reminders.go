package work

import (
	"time"

	workv1 "quartet/pkg/pb/quartet/work/v1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// An item may have a reminder of its own, and each of its waits may have one (SPEC P5, P8).
// They are independent, and each is given once.

// nextReminder returns the time of the earliest reminder that was not given, nil if there is
// none.
func nextReminder(it *workv1.WorkItemRecord) *timestamppb.Timestamp {
	at := it.GetOwnRecheckAt()
	for _, w := range it.GetWaits() {
		if reminds(w) && (at == nil || compare(w.GetRecheckAt(), at) < 0) {
			at = w.GetRecheckAt()
		}
	}
	return at
}

// reminds reports whether a wait has a reminder that was not given.
func reminds(w *workv1.AttachedWait) bool {
	return w.GetRecheckAt() != nil && w.GetRecheckConsumedAt() == nil
}

// remind sets the reminder that an item shows, after its reminders changed: the next one,
// or else the one that was given last.
func remind(it *workv1.WorkItemRecord) {
	at := nextReminder(it)
	switch {
	case at != nil && it.GetRecheckConsumedAt() != nil:
		it.GivenRecheckAt, it.GivenRecheckConsumedAt = it.GetRecheckAt(), it.GetRecheckConsumedAt()
		fallthrough
	case at != nil:
		it.RecheckAt, it.RecheckConsumedAt = at, nil
	case it.GetRecheckConsumedAt() == nil:
		it.RecheckAt, it.RecheckConsumedAt = it.GetGivenRecheckAt(), it.GetGivenRecheckConsumedAt()
		it.GivenRecheckAt, it.GivenRecheckConsumedAt = nil, nil
	}
}

// given marks the reminder that an item shows as given, and every other one of the same
// time.
func given(it *workv1.WorkItemRecord, now time.Time) {
	at, when := it.GetRecheckAt(), timestamppb.New(now)
	if it.GetOwnRecheckAt() != nil && compare(it.GetOwnRecheckAt(), at) == 0 {
		it.OwnRecheckAt = nil
	}
	for i, w := range it.GetWaits() {
		if reminds(w) && compare(w.GetRecheckAt(), at) == 0 {
			w = proto.CloneOf(w)
			w.RecheckConsumedAt = when
			it.Waits[i] = w
		}
	}
	it.RecheckConsumedAt = when
	it.GivenRecheckAt, it.GivenRecheckConsumedAt = nil, nil
	remind(it)
}

// parted completes a record that was written when an item had one reminder only: the one
// that it shows belongs to the wait that has the same time, or else to the item.
func parted(it *workv1.WorkItemRecord) {
	for _, w := range it.GetWaits() {
		if !reminds(w) || it.GetRecheckAt() == nil || compare(w.GetRecheckAt(), it.GetRecheckAt()) != 0 {
			continue
		}
		if w.RecheckConsumedAt = it.GetRecheckConsumedAt(); w.GetRecheckConsumedAt() == nil {
			return
		}
	}
	if recheckPending(it) && (nextReminder(it) == nil || compare(nextReminder(it), it.GetRecheckAt()) != 0) {
		it.OwnRecheckAt = it.GetRecheckAt()
	}
}
