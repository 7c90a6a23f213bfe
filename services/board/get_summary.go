package board

import (
	"context"
	"slices"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/rpc"
	"quartet/services/board/model"
	"quartet/services/board/patch"
)

// Bounds of a summary's budget, in tokens.
const (
	minBudget = 100
	maxBudget = 100_000
)

// recentChanges is how many of the newest changes a summary names.
const recentChanges = 10

// GetSummary renders a session's active boards for a prompt (S2-464 to S2-473, SPEC B14). A
// run gets its own board only.
func (s *Service) GetSummary(ctx context.Context, req *boardv1.GetSummaryRequest) (*boardv1.GetSummaryResponse, error) {
	runID, err := s.reader(ctx, "board_list", req.GetSessionId())
	if err := fault.First(err, patch.OptionalName("worker_id", req.GetWorkerId()),
		patch.OptionalName("worker_pool_id", req.GetWorkerPoolId())); err != nil {
		return nil, err
	}
	budget := int(req.GetTokenBudget())
	switch {
	case budget == 0:
		budget = s.cfg.TokenBudget
	case budget < minBudget || budget > maxBudget:
		return nil, fault.LimitExceeded.Newf("token_budget is %d; it must be %d to %d", budget, minBudget, maxBudget).
			WithField("token_budget", "must be 100 to 100000")
	}
	k := sessionKey(ctx, req.GetSessionId())
	if err := s.leases.ExpireSession(ctx, k); err != nil {
		return nil, err
	}
	var recent []uint64
	m, err := viewSession(ctx, s, k, func(st *model.State) (summaryMaterial, error) {
		m := summaryMaterial{Worker: req.GetWorkerId(), Pool: req.GetWorkerPoolId()}
		recent = nil
		var only *model.Board
		if runID != "" {
			r := st.Runs[model.Key{Namespace: k.Namespace, ID: runID}]
			if r == nil || r.Board.Key.Session != k.ID {
				return m, model.RunEnded(runID)
			}
			m.Run = r
			only, m.Worker, m.Pool = r.Board, rpc.ActorFrom(ctx).AgentID, r.Record.GetWorkerPoolId()
		}
		se := st.Sessions[k]
		if se == nil {
			return m, nil
		}
		for _, b := range se.Order {
			if b.Damaged == nil && (only == nil || b == only) {
				m.Add(b)
				recent = append(recent, b.LinePositions(max(0, b.Lines-recentChanges), recentChanges)...)
			}
		}
		return m, nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(recent)
	recent = recent[max(0, len(recent)-recentChanges):]
	if m.Recent, err = journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), recent); err != nil {
		return nil, err
	}
	m.Recent = slices.DeleteFunc(m.Recent, func(ev *journal.Event) bool { return ev.Removed() || m.Hidden[ev.StepID] })
	text, truncated := m.Render(budget * tokenBytes)
	return &boardv1.GetSummaryResponse{
		Text: text, Tokens: int32(((len(text) + tokenBytes - 1) / tokenBytes) & (1<<31 - 1)),
		Truncated: truncated,
	}, nil
}
