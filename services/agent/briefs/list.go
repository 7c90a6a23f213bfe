package briefs

import (
	"context"
	"iter"
	"slices"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// ListBriefs reads an agent's briefs, newest first (SPEC C3). WatchEvents reports new
// ones as brief_written.
func (s *Service) ListBriefs(ctx context.Context, req *agentv1.ListBriefsRequest) (*agentv1.ListBriefsResponse, error) {
	list := access.Newest[*state.State, *agentv1.Brief]{
		Kind: "briefs", MaxBytes: page.MaxBytes,
		Entries: func(st *state.State) (iter.Seq2[int, []uint64], error) {
			a, err := st.Find(rpc.ActorFrom(ctx).Namespace, req.GetAgentId())
			if err != nil {
				return nil, err
			}
			return func(yield func(int, []uint64) bool) {
				for n, b := range slices.Backward(a.Briefs) {
					matches := (req.GetWorkItemId() == "" || b.ItemID == req.GetWorkItemId()) &&
						(req.GetKind() == 0 || b.Kind == req.GetKind())
					if matches && !yield(n, []uint64{b.WalSeq}) {
						return
					}
				}
			}, nil
		},
		Read: func(events []*journal.Event) (*agentv1.Brief, error) {
			p, ok := events[0].Payload.(*agentv1.BriefWritten)
			if !ok {
				return nil, fault.InternalError.Newf("wal_seq %d is no brief", events[0].WalSeq)
			}
			return p.GetBrief(), nil
		},
	}
	briefs, next, removed, err := list.Page(ctx, s.engine, req)
	if err != nil {
		return nil, err
	}
	return &agentv1.ListBriefsResponse{Briefs: briefs, NextPageToken: next, HistoryRemoved: removed}, nil
}
