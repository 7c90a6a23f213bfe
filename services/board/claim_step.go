package board

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// ClaimStep gives a ready step to the calling run (S2-376 to S2-395).
func (s *Service) ClaimStep(ctx context.Context, req *boardv1.ClaimStepRequest) (*boardv1.ClaimStepResponse, error) {
	actor, err := runner(ctx, "agent.task_claim_step")
	if err := fault.First(err, fault.RequestID(req.GetRequestId()), fault.Name("session_id", req.GetSessionId()),
		fault.Name("board_id", req.GetBoardId()), optionalName("step_id", req.GetStepId())); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.change(ctx, change{
		method: "ClaimStep", k: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req, ended: true,
		decide: func(st *State, b *board, env journal.Env) ([]*journal.Event, error) {
			r, err := st.seen(b, actor.RunID)
			if err != nil {
				return nil, err
			}
			return claimed(b, r, req.GetStepId(), env)
		},
	})
	if err != nil {
		return nil, err
	}
	resp := &boardv1.ClaimStepResponse{EventIds: out.ids, NoStepClaimed: len(out.events) == 0}
	if resp.NoStepClaimed {
		return resp, nil
	}
	resp.Step, err = view(ctx, s, k, req.GetBoardId(), "", func(_ *State, b *board) (*boardv1.Step, error) {
		if st := b.steps[out.events[0].StepID]; st != nil {
			return b.shown(st), nil
		}
		return nil, noStep(b, out.events[0].StepID)
	})
	return resp, err
}

// claimed is the rule of ClaimStep. No events: there is nothing to claim.
func claimed(b *board, r *run, stepID string, env journal.Env) ([]*journal.Event, error) {
	f := newFlow(b, env)
	switch {
	case r.step != nil:
		return nil, fault.StepAlreadyClaimedByRun.Newf("run %s has claimed step %q; a run claims one step at most", r.rec.GetRunId(), r.rec.GetClaimedStepId()).
			With("run_id", r.rec.GetRunId()).With("step_id", r.rec.GetClaimedStepId())
	case !r.live():
		return nil, f.late(r)
	case !b.dispatchable():
		return nil, notDispatchable(b)
	}
	if stepID == "" {
		s := f.candidate(r.rec.GetWorkerPoolId(), r.bits, r.allowed)
		if s == nil {
			return nil, nil
		}
		f.claim(s, r.rec.GetRunId(), r.rec.GetWorkerId(), "")
		return f.events, nil
	}
	s := b.steps[stepID]
	if s == nil {
		return nil, noStep(b, stepID)
	}
	switch st := s.rec.GetStatus(); {
	case r.allowed != nil && !r.allowed[stepID]:
		return nil, outOfScope(r, stepID)
	case s.rec.GetWorkerPoolId() != r.rec.GetWorkerPoolId():
		return nil, fault.PermissionDenied.Newf("step %q belongs to pool %s, and run %s to pool %s", stepID, s.rec.GetWorkerPoolId(), r.rec.GetRunId(), r.rec.GetWorkerPoolId()).
			With("step_id", stepID).With("worker_pool_id", s.rec.GetWorkerPoolId())
	case held(st):
		return nil, fault.StepAlreadyClaimed.Newf("step %q is held by another run; query the steps again", stepID).With("step_id", stepID)
	case !mayStep(holder, st, stepClaimed):
		return nil, fault.StepState.Newf("step %q is %s; only ready steps can be claimed", stepID, word(st)).
			With("step_id", stepID).With("step_status", word(st))
	}
	f.claim(s, r.rec.GetRunId(), r.rec.GetWorkerId(), "")
	return f.events, nil
}

func notDispatchable(b *board) error {
	why := taskWord(b.status)
	if b.terminating != nil {
		why = "about to be " + taskWord(b.terminating.GetStatus())
	}
	return fault.BoardNotDispatchable.Newf("board %q is %s; nothing is dispatched or claimed", b.id, why).With("board_status", taskWord(b.status))
}
