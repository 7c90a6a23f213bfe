package audit

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/auditchain"
	"quartet/pkg/journal"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
)

// Plane is the name of this plane in journals and subjects.
const Plane = "audit"

// State has the positions of all entries, at 16 bytes of memory each. The entries themselves are read
// from the journal.
type State struct {
	positions []position // positions[i] is where entry i+1 is
	last      string     // hash of the last entry
}

// position is where an entry is in the journal, and when it was recorded, in Unix microseconds.
type position struct {
	walSeq uint64
	at     int64
}

// NewState returns the state of an empty journal.
func NewState() *State { return &State{} }

// Apply folds one event into the state.
func (s *State) Apply(ev *journal.Event) error {
	p, ok := ev.Payload.(*auditv1.AuditRecorded)
	if !ok {
		return journal.UnknownEvent(ev)
	}
	if n := int64(len(s.positions)) + 1; p.GetEntry().GetNumber() != n {
		return fmt.Errorf("audit: entry %d where %d is expected", p.GetEntry().GetNumber(), n)
	}
	s.positions = append(s.positions, position{ev.WalSeq, p.GetEntry().GetAt().AsTime().UnixMicro()})
	s.last = p.GetEntry().GetHash()
	return nil
}

// decideRecord is the rule of RecordAudit.
func decideRecord(st *State, env journal.Env,
	entries []*auditv1.AuditEntry,
) journal.Decision[*auditv1.RecordAuditResponse] {
	var d journal.Decision[*auditv1.RecordAuditResponse]
	before := st.last
	for i, given := range entries {
		e := proto.CloneOf(given)
		e.Number, e.At, e.PreviousHash = int64(len(st.positions)+i)+1, timestamppb.New(env.Now), before
		e.Hash = auditchain.Hash(e)
		before = e.GetHash()
		d.Events = append(d.Events, &journal.Event{Namespace: e.GetNamespace(), Payload: &auditv1.AuditRecorded{
			Entry: e,
		}})
	}
	return d
}
