package fleet

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

const (
	// maxContains bounds the text that ids must contain, in characters. Ids have the same bound.
	maxContains = 128
	// maxChosen bounds the postures of a filter, and its reasons.
	maxChosen = 20
	// maxWaits is how many waits of one agent are returned at most, and maxWaitBytes how many bytes the waits of all
	// agents of a page have at most.
	maxWaits     = 10
	maxWaitBytes = 1 << 20
)

// attentions are all reasons, in the order of the enum.
var attentions = []fleetv1.Attention{
	fleetv1.Attention_ATTENTION_QUESTION, fleetv1.Attention_ATTENTION_QUARANTINED,
	fleetv1.Attention_ATTENTION_WEAK_WAIT,
	fleetv1.Attention_ATTENTION_STALLED_BOARD, fleetv1.Attention_ATTENTION_BLOCKED,
}

// filter says which agents are wanted.
type filter struct {
	postures   []agentv1.Posture
	attentions uint8 // bit n for the reason with number n; 0: all agents
	contains   string
	private    bool
}

// wants reports whether the filter selects an agent.
func (f *filter) wants(e *entry) bool {
	return f.wantsKind(e.kind()) && strings.Contains(e.id, f.contains)
}

// wantsKind reports whether the filter selects the agents of a kind whose ids contain f.contains.
func (f *filter) wantsKind(k kind) bool {
	return (f.private || !k.private) && (len(f.postures) == 0 || slices.Contains(f.postures, k.posture)) &&
		(f.attentions == 0 || k.attentions&f.attentions != 0)
}

// filterOf returns the filter of a request, or an error for the first field that is not valid.
func filterOf(req *fleetv1.SearchAgentsRequest) (filter, error) {
	f := filter{postures: req.GetPostures(), contains: req.GetContains(), private: req.GetIncludePrivate()}
	if err := fault.Entries("postures", len(req.GetPostures()), maxChosen); err != nil {
		return f, err
	}
	if err := fault.Entries("attentions", len(req.GetAttentions()), maxChosen); err != nil {
		return f, err
	}
	for i, p := range req.GetPostures() {
		if _, known := agentv1.Posture_name[int32(p)]; !known || p == agentv1.Posture_POSTURE_UNSPECIFIED {
			return f, fault.Invalid("postures["+strconv.Itoa(i)+"]", p.String(),
				"must be a posture, such as waiting_operator")
		}
	}
	for i, a := range req.GetAttentions() {
		if !slices.Contains(attentions, a) {
			return f, fault.Invalid("attentions["+strconv.Itoa(i)+"]", a.String(), "must be a reason, such as question")
		}
		f.attentions |= 1 << a
	}
	if n := len([]rune(f.contains)); n > maxContains {
		return f, fault.LimitExceeded.Newf("contains has %d characters; it may have %d", n, maxContains).
			WithField("contains", "may have 128 characters")
	}
	return f, nil
}

// SearchAgents finds agents in the index, and reads those of the page from the agent plane (SPEC G16). The response
// is marked as incomplete if the index is not current.
func (s *Service) SearchAgents(ctx context.Context, req *fleetv1.SearchAgentsRequest) (*fleetv1.SearchAgentsResponse,
	error,
) {
	f, err := filterOf(req)
	if err != nil {
		return nil, err
	}
	list, err := page.Read("fleet", req)
	if err != nil {
		return nil, err
	}
	x, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	current := x.await(ctx)
	namespace := rpc.ActorFrom(ctx).Namespace
	found, total, whole := x.search(namespace, f, list)
	resp := &fleetv1.SearchAgentsResponse{Total: int32(total), Incomplete: !whole || !current}
	if len(found) > list.Size {
		found = found[:list.Size]
		resp.NextPageToken = list.Next(found[len(found)-1].id)
	}
	size := 0 // of all waits
	as := rpc.WithActor(ctx, plane.ActorOf(*plane.System(namespace)))
	for _, e := range found {
		got, err := s.deps.Agents.GetAgent(as, &agentv1.GetAgentRequest{AgentId: e.id})
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		a := shown(e, got.GetAgent())
		if req.GetIncludeWaits() {
			for _, w := range got.GetWaits() {
				if size += proto.Size(w); len(a.GetWaits()) < maxWaits && size <= maxWaitBytes &&
					attentionOf(w, e.private) != 0 {
					a.Waits = append(a.Waits, w)
				}
			}
		}
		resp.Agents = append(resp.Agents, a)
	}
	return resp, nil
}

