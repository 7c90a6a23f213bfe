package briefs

import (
	"context"
	"strconv"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/ref"
	"quartet/services/agent/state"
)

// ListBriefs reads an agent's briefs, newest first (SPEC C3). WatchEvents reports new
// ones as brief_written.
func (s *Service) ListBriefs(ctx context.Context, req *agentv1.ListBriefsRequest) (*agentv1.ListBriefsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	if _, ok := agentv1.BriefKind_name[int32(req.GetKind())]; !ok {
		return nil, fault.Invalid("kind", strconv.Itoa(int(req.GetKind())), "must be a kind of brief")
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	before, err := access.PageBefore("briefs", req.GetPageToken())
	if err != nil {
		return nil, err
	}
	k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
	type found struct {
		numbers []int
		at      []uint64
		more    bool
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		a, err := st.Find(k.Namespace, k.ID)
		if err != nil {
			return found{}, err
		}
		var f found
		for n := len(a.Briefs) - 1; n >= 0; n-- {
			b := a.Briefs[n]
			if before >= 0 && n >= before || req.GetWorkItemId() != "" && b.ItemID != req.GetWorkItemId() || req.GetKind() != 0 && b.Kind != req.GetKind() {
				continue
			}
			if len(f.at) == size {
				f.more = true
				break
			}
			f.numbers, f.at = append(f.numbers, n), append(f.at, b.WalSeq)
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	resp := &agentv1.ListBriefsResponse{}
	bytes := 0
	for i := range f.at {
		events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), f.at[i:i+1])
		if err != nil {
			return nil, err
		}
		p, ok := events[0].Payload.(*agentv1.BriefWritten)
		if !ok {
			return nil, fault.InternalError.Newf("wal_seq %d is no brief", f.at[i])
		}
		if bytes += proto.Size(p.GetBrief()); i > 0 && bytes > page.MaxBytes {
			f.more, f.numbers = true, f.numbers[:i]
			break
		}
		resp.Briefs = append(resp.Briefs, p.GetBrief())
	}
	if f.more {
		resp.NextPageToken = page.Token("briefs", strconv.Itoa(f.numbers[len(f.numbers)-1]))
	}
	return resp, nil
}
