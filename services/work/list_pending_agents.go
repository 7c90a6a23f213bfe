package work

import (
	"context"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// lookedAt is how many agents ListPendingAgents looks at for a page.
const lookedAt = 10_000

// due says whether the work of an agent may call for a turn, so that the scheduler has to decide about it. It is part
// of the summary of an evicted agent.
type due struct {
	now     bool  // an item is runnable, or has deliveries that no turn has seen
	recheck int64 // when the earliest reminder is due, in microseconds; 0 without one
}

// due returns what may call for a turn of the agent.
func (a *agentWork) due() (d due) {
	if a.deleted {
		return due{}
	}
	d.now = a.classes[workv1.CandidateClass_CANDIDATE_CLASS_QUEUED_RUNNABLE].size()+
		a.classes[workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED].size() > 0
	a.rechecks.each(byRecheck, nil, func(rec *workv1.WorkItemRecord) bool {
		d.recheck = byRecheck.key(rec)
		return false
	})
	return d
}

// dueOf returns what may call for a turn of an agent that exists. It does not read an evicted one.
func (s *State) dueOf(k plane.Key) due {
	if left, evicted := s.ByOwner.Summary(k); evicted {
		return left.Plane.due
	}
	return s.ByOwner.Peek(k).due()
}

// pending looks at the agents in the order of their numbers, from first on and at most limit of them, and returns
// those whose work may call for a turn. next is the number with which to continue, 0 if all were looked at.
func (s *State) pending(first, limit int) (found []*workv1.PendingAgent, next int) {
	for n := first; n < s.Numbers.End(); n++ {
		if n-first == limit || len(found) == page.MaxSize {
			return found, n
		}
		k := s.Numbers.Key(uint32(n))
		if k == (plane.Key{}) { // no agent has this number
			continue
		}
		switch d := s.dueOf(k); {
		case d.now:
			found = append(found, &workv1.PendingAgent{Namespace: k.Namespace, AgentId: k.ID})
		case d.recheck != 0:
			found = append(found, &workv1.PendingAgent{
				Namespace: k.Namespace, AgentId: k.ID,
				RecheckAt: timestamppb.New(time.UnixMicro(d.recheck)),
			})
		}
	}
	return found, 0
}

// ListPendingAgents lists the agents whose work may call for a turn. Only services may call it. It may leave out an
// agent that is added while the list is read; the caller must learn of that one by its events.
func (s *Service) ListPendingAgents(ctx context.Context, req *workv1.ListPendingAgentsRequest) (
	*workv1.ListPendingAgentsResponse, error,
) {
	position, err := page.Position("pending-agents", req.GetPageToken(), 1)
	if err != nil {
		return nil, err
	}
	first := 0
	if position != nil {
		if first, err = strconv.Atoi(position[0]); err != nil || first < 0 {
			return nil, fault.CursorInvalid.Newf("page_token %q was not made by this list", req.GetPageToken())
		}
	}
	parts := s.engine.All()
	partition := slices.IndexFunc(parts, func(p *journal.Partition[*State]) bool {
		return p.Index() == int(req.GetPartition())
	})
	if partition < 0 {
		return nil, fault.Invalid("partition", strconv.Itoa(int(req.GetPartition())),
			"must be the number of a partition of the work plane")
	}
	next := 0
	found, _, err := journal.View(ctx, parts[partition], func(st *State) (found []*workv1.PendingAgent, _ error) {
		found, next = st.pending(first, lookedAt)
		return found, nil
	})
	if err != nil {
		return nil, err
	}
	resp := &workv1.ListPendingAgentsResponse{Agents: found}
	if next > 0 {
		resp.NextPageToken = page.Token("pending-agents", strconv.Itoa(next))
	}
	return resp, nil
}
