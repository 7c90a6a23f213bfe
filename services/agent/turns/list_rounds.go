package turns

import (
	"context"
	"iter"

	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
	"quartet/services/agent/transcript"
)

// ListRounds reads an agent's rounds, newest first: all of them, or those of a turn or an
// item (SPEC C2).
func (s *Service) ListRounds(ctx context.Context, req *agentv1.ListRoundsRequest) (*agentv1.ListRoundsResponse, error) {
	list := access.Newest[*state.State, *agentv1.Round]{
		Kind: "rounds", MaxBytes: page.MaxBytes / 2,
		Entries: func(st *state.State) (iter.Seq2[int, []uint64], error) {
			a, err := st.Find(rpc.ActorFrom(ctx).Namespace, req.GetAgentId())
			if err != nil {
				return nil, err
			}
			return func(yield func(int, []uint64) bool) {
				for _, n := range a.Transcript.Select(req.GetTurnId(), req.GetWorkItemId()) {
					if !yield(n, a.Transcript.Round(n)) {
						return
					}
				}
			}, nil
		},
		Read: transcript.Fold,
	}
	rounds, next, removed, err := list.Page(ctx, s.engine, req)
	if err != nil {
		return nil, err
	}
	return &agentv1.ListRoundsResponse{Rounds: rounds, NextPageToken: next, HistoryRemoved: removed}, nil
}
