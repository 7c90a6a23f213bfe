package rules

import (
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/services/board/model"
)

// DecideClaim is the rule of ClaimStep for the run r. It returns no events if stepID is empty
// and there is no step that the run may claim.
func DecideClaim(b *model.Board, r *model.Run, stepID string, env journal.Env) ([]*journal.Event, error) {
	f := NewTransition(b, env)
	switch {
	case r.HasClaimed():
		return nil, fault.StepAlreadyClaimedByRun.Newf("run %s has claimed step %q; a run claims one step at most",
			r.Record.GetRunId(), r.Record.GetClaimedStepId()).
			With("run_id", r.Record.GetRunId()).With("step_id", r.Record.GetClaimedStepId())
	case !r.Running():
		return nil, f.EndedError(r)
	case !b.Dispatchable():
		return nil, model.NotDispatchable(b)
	}
	if stepID == "" {
		s := f.Candidate(r.Record.GetWorkerPoolId(), r.AllowedSet, r.Allowed)
		if s == nil {
			return nil, nil
		}
		f.Claim(s, r)
		return f.Events, nil
	}
	s := b.Steps[stepID]
	if s == nil {
		return nil, model.NoStep(b, stepID)
	}
	switch st := s.Record.GetStatus(); {
	case r.Allowed != nil && !r.Allowed[stepID]:
		return nil, model.OutOfScope(r, stepID)
	case s.Record.GetWorkerPoolId() != r.Record.GetWorkerPoolId():
		return nil, fault.PermissionDenied.Newf("step %q belongs to pool %s, and run %s to pool %s", stepID,
			s.Record.GetWorkerPoolId(), r.Record.GetRunId(), r.Record.GetWorkerPoolId()).
			With("step_id", stepID).With("worker_pool_id", s.Record.GetWorkerPoolId())
	case model.Held(st):
		return nil, fault.StepAlreadyClaimed.Newf("step %q is held by another run; query the steps again", stepID).
			With("step_id", stepID)
	case !model.StepMayMove(model.ByHolder, st, model.StepClaimed):
		return nil, fault.StepState.Newf("step %q is %s; only ready steps can be claimed", stepID,
			model.StepStatusName(st)).
			With("step_id", stepID).With("step_status", model.StepStatusName(st))
	}
	f.Claim(s, r)
	return f.Events, nil
}
