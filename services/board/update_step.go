package board

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// UpdateStep changes the status of a step, as a report of the run that holds it or as
// the orchestrator (S2-396 to S2-414, SPEC B7).
func (s *Service) UpdateStep(ctx context.Context, req *boardv1.UpdateStepRequest) (*boardv1.UpdateStepResponse, error) {
	runID := ""
	var err error
	if rpc.ActorFrom(ctx).Role == rpc.RoleWorker {
		runID, err = s.reader(ctx, "board_update_step", req.GetSessionId())
	} else {
		err = s.orchestrate(ctx, "board_update_step", req.GetSessionId())
	}
	if err := fault.First(err, fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()),
		fault.Name("step_id", req.GetStepId()),
		rules.CheckResult(req.GetResultSummary(), req.GetArtifactIds(), req.GetReason())); err != nil {
		return nil, err
	}
	if req.GetStatus() == 0 {
		return nil, fault.Invalid("status", req.GetStatus().String(), "must be a status of steps")
	}
	rep := rules.Report{
		Status: req.GetStatus(), Summary: req.ResultSummary, Artifacts: req.GetArtifactIds(),
		Reason: req.GetReason(),
	}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.do(ctx, change{
		method: "UpdateStep", session: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		decide: func(st *model.State, b *model.Board, env journal.Env) ([]*journal.Event, error) {
			r, err := st.CallerRun(b, runID)
			if err != nil {
				return nil, err
			}
			f := rules.NewTransition(b, env)
			if r == nil {
				err = f.Revise(req.GetStepId(), rep)
			} else {
				var own *model.Step
				if own, err = f.HeldStep(r, req.GetStepId()); err == nil {
					_, err = f.Report(r, own, rep)
				}
			}
			f.FollowUps()
			return f.Events, err
		},
	})
	if err != nil {
		return nil, err
	}
	resp := &boardv1.UpdateStepResponse{EventIds: out.ids}
	_, err = viewBoard(ctx, s, k, req.GetBoardId(), "", func(_ *model.State, b *model.Board) (struct{}, error) {
		resp.Board = b.Overview()
		if st := b.Steps[req.GetStepId()]; st != nil {
			resp.Step = b.ShownStep(st, s.leases.Expiry(k.Namespace))
		}
		return struct{}{}, nil
	})
	return resp, plane.Stored(err)
}
