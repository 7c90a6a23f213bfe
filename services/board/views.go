package board

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// mostNamed bounds the steps that diagnostics name.
const mostNamed = 50

// walPath is where a WAL is served.
func walPath(k boardKey) string { return "/v1/sessions/" + k.session + "/wal/" + k.wal + ".wal.jsonl" }

// summarized is the board without what grows with its steps.
func (b *board) summarized() *boardv1.Board {
	c := func(s status) int32 { return int32(b.count[s] & (1<<31 - 1)) }
	out := &boardv1.Board{
		BoardId: b.id, SessionId: b.key.session, WalName: b.key.wal, WalPath: walPath(b.key),
		Title: b.title, Summary: b.summary, Status: b.status, Reason: b.reason,
		CreatedByAgentId: b.creator.agent, CreatedByRunId: b.creator.run, DefaultWorkerPoolId: b.pool,
		CreatedAt: timestamppb.New(b.created), UpdatedAt: timestamppb.New(b.updated), Revision: b.lines,
		Counts: &boardv1.StepCounts{
			Pending: c(stepPending), Ready: c(stepReady), Claimed: c(stepClaimed), Running: c(stepRunning),
			Blocked: c(stepBlocked), Completed: c(stepCompleted), Failed: c(stepFailed), Cancelled: c(stepCancelled),
		},
		Terminating: b.terminating != nil,
	}
	if !terminal(b.status) && b.damaged == nil {
		out.Diagnostics = &boardv1.Diagnostics{Stalled: b.stalled(), Completeable: b.completeable()}
	}
	return out
}

// whole is the board with its steps.
func (b *board) whole() *boardv1.Board {
	out := b.named()
	out.Steps = make([]*boardv1.Step, 0, len(b.steps))
	for _, s := range b.order {
		if s != nil {
			out.Steps = append(out.Steps, b.shown(s))
		}
	}
	return out
}

// named is the board without its steps and with the steps that stand in its way.
func (b *board) named() *boardv1.Board {
	out := b.summarized()
	out.RootStepIds = b.roots
	d := out.GetDiagnostics()
	if d == nil {
		return out
	}
	if d.GetStalled() {
		for _, of := range []status{stepBlocked, stepFailed, stepCancelled, stepPending} {
			d.StalledByStepIds = b.name(d.GetStalledByStepIds(), func(r *boardv1.Step) bool {
				return r.GetStatus() == of && (of != stepCancelled || r.GetRequired())
			})
		}
	}
	if !d.GetCompleteable() {
		d.NotCompleteableByStepIds = b.hindering()
	}
	return out
}

// hindering are the steps because of which the board cannot be completed.
func (b *board) hindering() []string {
	return b.name(nil, func(r *boardv1.Step) bool { return held(r.GetStatus()) || openness(r) > 0 })
}

func (b *board) name(to []string, keep func(*boardv1.Step) bool) []string {
	for _, s := range b.order {
		if len(to) == mostNamed {
			break
		}
		if s != nil && keep(s.rec) {
			to = append(to, s.id())
		}
	}
	return to
}

// completeable says whether CompleteBoard would be accepted (S2-168, S2-170).
func (b *board) completeable() bool {
	return !terminal(b.status) && b.terminating == nil && b.open == 0 && b.count[stepClaimed]+b.count[stepRunning] == 0
}

// stalled says that nothing goes on and something is left (S2-160).
func (b *board) stalled() bool {
	return b.count[stepReady]+b.count[stepClaimed]+b.count[stepRunning] == 0 &&
		b.count[stepPending]+b.count[stepBlocked]+b.count[stepFailed] > 0
}

// shown is a step as readers see it: its lease runs until what heartbeats made of it.
func (b *board) shown(s *step) *boardv1.Step {
	if !held(s.rec.GetStatus()) {
		return s.rec
	}
	r := b.runs[s.rec.GetClaimedByRunId()]
	if r == nil {
		return s.rec
	}
	n := copyStep(s.rec, s.rec.GetUpdatedAt().AsTime())
	n.LeaseExpiresAt = &timestamppb.Timestamp{Seconds: r.deadline.Load() / 1e6, Nanos: int32(r.deadline.Load() % 1e6 * 1000)}
	return n
}

// mostIDs bounds the event ids of an answer.
const mostIDs = 100

// written are the ids of WAL events, the first of them, and their number.
func written(events []*journal.Event) (ids []string, n int32) {
	for _, ev := range events {
		if !inWAL(ev) {
			continue
		}
		n++
		if len(ids) < mostIDs {
			ids = append(ids, ev.ID)
		}
	}
	return ids, n
}
