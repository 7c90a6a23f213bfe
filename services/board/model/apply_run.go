package model

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// keptRuns is how many ended runs of a partition stay in memory at least: they can be
// read, and late reports on them get a precise error.
const keptRuns = 4096

// applyToRuns applies a WAL line to runs and dispatches.
func (s *State) applyToRuns(r row, l appliedLine) {
	holder := l.holder
	if r.runs != nil {
		holder = r.runs(s, l)
	}
	if st := l.step; holder != nil && st != nil && !Held(st.Record.GetStatus()) {
		n := CopyRun(holder.Record)
		n.StepStatus, n.StepResultSummary = st.Record.GetStatus(), st.Record.GetResultSummary()
		holder.Record = n
		if holder.Dispatch != nil {
			s.endRun(holder, boardv1.RunStatus_RUN_STATUS_FINISHED, st.Record.GetStatus(), l.ev.CreatedAt)
		}
	}
	s.refreshClaimable(l.board)
}

// applyClaimToRun records in a run that it claimed the step st. A claim under a standing
// dispatch creates the run.
func (s *State) applyClaimToRun(b *Board, st *Step, p *boardv1.TaskStepClaimed, ev *journal.Event) {
	r := b.Runs[p.GetClaimedByRunId()]
	if r == nil && p.GetDispatchId() != "" {
		i := slices.IndexFunc(b.Dispatches, func(d *Dispatch) bool {
			return d.Record.GetDispatchId() == p.GetDispatchId()
		})
		r = &Run{Board: b, Record: &boardv1.WorkerRun{
			RunId: p.GetClaimedByRunId(), SessionId: b.Key.Session, BoardId: b.ID, WorkerId: p.GetClaimedByAgentId(),
			WorkerPoolId: st.Record.GetWorkerPoolId(), DispatchId: p.GetDispatchId(),
			Status: boardv1.RunStatus_RUN_STATUS_RUNNING, DispatchedAt: timestamppb.New(ev.CreatedAt),
			DeadlineAt: p.GetDeadlineAt(),
		}}
		if i >= 0 {
			r.Dispatch = b.Dispatches[i]
			r.Dispatch.Running++
			r.Record.Instruction, r.Record.AllowedStepIds = r.Dispatch.Record.GetInstruction(),
				r.Dispatch.Record.GetAllowedStepIds()
			r.Allowed = r.Dispatch.Allowed
		}
		s.addRun(r)
	}
	if r == nil {
		return // the claim is valid for the board even if its run is not known
	}
	n := CopyRun(r.Record)
	n.ClaimedStepId, n.ClaimedStep = st.ID(), st.AtClaim
	r.Record, r.Step = n, st
}

// addRun adds a run in progress. A damaged board gets it too, but is not added to WithRuns.
func (s *State) addRun(r *Run) {
	r.Board.Runs[r.Record.GetRunId()] = r
	s.Runs[plane.KeyOf(r.Board.Key.Namespace, r.Record.GetRunId())] = r
	if !r.Board.IsDamaged() {
		s.WithRuns[r.Board] = struct{}{}
	}
}

// endRun ends a run with a status, unless it has ended. step is the status that the run's step has
// at that time; it is ignored for a run without a step.
func (s *State) endRun(r *Run, status boardv1.RunStatus, step StepStatus, at time.Time) {
	if !r.Running() {
		return
	}
	n := CopyRun(r.Record)
	n.Status, n.EndedAt = status, timestamppb.New(at)
	if r.Step != nil {
		n.StepStatus = step
	}
	r.Record = n
	delete(r.Board.Runs, n.GetRunId())
	if len(r.Board.Runs) == 0 {
		delete(s.WithRuns, r.Board)
	}
	if r.Dispatch != nil {
		r.Dispatch.Running--
	}
	r.Dispatch, r.AllowedSet, r.Step = nil, nil, nil
	r.place = s.dropped + len(s.ended)
	s.ended = append(s.ended, plane.KeyOf(r.Board.Key.Namespace, n.GetRunId()))
	if len(s.ended) >= 2*keptRuns {
		for _, k := range s.ended[:keptRuns] {
			delete(s.Runs, k)
		}
		s.ended, s.dropped = slices.Clone(s.ended[keptRuns:]), s.dropped+keptRuns
	}
}

// cancel notes that a run is being cancelled; it does nothing for nil.
func (r *Run) cancel() {
	if r != nil {
		n := CopyRun(r.Record)
		n.Cancelling = true
		r.Record = n
	}
}

// applyWorkerRunEnded ends a run, or adds the result to one that ended with its step. A run
// that is no longer in memory is ignored.
func (s *State) applyWorkerRunEnded(p *boardv1.WorkerRunEnded, ev *journal.Event) {
	r := s.Runs[plane.KeyOf(ev.Namespace, p.GetRunId())]
	if r == nil {
		return
	}
	n := CopyRun(r.Record)
	n.WorkerResult, n.EndReason, n.NoStepClaimed = p.GetWorkerResult(), p.GetEndReason(), p.GetNoStepClaimed()
	if !r.Running() { // it ended with its step; this event adds its result
		n.Status = p.GetStatus()
	}
	r.Record = n
	at := n.GetStepStatus()
	if r.HoldsStep() {
		at = r.Step.Record.GetStatus()
	}
	s.endRun(r, p.GetStatus(), at, ev.CreatedAt)
}

// applyAfterEnd is Apply for events of a board that has ended. Any other than worker_run_ended is an error.
func (s *State) applyAfterEnd(ev *journal.Event) error {
	if p, ok := ev.Payload.(*boardv1.WorkerRunEnded); ok {
		s.applyWorkerRunEnded(p, ev)
		return nil
	}
	return fmt.Errorf("board: %s of %s/%s, which has no active board", ev.Type, ev.SessionID, ev.TaskID)
}

// refreshScopes recomputes AllowedSet of the board's dispatches, and of its runs that have none, after a change of
// the board: it may have replaced steps, and the sets have the indexes of steps.
func (s *State) refreshScopes(b *Board) {
	for _, d := range b.Dispatches {
		if d.Allowed != nil {
			d.AllowedSet = b.bitsOf(d.Allowed)
		}
	}
	for _, r := range b.Runs {
		if r.Dispatch == nil && r.Allowed != nil {
			r.AllowedSet = b.bitsOf(r.Allowed)
		}
	}
}

// refreshClaimable adds the board's standing dispatches that have a step to claim to
// the lists of their pools, and removes the others.
func (s *State) refreshClaimable(b *Board) {
	for _, d := range b.Dispatches {
		if b.Dispatchable() && d.Running < int(d.Record.GetMaxParallel()) &&
			b.Ready[d.Record.GetWorkerPoolId()].Next(0, d.AllowedSet) >= 0 {
			s.list(d)
		} else {
			s.unlist(d)
		}
	}
}
