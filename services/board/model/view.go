package model

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
)

// maxNamedSteps bounds the steps that diagnostics name.
const maxNamedSteps = 50

// WalPath returns the REST path at which a WAL is served.
func WalPath(k BoardKey) string { return "/v1/sessions/" + k.Session + "/wal/" + k.WAL + ".wal.jsonl" }

// Overview returns the board without its steps and without anything whose size
// depends on their number.
func (b *Board) Overview() *boardv1.Board {
	b = b.Whole()
	out := &boardv1.Board{
		BoardId: b.ID, SessionId: b.Key.Session, WalName: b.Key.WAL, WalPath: WalPath(b.Key),
		Title: b.title, Summary: b.summary, Status: b.Status, Reason: b.reason,
		CreatedByAgentId: b.creator.agent, CreatedByRunId: b.creator.run, DefaultWorkerPoolId: b.DefaultPool,
		CreatedAt: timestamppb.New(b.CreatedAt), UpdatedAt: timestamppb.New(b.UpdatedAt), Revision: b.Lines,
		Counts: b.counts(), Terminating: b.Terminating != nil,
	}
	if !Ended(b.Status) && b.Damaged == nil {
		out.Diagnostics = &boardv1.Diagnostics{Stalled: b.stalled(), Completeable: b.Completeable()}
	}
	return out
}

// counts returns the number of steps by status. For a board that has ended, the caller must call it on the result of
// Whole, since b itself may have no content, and all numbers would be 0.
func (b *Board) counts() *boardv1.StepCounts {
	c := func(s StepStatus) int32 { return int32(b.Count[s] & (1<<31 - 1)) }
	return &boardv1.StepCounts{
		Pending: c(StepPending), Ready: c(StepReady), Claimed: c(StepClaimed), Running: c(StepRunning),
		Blocked: c(StepBlocked), Completed: c(StepCompleted), Failed: c(StepFailed), Cancelled: c(StepCancelled),
	}
}

// WithSteps is WithDiagnostics with the steps, in the order of creation. A board that has ended has
// none in memory; replay its WAL instead. leases may be nil, see ShownStep.
func (b *Board) WithSteps(leases LeaseExpiry) *boardv1.Board {
	out := b.WithDiagnostics()
	out.Steps = make([]*boardv1.Step, 0, len(b.Steps))
	for _, s := range b.Order {
		if s != nil {
			out.Steps = append(out.Steps, b.ShownStep(s, leases))
		}
	}
	return out
}

// WithDiagnostics is Overview with the ids of the root steps and, in the diagnostics, of the steps
// because of which the board makes no progress or cannot be completed: at most maxNamedSteps of
// each. A board that has ended or is damaged has no diagnostics. The root ids are shared with b.
func (b *Board) WithDiagnostics() *boardv1.Board {
	out := b.Overview()
	out.RootStepIds = b.roots
	d := out.GetDiagnostics()
	if d == nil {
		return out
	}
	if d.GetStalled() {
		for _, of := range []StepStatus{StepBlocked, StepFailed, StepCancelled, StepPending} {
			d.StalledByStepIds = b.collectIDs(d.GetStalledByStepIds(), func(r *boardv1.Step) bool {
				return r.GetStatus() == of && (of != StepCancelled || r.GetRequired())
			})
		}
	}
	if !d.GetCompleteable() {
		d.NotCompleteableByStepIds = b.BlockingCompletion()
	}
	return out
}

// BlockingCompletion returns the ids of the steps because of which the board cannot be
// completed, at most maxNamedSteps, in the order of creation.
func (b *Board) BlockingCompletion() []string {
	return b.collectIDs(nil, func(r *boardv1.Step) bool { return Held(r.GetStatus()) || RequiredOpen(r) > 0 })
}

// collectIDs appends to to the ids of the steps for which keep returns true, until it has maxNamedSteps.
func (b *Board) collectIDs(to []string, keep func(*boardv1.Step) bool) []string {
	for _, s := range b.Order {
		if len(to) == maxNamedSteps {
			break
		}
		if s != nil && keep(s.Record) {
			to = append(to, s.ID())
		}
	}
	return to
}

// Completeable reports whether the board can be completed: it has not ended and is not about to, all required
// steps are completed, and no step is claimed or running (S2-168, S2-170).
func (b *Board) Completeable() bool {
	return !Ended(b.Status) && b.Terminating == nil && b.RequiredOpen == 0 && b.Count[StepClaimed]+
		b.Count[StepRunning] == 0
}

// stalled reports whether no step is ready or held although some are pending, blocked or
// failed (S2-160).
func (b *Board) stalled() bool {
	return b.Count[StepReady]+b.Count[StepClaimed]+b.Count[StepRunning] == 0 &&
		b.Count[StepPending]+b.Count[StepBlocked]+b.Count[StepFailed] > 0
}

// LeaseExpiry returns when the lease of a run of the board's namespace expires; ok is false if
// the run has none. Leases are renewed outside of the log, so the time on a step's record is
// only that of its last event.
type LeaseExpiry func(runID string) (expires time.Time, ok bool)

// ShownStep returns a step as readers see it: with the time at which its lease expires now. A
// nil leases leaves the time of the record. The result must not be modified.
func (b *Board) ShownStep(s *Step, leases LeaseExpiry) *boardv1.Step {
	if !Held(s.Record.GetStatus()) || leases == nil {
		return s.Record
	}
	expires, ok := leases(s.Record.GetClaimedByRunId())
	if !ok {
		return s.Record
	}
	n := CopyStep(s.Record, s.Record.GetUpdatedAt().AsTime())
	n.LeaseExpiresAt = pbjson.Timestamp(expires)
	return n
}
