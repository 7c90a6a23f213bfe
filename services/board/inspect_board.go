package board

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
	"quartet/services/board/patch"
)

// maxInspectedRuns is how many runs InspectBoard returns.
const maxInspectedRuns = 100

// InspectBoard returns what debugging a board needs (S2-160, S2-236, S2-474, SPEC B13).
func (s *Service) InspectBoard(ctx context.Context, req *boardv1.InspectBoardRequest) (*boardv1.InspectBoardResponse,
	error,
) {
	if err := fault.First(s.operate(ctx, "board_inspect", req.GetSessionId()), fault.Name("board_id", req.GetBoardId()),
		patch.OptionalName("wal_name", req.GetWalName())); err != nil {
		return nil, err
	}
	lines, err := checkPage(req.GetTimeline(), 0, 50)
	if err != nil {
		return nil, err
	}
	var k model.BoardKey
	session := sessionKey(ctx, req.GetSessionId())
	out, err := viewBoard(ctx, s, session, req.GetBoardId(), req.GetWalName(),
		func(st *model.State, b *model.Board) (*boardv1.InspectBoardResponse, error) {
			k = b.Key
			out := &boardv1.InspectBoardResponse{Board: b.WithDiagnostics(), Dispatches: b.OpenDispatches()}
			out.Runs, _ = st.RunsOf(b, maxInspectedRuns, false)
			for id, r := range b.Runs {
				if r.HoldsStep() {
					out.Dispatched = append(out.Dispatched, &boardv1.DispatchedStep{
						RunId: id, AtDispatch: r.Step.AtClaim,
						Now:                  b.ShownStep(r.Step, s.leases.Expiry(session.Namespace)),
						UpdatedAfterDispatch: contentChanged(r.Step.AtClaim, r.Step.Record),
					})
				}
			}
			slices.SortFunc(out.Dispatched, func(x, y *boardv1.DispatchedStep) int {
				return cmp.Compare(x.GetRunId(), y.GetRunId())
			})
			return out, nil
		})
	if err != nil {
		return nil, err
	}
	after := max(0, out.GetBoard().GetRevision()-int64(lines))
	p, err := s.readLines(ctx, k, after, lines)
	if err != nil && !errors.Is(err, fault.HistoryRemoved) { // without its log the rest is there
		return nil, err
	}
	if text := strings.TrimSuffix(string(p.lines), "\n"); text != "" {
		out.Timeline = strings.Split(text, "\n")
	}
	return out, nil
}

// contentChanged reports whether the orchestrator changed a step since it was claimed.
func contentChanged(then, now *boardv1.Step) bool {
	content := func(s *boardv1.Step) *boardv1.Step {
		return &boardv1.Step{
			Title: s.GetTitle(), Summary: s.GetSummary(), DependsOnStepIds: s.GetDependsOnStepIds(),
			Required: s.GetRequired(), WorkerPoolId: s.GetWorkerPoolId(),
		}
	}
	return !proto.Equal(content(then), content(now))
}
