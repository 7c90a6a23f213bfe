package work

import (
	"time"

	workv1 "quartet/pkg/pb/quartet/work/v1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// An item may have a reminder of its own, and each of its waits may bring one
// (SPEC P5, P8). They stand beside each other: none takes the place of another,
// and each is given once.

// nextReminder is the earliest that was not given yet; nil if there is none.
func nextReminder(it *workv1.WorkItemRecord) *timestamppb.Timestamp {
	at := it.GetOwnRecheckAt()
	for _, w := range it.GetWaits() {
		if reminds(w) && (at == nil || compare(w.GetRecheckAt(), at) < 0) {
			at = w.GetRecheckAt()
		}
	}
	return at
}

func reminds(w *workv1.AttachedWait) bool {
	return w.GetRecheckAt() != nil && w.GetRecheckConsumedAt() == nil
}

// remind settles what an item shows, whenever one of its reminders came or went:
// the next one, else the one that was given last.
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

// given marks the reminder that an item shows. Another one for the same moment
// has been given with it.
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

// parted reads a record from before reminders stood beside each other: what it
// shows is a wait's that has the same time, else its own.
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
