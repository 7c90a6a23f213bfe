package board

import (
	"cmp"
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/patch"
	"quartet/services/board/rules"
)

// CreateBoard creates a board with all of its steps (S2-303 to S2-308, SPEC B3).
func (s *Service) CreateBoard(ctx context.Context, req *boardv1.CreateBoardRequest) (*boardv1.CreateBoardResponse,
	error,
) {
	if err := fault.First(
		s.orchestrate(ctx, "board_create", req.GetSessionId()),
		fault.RequestID(req.GetRequestId()),
		fault.Name("board_id", req.GetBoardId()),
		fault.Name("wal_name", req.GetWalName()),
		fault.Text("title", req.GetTitle(), patch.MaxTitle, true),
		fault.NotBlank("title", req.GetTitle()),
		fault.TextBytes("summary", req.GetSummary(), fault.MaxFreeTextBytes, false),
		patch.OptionalName("default_worker_pool_id", req.GetDefaultWorkerPoolId()),
		fault.Entries("steps", len(req.GetSteps()), patch.MaxSteps),
	); err != nil {
		return nil, err
	}
	if len(req.GetSteps()) == 0 {
		return nil, fault.InvalidArgument.New("steps is empty; a board has at least one").
			WithField("steps", "must have an entry")
	}
	if err := fault.First(patch.CheckSteps("steps", req.GetSteps()), patch.CheckGraph(req.GetSteps())); err != nil {
		return nil, err
	}
	k := sessionKey(ctx, req.GetSessionId())
	bk := model.BoardKey{Namespace: k.Namespace, Session: k.ID, WAL: req.GetWalName()}
	idBytes := 0
	for _, in := range req.GetSteps() {
		idBytes += len(in.GetStepId())
	}
	if err := patch.CheckSize(bk, req.GetBoardId(), len(req.GetSteps()), idBytes); err != nil {
		return nil, err
	}
	actor := rpc.ActorFrom(ctx)
	out, err := plane.Do(ctx, s.engine, plane.Command[*model.State, written]{
		Method: "CreateBoard", AgentID: k.ID, RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *model.State, env journal.Env) (d journal.Decision[written], _ error) {
			d.Events = nil
			if err := st.CheckOwner(k); err != nil {
				return d, err
			}
			if err := st.CheckVacant(k, req.GetBoardId(), req.GetWalName()); err != nil {
				return d, err
			}
			d.Events = rules.DecideCreate(bk, req, cmp.Or(actor.AgentID, k.ID), actor.RunID)
			return d, nil
		},
		Answer: answerWritten,
	})
	if err != nil {
		return nil, err
	}
	b, err := viewBoard(ctx, s, k, req.GetBoardId(), req.GetWalName(),
		func(_ *model.State, b *model.Board) (*boardv1.Board, error) { return b.WithDiagnostics(), nil })
	if err != nil {
		return nil, plane.Stored(err)
	}
	return &boardv1.CreateBoardResponse{Board: b, EventIds: out.ids, EventsWritten: out.count}, nil
}
