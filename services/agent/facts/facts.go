package facts

import (
	"context"
	"fmt"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
)

// GetFacts reads the facts that the scheduler decides by (SPEC D1): of one agent, or a
// page of all agents of all namespaces.
func (s *Service) GetFacts(ctx context.Context, req *agentv1.GetFactsRequest) (*agentv1.GetFactsResponse, error) {
	if req.GetAgentId() != "" {
		actor := rpc.ActorFrom(ctx)
		if req.GetAhead() {
			ctx = journal.Ahead(ctx, s.engine.For(actor.Namespace, req.GetAgentId()))
		}
		f, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (*agentv1.AgentFacts, error) {
			a, err := st.Find(actor.Namespace, req.GetAgentId())
			if err != nil {
				return nil, err
			}
			f := a.Facts()
			if a.OpenTurn != nil {
				f.OpenTurn = a.OpenTurn.Record
			}
			f.ReadyAhead, f.LoadId = st.ReadyAhead(a), string(st.LoadID)
			return f, nil
		})
		if err != nil {
			return nil, err
		}
		k := plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}
		f.RunnersWaiting = int32(s.waiters.Count(k, f.GetAgent()))
		if f.GetOpenTurn() != nil {
			if until, ok := s.leases.Expiry(k, f.GetOpenTurn().GetRunId()); ok {
				f.OpenTurn = runners.WithExpiry(f.GetOpenTurn(), until)
			}
		}
		return &agentv1.GetFactsResponse{Facts: []*agentv1.AgentFacts{f}}, nil
	}
	return s.listFacts(ctx, req)
}

const (
	// mostEvicted is how many agents that are not in memory a page reads at most: the partition cannot write
	// meanwhile.
	mostEvicted = 100
	// mostSkipped is after how many agents that are left out, as no decision about them is pending, a page ends.
	mostSkipped = 10_000
)

func (s *Service) listFacts(ctx context.Context, req *agentv1.GetFactsRequest) (*agentv1.GetFactsResponse, error) {
	from, err := page.Position("facts", req.GetPageToken(), 3)
	if err != nil {
		return nil, err
	}
	part, after := 0, plane.Key{}
	if from != nil {
		if _, err := fmt.Sscanf(from[0], "%d", &part); err != nil || part >= len(s.engine.All()) || part < 0 {
			return nil, fault.CursorInvalid.Newf("page_token %q was not made by this list", req.GetPageToken())
		}
		after = plane.Key{Namespace: from[1], ID: from[2]}
	}
	resp, _, err := journal.View(ctx, s.engine.All()[part], func(st *state.State) (*agentv1.GetFactsResponse, error) {
		resp := &agentv1.GetFactsResponse{}
		var last plane.Key
		read, skipped := 0, 0
		st.IDs.AscendGreaterOrEqual(after, func(k plane.Key) bool {
			if k == after {
				return true
			}
			lifecycle, evicted := st.Evicted(k)
			if len(resp.GetFacts()) == page.MaxSize || evicted && read == mostEvicted || skipped == mostSkipped {
				resp.NextPageToken = page.Token("facts", fmt.Sprint(part), last.Namespace, last.ID)
				return false
			}
			last = k
			if req.GetPendingOnly() && !st.DecisionPending(k) {
				skipped++
				return true
			}
			if evicted {
				if lifecycle == agentv1.Lifecycle_LIFECYCLE_DELETED {
					return true
				}
				read++
			}
			a := st.Lookup(k)
			if a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED {
				return true // no decision is ever made for a deleted agent
			}
			resp.Facts = append(resp.Facts, a.Facts())
			return true
		})
		return resp, nil
	})
	if err == nil && resp.GetNextPageToken() == "" && part+1 < len(s.engine.All()) {
		resp.NextPageToken = page.Token("facts", fmt.Sprint(part+1), "", "")
	}
	return resp, err
}
