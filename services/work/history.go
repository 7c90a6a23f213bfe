package work

import (
	"encoding/binary"

	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// history holds the wal_seqs of the events in an item's history, each as its distance from the
// one before, in two or three bytes. The journal holds everything else, so the whole history
// of an item costs less memory than one copy of its record (SPEC W11, ADR 0011). A history is
// a value; with returns a longer one.
type history struct {
	last  uint64 // the newest wal_seq
	steps []byte // the distances, as varints
}

// with returns the history with one more event, whose walSeq must be higher than the last.
func (h history) with(walSeq uint64) history {
	return history{walSeq, binary.AppendUvarint(h.steps, walSeq-h.last)}
}

// all returns the wal_seqs, oldest first.
func (h history) all() []uint64 {
	var out []uint64
	at := uint64(0)
	for rest := h.steps; len(rest) > 0; {
		step, n := binary.Uvarint(rest)
		at += step
		out = append(out, at)
		rest = rest[n:]
	}
	return out
}

// index adds an event to the history of every item that it is about. The focus is no field of
// an item, but a move of the focus belongs to the history of both items.
func (s *State) index(ev *journal.Event) error {
	add := func(itemID string) {
		if it := s.items[plane.KeyOf(ev.Namespace, itemID)]; it != nil {
			it.history = it.history.with(ev.WalSeq)
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
