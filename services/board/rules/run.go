package rules

import (
	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// EndedError returns the refusal of a call of a run that has ended, with the reason why it
// ended.
func (f *Transition) EndedError(r *model.Run) error {
	if r.LeaseExpired {
		return fault.LeaseExpired.Newf("the lease of run %s on step %q expired and the step was made available "+
			"again; stop working on it", r.Record.GetRunId(), r.Record.GetClaimedStepId()).
			With("run_id", r.Record.GetRunId()).With("step_id", r.Record.GetClaimedStepId())
	}
	if err := f.Board.CheckOpen(); err != nil {
		return err
	}
	return model.RunEnded(r.Record.GetRunId())
}

// FinishRun ends a run with a status (S2-415 to S2-421, S2-436). A step that the run
// still holds fails with the reason why, unless the board is being ended, since then
// the step ends with the board. ended is the payload of the run's event; FinishRun sets
// its run, status and end reason. There is no such event if a run of a standing dispatch
// finishes without a result and its step fails here, because the event of the step then
// ends the run. The caller must call FollowUps afterwards.
func (f *Transition) FinishRun(r *model.Run, how boardv1.RunStatus, why string, ended *boardv1.WorkerRunEnded) {
	s := f.Claimed[r]
	if s == nil {
		s = r.Step
	}
	if s != nil && f.Board.Terminating == nil && model.Held(f.Status(s)) && f.Holder(s) == r.Record.GetRunId() {
		f.emitFor(s, r, model.StepFailed, &boardv1.TaskStepFailed{Reason: why, ResultSummary: &why})
		if r.Dispatch != nil && how == boardv1.RunStatus_RUN_STATUS_FINISHED && ended.GetWorkerResult() == "" {
			f.EndedRuns = AddTo(f.EndedRuns, r, how)
			return // the run ends with its step
		}
	}
	f.EndedRuns = AddTo(f.EndedRuns, r, how)
	ended.RunId, ended.Status = r.Record.GetRunId(), how
	switch how {
	case boardv1.RunStatus_RUN_STATUS_CANCELLED:
		ended.EndReason = boardv1.RunEndReason_RUN_END_REASON_WORKER_CANCELLED
	case boardv1.RunStatus_RUN_STATUS_TIMED_OUT:
		ended.EndReason = boardv1.RunEndReason_RUN_END_REASON_WORKER_TIMEOUT
	default:
		// A run that finished needs no reason.
	}
	f.Emit(nil, ended).ActorRunID = f.env.Actor.RunID
}

// AddTo sets an entry of a map, which may be nil, and returns the map.
func AddTo[K comparable, V any](m map[K]V, k K, v V) map[K]V {
	if m == nil {
		m = map[K]V{}
	}
	m[k] = v
	return m
}

// Reasons of steps that fail because their run ended.
const (
	WhyFinished  = "worker_finished_without_terminal_step_status"
	WhyCancelled = "worker_cancelled"
	WhyTimeout   = "worker_timeout"
)

// ExpireLease ends a run whose lease expired, with the status lost. The step that it holds
// becomes pending, and at once ready if its dependencies are completed. A run of a standing
// dispatch that holds a step ends with the event of the step, without one of its own.
func (f *Transition) ExpireLease(r *model.Run) {
	if r.HoldsStep() {
		rec := r.Step.Record
		f.move(r.Step, model.StepPending, &boardv1.TaskStepLeaseExpired{
			ClaimedByAgentId: rec.GetClaimedByAgentId(),
			ClaimedByRunId:   rec.GetClaimedByRunId(),
		})
		f.FollowUps()
	}
	f.EndedRuns = AddTo(f.EndedRuns, r, boardv1.RunStatus_RUN_STATUS_LOST)
	if r.Dispatch == nil || !r.HoldsStep() {
		f.Emit(nil, &boardv1.WorkerRunEnded{
			RunId: r.Record.GetRunId(), Status: boardv1.RunStatus_RUN_STATUS_LOST,
			EndReason: boardv1.RunEndReason_RUN_END_REASON_WORKER_LOST,
		})
	}
}
