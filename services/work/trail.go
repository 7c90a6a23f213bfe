package work

import (
	"encoding/binary"

	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// trail says where in the journal the mutations of an item are: the wal_seq of
// each as the distance from the one before, in two or three bytes. The journal
// holds everything else, so an item's whole history costs its agent's memory
// less than one copy of the record (SPEC W11, docs/adr/0011).
type trail struct {
	last  uint64
	steps []byte
}

func (t trail) with(walSeq uint64) trail {
	return trail{walSeq, binary.AppendUvarint(t.steps, walSeq-t.last)}
}

// all gives the coordinates, oldest first.
func (t trail) all() []uint64 {
	var out []uint64
	at := uint64(0)
	for rest := t.steps; len(rest) > 0; {
		step, n := binary.Uvarint(rest)
		at += step
		out = append(out, at)
		rest = rest[n:]
	}
	return out
}

// remember notes an event in the trail of every item that it is about. The
// focus is no field of an item, but who moved it away belongs to its history.
func (s *State) remember(ev *journal.Event) {
	note := func(itemID string) {
		if it := s.items[key{ev.Namespace, itemID}]; it != nil {
			it.trail = it.trail.with(ev.WalSeq)
		}
	}
	switch p := ev.Payload.(type) {
	case *workv1.WorkItemPicked:
		note(p.GetCurrentWorkItemId())
		if p.GetPreviousWorkItemId() != p.GetCurrentWorkItemId() {
			note(p.GetPreviousWorkItemId())
		}
	case *workv1.FocusReleased, interface{ GetWorkItem() *workv1.WorkItemRecord }:
		note(ev.WorkItemID) // any other event names an item without changing it
	}
}
