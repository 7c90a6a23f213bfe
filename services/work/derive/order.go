package derive

import (
	"cmp"

	"google.golang.org/protobuf/types/known/timestamppb"

	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// Micros returns a time in microseconds, the resolution of times in the journal.
func Micros(timestamp *timestamppb.Timestamp) int64 {
	return timestamp.GetSeconds()*1_000_000 + int64(timestamp.GetNanos()/1000)
}

// CreatedAt returns when an item was created, in microseconds.
func CreatedAt(rec *workv1.WorkItemRecord) int64 { return Micros(rec.GetCreatedAt()) }

// ResumedOrUpdatedAt returns the key of an ascending order that has the resumed items first, by the
// time of their resumption, and then all others by the time of their last write.
func ResumedOrUpdatedAt(rec *workv1.WorkItemRecord) int64 {
	if rec.GetResumed() != nil {
		const before = 1 << 62 // microseconds; times of the journal are smaller
		return Micros(rec.GetResumed().GetAt()) - before
	}
	return UpdatedAt(rec)
}

// UpdatedAt returns when an item was written last, in microseconds.
func UpdatedAt(rec *workv1.WorkItemRecord) int64 { return Micros(rec.GetUpdatedAt()) }

// ByID reports whether the id of a is before that of b.
func ByID(a, b *workv1.WorkItemRecord) bool { return a.GetWorkItemId() < b.GetWorkItemId() }

// Older reports whether a is before b in order of creation; items created at the same time are in order of their ids.
func Older(a, b *workv1.WorkItemRecord) bool {
	if x, y := CreatedAt(a), CreatedAt(b); x != y {
		return x < y
	}
	return ByID(a, b)
}

// Newer reports whether a is before b in order of last writes, newest first; items written at the same time are in
// ascending order of id.
func Newer(a, b *workv1.WorkItemRecord) bool {
	if x, y := UpdatedAt(a), UpdatedAt(b); x != y {
		return x > y
	}
	return ByID(a, b)
}

// LastTriggered returns the latest trigger time among the waits of an item that have triggers
// not consumed, nil if there is no such wait.
func LastTriggered(it *workv1.WorkItemRecord) *timestamppb.Timestamp {
	var last *timestamppb.Timestamp
	for _, w := range it.GetWaits() {
		if w.GetTriggerCount() > w.GetConsumedCount() && (last == nil || Before(last, w.GetLastTriggeredAt())) {
			last = w.GetLastTriggeredAt()
		}
	}
	return last
}

// Before reports whether a is earlier than b. A nil time is the Unix epoch.
func Before(a, b *timestamppb.Timestamp) bool { return Compare(a, b) < 0 }

// Compare returns -1, 0 or 1 for a before, equal to or after b. A nil time is the Unix epoch.
func Compare(a, b *timestamppb.Timestamp) int {
	return cmp.Or(cmp.Compare(a.GetSeconds(), b.GetSeconds()), cmp.Compare(a.GetNanos(), b.GetNanos()))
}
