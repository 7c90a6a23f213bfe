package board

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
)

// UpdateStep reports on a step: as the run that holds it, or as the
// orchestrator (S2-396 to S2-414, SPEC B7).
func (s *Service) UpdateStep(ctx context.Context, req *boardv1.UpdateStepRequest) (*boardv1.UpdateStepResponse, error) {
	runID := ""
	var err error
	if rpc.ActorFrom(ctx).Role == rpc.RoleWorker {
		runID, err = s.reader(ctx, "agent.task_update_step", req.GetSessionId())
	} else {
		err = s.orchestrate(ctx, "agent.task_update_step", req.GetSessionId())
	}
	if err := fault.First(err, fault.RequestID(req.GetRequestId()), fault.Name("board_id", req.GetBoardId()), fault.Name("step_id", req.GetStepId()),
		checkResult(req.GetResultSummary(), req.GetArtifactIds(), req.GetReason())); err != nil {
		return nil, err
	}
	if _, known := boardv1.StepStatus_name[int32(req.GetStatus())]; !known || req.GetStatus() == 0 {
		return nil, fault.Invalid("status", req.GetStatus().String(), "must be where the step stands now")
	}
	rep := report{status: req.GetStatus(), summary: req.ResultSummary, artifacts: req.GetArtifactIds(), reason: req.GetReason()}
	k := sessionKey(ctx, req.GetSessionId())
	out, err := s.change(ctx, change{
		method: "UpdateStep", k: k, board: req.GetBoardId(), requestID: req.GetRequestId(), args: req,
		decide: func(st *State, b *board, env journal.Env) ([]*journal.Event, error) {
			r, err := st.seen(b, runID)
			if err != nil {
				return nil, err
			}
			f := newFlow(b, env)
			if r == nil {
				err = f.reviseByID(req.GetStepId(), rep)
			} else {
				var own *step
				if own, err = f.own(r, req.GetStepId()); err == nil {
					_, err = f.take(r, own, rep)
				}
			}
			f.settle()
			return f.events, err
		},
	})
	if err != nil {
		return nil, err
	}
	resp := &boardv1.UpdateStepResponse{EventIds: out.ids}
	_, err = view(ctx, s, k, req.GetBoardId(), "", func(_ *State, b *board) (struct{}, error) {
		resp.Board = b.summarized()
		if st := b.steps[req.GetStepId()]; st != nil {
			resp.Step = b.shown(st)
		}
		return struct{}{}, nil
	})
	return resp, err
}

// reviseByID is the orchestrator's own report.
func (f *flow) reviseByID(stepID string, rep report) error {
	if err := f.b.changeable(); err != nil {
		return err
	}
	s := f.b.steps[stepID]
	if s == nil {
		return noStep(f.b, stepID)
	}
	return f.revise(s, rep)
}
