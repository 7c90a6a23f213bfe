package rules

import (
	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// EndedError is what a run hears that is over.
func (f *Transition) EndedError(r *model.Run) error {
	if r.LeaseExpired {
		return fault.LeaseExpired.Newf("the lease of run %s on step %q was over and the step was given back; stop working on it", r.Record.GetRunId(), r.Record.GetClaimedStepId()).
			With("run_id", r.Record.GetRunId()).With("step_id", r.Record.GetClaimedStepId())
	}
	if err := f.Board.CheckOpen(); err != nil {
		return err
	}
	return model.RunEnded(r.Record.GetRunId())
}

// FinishRun ends a run. A step that it still holds fails, unless its board is
// being ended, which settles the step itself (S2-415 to S2-421, S2-436).
func (f *Transition) FinishRun(r *model.Run, how boardv1.RunStatus, why string, ended *boardv1.WorkerRunEnded) {
	s := f.Claimed[r]
	if s == nil {
		s = r.Step
	}
	if s != nil && f.Board.Terminating == nil && model.Held(f.Status(s)) && f.Holder(s) == r.Record.GetRunId() {
		f.emitFor(s, r, model.StepFailed, &boardv1.TaskStepFailed{Reason: why, ResultSummary: &why})
		if r.Dispatch != nil && how == boardv1.RunStatus_RUN_STATUS_FINISHED && ended.GetWorkerResult() == "" {
			f.EndedRuns = AddTo(f.EndedRuns, r, how)
			return // ended with its step
		}
	}
	f.EndedRuns = AddTo(f.EndedRuns, r, how)
	ended.RunId, ended.Status = r.Record.GetRunId(), how
	switch how {
	case boardv1.RunStatus_RUN_STATUS_CANCELLED:
		ended.EndReason = boardv1.RunEndReason_RUN_END_REASON_WORKER_CANCELLED
	case boardv1.RunStatus_RUN_STATUS_TIMED_OUT:
		ended.EndReason = boardv1.RunEndReason_RUN_END_REASON_WORKER_TIMEOUT
	}
	f.Emit(nil, ended).ActorRunID = f.env.Actor.RunID
}

func AddTo[K comparable, V any](m map[K]V, k K, v V) map[K]V {
	if m == nil {
		m = map[K]V{}
	}
	m[k] = v
	return m
}

// Why a step failed that its run left behind.
const (
	WhyFinished  = "worker_finished_without_terminal_step_status"
	WhyCancelled = "worker_cancelled"
	WhyTimeout   = "worker_timeout"
)

// ExpireLease takes the step of a silent run back, and ends the run.
func (f *Transition) ExpireLease(r *model.Run) {
	if r.HoldsStep() {
		rec := r.Step.Record
		f.move(r.Step, model.StepPending, &boardv1.TaskStepLeaseExpired{ClaimedByAgentId: rec.GetClaimedByAgentId(), ClaimedByRunId: rec.GetClaimedByRunId()})
		f.FollowUps()
	}
	f.EndedRuns = AddTo(f.EndedRuns, r, boardv1.RunStatus_RUN_STATUS_LOST)
	if r.Dispatch == nil || !r.HoldsStep() {
		f.Emit(nil, &boardv1.WorkerRunEnded{RunId: r.Record.GetRunId(), Status: boardv1.RunStatus_RUN_STATUS_LOST, EndReason: boardv1.RunEndReason_RUN_END_REASON_WORKER_LOST})
	}
}
