package directory

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/staletick"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
)

// ShownWaits is how many waits GetAgent lists; ListWaits lists all of them.
const ShownWaits = 100

// GetAgent reads an agent with its posture, its waits and its children (SPEC A4). It
// wakes nobody (SPEC X11).
func (s *Service) GetAgent(ctx context.Context, req *agentv1.GetAgentRequest) (*agentv1.GetAgentResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.Name("agent_id", req.GetAgentId()); err != nil {
		return nil, err
	}
	type seen struct {
		rec         *agentv1.Agent
		lane        lanes
		delegations []*agentv1.Delegation
	}
	a, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (seen, error) {
		a := st.Lookup(plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()})
		if own := a != nil && a.Record.GetSupervisorAgentId() == actor.AgentID; !own {
			// An agent may read itself and its children, and must not learn which others
			// exist.
			if err := rpc.CheckAgent(actor, req.GetAgentId()); err != nil {
				return seen{}, err
			}
		}
		a, err := st.Find(actor.Namespace, req.GetAgentId())
		if err != nil {
			return seen{}, err
		}
		out := seen{rec: a.Record, lane: lanesOf(a)}
		for _, d := range a.Delegations {
			out.delegations = append(out.delegations, d.Record)
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	view, waits, err := s.derive(ctx, a.rec, a.lane)
	if err != nil {
		return nil, err
	}
	resp := &agentv1.GetAgentResponse{
		Agent: view, Waits: waits[:min(len(waits), ShownWaits)],
		TotalWaits: int32(len(waits)),
	}
	for _, d := range a.delegations {
		child, err := s.recordOf(ctx, plane.Key{Namespace: actor.Namespace, ID: d.GetChildAgentId()})
		if err != nil {
			return nil, err
		}
		if child != nil && child.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_DELETED {
			resp.Children = append(resp.Children, child)
		}
	}
	return resp, nil
}

// lanes is what derive needs of an agent's state beside its record: the counts of its lane, the facts
// that decide whether a tick at the head of the lane is stale, and the children that ask a question.
type lanes struct {
	counts *agentv1.Lane
	tick   *agentv1.Tick // the tick at the head of the lane; nil if there is another message or none
	wake   *agentv1.AgentWoken
	// stalled are the items about which turns made no progress.
	stalled []*agentv1.StalledItem
	asking  []*agentv1.Delegation // whose children ask something
}

func lanesOf(a *state.Agent) lanes {
	return lanes{a.Lane.Counts(), a.Lane.Head().GetTick(), a.Wake, a.Stalled(), a.AskingChildren()}
}

// recordOf returns an agent's record, or nil if the agent does not exist.
func (s *Service) recordOf(ctx context.Context, k plane.Key) (*agentv1.Agent, error) {
	rec, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), func(st *state.State) (*agentv1.Agent, error) {
		if a := st.Lookup(k); a != nil {
			return a.Record, nil
		}
		return nil, nil
	})
	return rec, err
}

// derive completes an agent's record with what follows from the other planes (SPEC X6),
// and returns all its active waits and interests in order of creation.
func (s *Service) derive(ctx context.Context, rec *agentv1.Agent, lane lanes) (*agentv1.Agent, []*waitingv1.Wait,
	error,
) {
	// Who may read the agent may read its posture, so the other planes are read as this
	// plane itself.
	ctx = rpc.WithActor(ctx, plane.ActorOf(*plane.System(rpc.ActorFrom(ctx).Namespace)))
	queue, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{
		AgentId: rec.GetAgentId(), OmitPlans: true, WorkItemIds: []string{lane.tick.GetWorkItemId()},
	})
	if err != nil {
		return nil, nil, err
	}
	all, err := access.AllWaits(ctx, s.deps.Waiting, &waitingv1.ListWaitsRequest{AgentId: rec.GetAgentId()})
	if err != nil {
		return nil, nil, err
	}
	var own []*waitingv1.Wait
	for _, w := range all.GetWaits() {
		if w.GetWorkItemId() == "" && w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
			own = append(own, w)
		}
	}
	view := proto.CloneOf(rec)
	view.Lane = lane.counts
	view.CurrentWorkItemId = queue.GetCurrent().GetWorkItemId()
	stale := staletick.Reason(lane.tick, staletick.Facts{
		WakePending: lane.wake != nil, WakeWaits: lane.wake.GetWaitIds(), LastTurnID: rec.GetLastTurnId(), Queue: queue,
		Stalled: lane.stalled,
		OwnTriggered: slices.ContainsFunc(all.GetWaits(), func(w *waitingv1.Wait) bool {
			return w.GetWorkItemId() == "" && w.GetTriggered()
		}),
	})
	view.Posture, view.PostureReason = derivePosture(rec, lane.counts, stale != "", queue, own, lane.asking)
	return view, all.GetWaits(), nil
}

// ListAgents reads the agents of the namespace in order of id (SPEC A4); for an agent,
// those that it spawned.
func (s *Service) ListAgents(ctx context.Context, req *agentv1.ListAgentsRequest) (*agentv1.ListAgentsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	parent := req.GetLineageParentAgentId()
	if actor.Role == rpc.RoleAgent {
		if parent != "" && parent != actor.AgentID {
			return nil, rpc.CheckAgent(actor, parent)
		}
		parent = actor.AgentID
	}
	list, err := page.Read("agents", req)
	if err != nil {
		return nil, err
	}
	after := plane.Key{Namespace: actor.Namespace, ID: list.After}
	type found struct {
		rec  *agentv1.Agent
		lane lanes
	}
	var all []found
	for _, p := range s.engine.All() {
		part, _, err := journal.View(ctx, p, func(st *state.State) ([]found, error) {
			var out []found
			st.IDs.AscendGreaterOrEqual(after, func(k plane.Key) bool {
				if k.Namespace != actor.Namespace || len(out) > list.Size {
					return false
				}
				a := st.Lookup(k)
				private := a.Record.GetVisibility() == agentv1.Visibility_VISIBILITY_PRIVATE
				deleted := a.Record.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED
				if k != after && (req.GetIncludePrivate() || !private) && (req.GetIncludeDeleted() || !deleted) &&
					(parent == "" || a.Record.GetLineageParentAgentId() == parent) {
					out = append(out, found{a.Record, lanesOf(a)})
				}
				return true
			})
			return out, nil
		})
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	slices.SortFunc(all, func(a, b found) int { return strings.Compare(a.rec.GetAgentId(), b.rec.GetAgentId()) })
	resp := &agentv1.ListAgentsResponse{}
	if len(all) > list.Size {
		all = all[:list.Size]
		resp.NextPageToken = list.Next(all[list.Size-1].rec.GetAgentId())
	}
	for _, a := range all {
		view, _, err := s.derive(ctx, a.rec, a.lane)
		if err != nil {
			return nil, err
		}
		resp.Agents = append(resp.Agents, view)
	}
	return resp, nil
}