// search returns the agents of a page that a filter selects, and one more if there is another page; how many
// agents it selects in all; and whether the index is whole.
func (x *index) search(namespace string, f filter, list page.List) (found []entry, total int, whole bool) {
	x.mu.Lock()
	s := x.of(namespace)
	agents := s.agents.Clone() // cheap: the clones share nodes until one of them changes
	for k, n := range s.kinds {
		if f.wantsKind(k) {
			total += int(n)
		}
	}
	whole = x.whole
	x.mu.Unlock()
	if f.contains == "" {
		left := total // at least how many agents are still to be found, so that the search can stop early
		agents.AscendGreaterOrEqual(&entry{id: list.After}, func(e *entry) bool {
			if e.id != list.After && f.wants(e) {
				found = append(found, *e)
				left--
			}
			return len(found) <= list.Size && left > 0
		})
		return found, total, whole
	}
	total = 0
	agents.Ascend(func(e *entry) bool {
		if f.wants(e) {
			total++
			if e.id > list.After && len(found) <= list.Size {
				found = append(found, *e)
			}
		}
		return true
	})
	return found, total, whole
}

// shown returns an agent as the overview shows it: what it does according to a, which was read now, and why it
// needs a person according to e, its entry in the index.
func shown(e entry, a *agentv1.Agent) *fleetv1.FleetAgent {
	out := &fleetv1.FleetAgent{
		AgentId: a.GetAgentId(), Posture: a.GetPosture(), PostureReason: a.GetPostureReason(), Queued: a.GetLane().
				GetQueued(), Quarantined: a.GetLane().GetQuarantined(),
		CurrentWorkItemId: a.GetCurrentWorkItemId(), SupervisorAgentId: a.GetSupervisorAgentId(),
		UpdatedAt: a.GetUpdatedAt(),
	}
	for _, reason := range attentions {
		if e.needs(reason) {
			out.Attentions = append(out.Attentions, reason)
		}
	}
	return out
}

// CountAgents returns the counts of the caller's namespace in the index (SPEC G16). The response is marked as
// incomplete if the index is not current.
func (s *Service) CountAgents(ctx context.Context, req *fleetv1.CountAgentsRequest) (*fleetv1.CountAgentsResponse,
	error,
) {
	x, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	current := x.await(ctx)
	resp := x.counts(rpc.ActorFrom(ctx).Namespace, req.GetIncludePrivate())
	resp.Incomplete = resp.GetIncomplete() || !current
	return resp, nil
}

// counts returns the counts of a namespace; private says whether private agents are included.
func (x *index) counts(namespace string, private bool) *fleetv1.CountAgentsResponse {
	x.mu.Lock()
	defer x.mu.Unlock()
	resp := &fleetv1.CountAgentsResponse{Incomplete: !x.whole}
	var postures [32]int32
	var reasons [8]int32
	s := x.of(namespace)
	for k, n := range s.kinds {
		if k.private && !private {
			continue
		}
		resp.Agents += n
		postures[k.posture] += n
		if k.attentions != 0 {
			resp.NeedAttention += n
		}
		for _, reason := range attentions {
			if k.attentions&(1<<reason) != 0 {
				reasons[reason] += n
			}
		}
	}
	for p, n := range postures {
		if n > 0 {
			resp.Postures = append(resp.Postures, &fleetv1.PostureCount{Posture: agentv1.Posture(p), Agents: n})
		}
	}
	for _, reason := range attentions {
		if n := reasons[reason]; n > 0 {
			resp.Attentions = append(resp.Attentions, &fleetv1.AttentionCount{Attention: reason, Agents: n})
		}
	}
	resp.TurnsLastMinute, resp.InputTokensLastMinute, resp.OutputTokensLastMinute = s.rates.sum(x.deps.Clock.Now())
	return resp
}
