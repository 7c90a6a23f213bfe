package top

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/retry"
)

const (
	// maxAgents is how many agents are listed at most, and pageSize how many are read at once. One reading is a count
	// and at most six pages.
	maxAgents, pageSize = 2000, 500
	// readTerm bounds one reading.
	readTerm = 10 * time.Second
	// shownTasks is how many running tasks of an agent are shown.
	shownTasks = 10
)

// reader reads what is shown.
type reader struct{ conn grpc.ClientConnInterface }

// fleet reads the agents to show. If there are more than maxAgents, it reads the counts and at most maxAgents agents:
// those that are not idle and, if there is room, idle ones. Unless contains is empty, it also reads up to pageSize
// agents whose id contains it. If there are at most maxAgents, or they cannot be counted, it ignores contains and
// reads agents in order of id, see first.
func (r reader) fleet(ctx context.Context, contains string) (fleet, error) {
	count, err := fleetv1.NewFleetServiceClient(r.conn).CountAgents(ctx, &fleetv1.CountAgentsRequest{})
	if err != nil || count.GetAgents() <= maxAgents { // also if the caller may only list them
		return r.first(ctx)
	}
	out := fleet{counts: count, more: true}
	seen := map[string]bool{}
	search := func(req *fleetv1.SearchAgentsRequest, limit int) error {
		for req.PageSize = pageSize; limit > 0; {
			resp, err := fleetv1.NewFleetServiceClient(r.conn).SearchAgents(ctx, req)
			if err != nil {
				return err
			}
			for _, a := range resp.GetAgents()[:min(limit, len(resp.GetAgents()))] {
				if !seen[a.GetAgentId()] {
					seen[a.GetAgentId()] = true
					out.agents = append(out.agents, agentOf(a))
				}
			}
			limit -= len(resp.GetAgents())
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
		}
		return nil
	}
	var busy, idle []agentv1.Posture
	for _, k := range ranks {
		if k.posture == agentv1.Posture_POSTURE_IDLE {
			idle = append(idle, k.posture)
		} else {
			busy = append(busy, k.posture)
		}
	}
	if err := search(&fleetv1.SearchAgentsRequest{Postures: busy}, maxAgents); err != nil {
		return fleet{}, err
	}
	if err := search(&fleetv1.SearchAgentsRequest{Postures: idle}, maxAgents-len(out.agents)); err != nil {
		return fleet{}, err
	}
	if contains != "" {
		err = search(&fleetv1.SearchAgentsRequest{Contains: contains}, pageSize)
	}
	return out, err
}

// agentOf returns what is shown in the list of a found agent.
func agentOf(a *fleetv1.FleetAgent) *agentv1.Agent {
	return &agentv1.Agent{
		AgentId: a.GetAgentId(), Posture: a.GetPosture(), PostureReason: a.GetPostureReason(),
		CurrentWorkItemId: a.GetCurrentWorkItemId(),
		Lane:              &agentv1.Lane{Queued: a.GetQueued(), Quarantined: a.GetQuarantined()},
	}
}

// first reads agents in order of id until it has maxAgents or there are no more, and says whether there are more.
func (r reader) first(ctx context.Context) (fleet, error) {
	var out fleet
	token := ""
	for {
		resp, err := agentv1.NewAgentServiceClient(r.conn).
			ListAgents(ctx, &agentv1.ListAgentsRequest{PageSize: pageSize, PageToken: token})
		if err != nil {
			return out, err
		}
		out.agents = append(out.agents, resp.GetAgents()...)
		token = resp.GetNextPageToken()
		if token == "" || len(out.agents) >= maxAgents {
			out.more = token != ""
			return out, nil
		}
	}
}

// detail reads one agent. What the caller may not read is missing in it.
func (r reader) detail(ctx context.Context, agentID string) (*detail, error) {
	got, err := agentv1.NewAgentServiceClient(r.conn).GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: agentID})
	if err != nil {
		return nil, err
	}
	out := &detail{agent: got.GetAgent()}
	var errs [3]error
	out.queue, errs[0] = workv1.NewWorkServiceClient(r.conn).GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{
		AgentId: agentID, OmitPlans: true,
	})
	out.explain, errs[1] = schedulerv1.NewSchedulerServiceClient(r.conn).
		Explain(ctx, &schedulerv1.ExplainRequest{AgentId: agentID})
	tasks, err := taskv1.NewTaskServiceClient(r.conn).
		ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: agentID, PageSize: shownTasks})
	out.tasks, errs[2] = tasks.GetTasks(), err
	for _, err := range slices.Backward(errs[:]) {
		if err != nil && !errors.Is(err, fault.PermissionDenied) {
			return nil, err
		}
	}
	return out, nil
}

// watch calls changed for each event until ctx ends. When the connection is lost it calls lost, waits, and calls
// changed before it connects again.
func (r reader) watch(ctx context.Context, changed func(), lost func(error)) {
	const first, last = 100 * time.Millisecond, 5 * time.Second
	pacer := retry.New(first, last)
	for ctx.Err() == nil {
		stream, err := eventv1.NewEventServiceClient(r.conn).WatchEvents(ctx, &eventv1.WatchEventsRequest{})
		for err == nil {
			var m *eventv1.WatchEventsResponse
			if m, err = stream.Recv(); err == nil {
				pacer.Reset()
				if m.GetEvent() != nil {
					changed()
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
		lost(err)
		if pacer.Wait(ctx) != nil {
			return
		}
		changed()
	}
}
