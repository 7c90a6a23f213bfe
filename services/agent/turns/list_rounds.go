package turns

import (
	"context"
	"strconv"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/ref"
	"quartet/services/agent/state"
	"quartet/services/agent/transcript"
)

// ListRounds reads an agent's rounds, newest first: all of them, or those of a turn or an
// item (SPEC C2).
func (s *Service) ListRounds(ctx context.Context, req *agentv1.ListRoundsRequest) (*agentv1.ListRoundsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	size, err := page.Size(req.GetPageSize(), 0)
	if err != nil {
		return nil, err
	}
	before, err := access.PageBefore("rounds", req.GetPageToken())
	if err != nil {
		return nil, err
	}
	k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
	type found struct {
		numbers     []int
		coordinates [][]uint64
		more        bool
	}
	f, _, err := plane.View(ctx, s.engine, k.ID, func(st *state.State) (found, error) {
		a, err := st.Find(k.Namespace, k.ID)
		if err != nil {
			return found{}, err
		}
		var f found
		for _, n := range a.Transcript.Select(req.GetTurnId(), req.GetWorkItemId()) {
			if before >= 0 && n >= before {
				continue
			}
			if len(f.numbers) == size {
				f.more = true
				break
			}
			f.numbers = append(f.numbers, n)
			f.coordinates = append(f.coordinates, a.Transcript.Round(n))
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	resp := &agentv1.ListRoundsResponse{}
	bytes := 0
	for i := range f.numbers {
		// One at a time: a page of 500 rounds may be larger than its bound.
		rounds, err := transcript.Read(ctx, s.engine.For(k.Namespace, k.ID), f.coordinates[i:i+1])
		if err != nil {
			return nil, err
		}
		bytes += proto.Size(rounds[0])
		if i > 0 && bytes > page.MaxBytes/2 {
			f.more = true
			f.numbers = f.numbers[:i]
			break
		}
		resp.Rounds = append(resp.Rounds, rounds[0])
	}
	if f.more {
		resp.NextPageToken = page.Token("rounds", strconv.Itoa(f.numbers[len(f.numbers)-1]))
	}
	return resp, nil
}
