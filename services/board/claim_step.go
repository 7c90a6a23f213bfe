package board

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/services/board/model"
	"quartet/services/board/patch"
	"quartet/services/board/rules"
)

// ClaimStep assigns a ready step to the calling run: the named one or, if none is named, the
// first that it may claim; no_step_claimed says that there is none (S2-376 to S2-395).
func (s *Service) ClaimStep(ctx context.Context, req *boardv1.ClaimStepRequest) (*boardv1.ClaimStepResponse, error) {
	actor, err := runner(ctx, "board_claim_step")
	if err := fault.First(err, fault.RequestID(req.GetRequestId()), fault.Name("session_id", req.GetSessionId()),
		fault.Name("board_id", req.GetBoardId()), patch.OptionalName("step_id", req.GetStepId())); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.do(ctx, change{
		method: "ClaimStep", session: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		mayBeEnded: true,
		decide: func(st *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
			r, err := st.CallerRun(b, actor.RunID)
			if err != nil {
				return nil, err
			}
			return rules.DecideClaim(b, r, req.GetStepId(), env)
		},
	})
	if err != nil {
		return nil, err
	}
	resp := &boardv1.ClaimStepResponse{EventIds: out.ids, NoStepClaimed: len(out.events) == 0}
	if resp.NoStepClaimed {
		return resp, nil
	}
	resp.Step, err = viewBoard(ctx, s, k, req.GetBoardId(), "", func(_ *model.State, b *model.Board) (*boardv1.Step,
		error,
	) {
		if st := b.Steps[out.events[0].StepID]; st != nil {
			return b.ShownStep(st, s.leases.Expiry(k.Namespace)), nil
		}
		return nil, model.NoStep(b, out.events[0].StepID)
	})
	return resp, plane.Stored(err)
}
