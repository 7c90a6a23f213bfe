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
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/retry"
)

const (
	// maxAgents is how many agents are read at most, and pageSize how many at once.
	maxAgents, pageSize = 2000, 500
	// readTerm bounds one reading.
	readTerm = 10 * time.Second
	// shownTasks is how many running tasks of an agent are shown.
	shownTasks = 10
)

// reader reads what is shown.
type reader struct{ conn grpc.ClientConnInterface }

// fleet reads the first agents in order of id, and whether there are more.
func (r reader) fleet(ctx context.Context) (fleet, error) {
	var out fleet
	token := ""
	for {
		resp, err := agentv1.NewAgentServiceClient(r.conn).ListAgents(ctx, &agentv1.ListAgentsRequest{PageSize: pageSize, PageToken: token})
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
	out.queue, errs[0] = workv1.NewWorkServiceClient(r.conn).GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{AgentId: agentID, OmitPlans: true})
	out.explain, errs[1] = schedulerv1.NewSchedulerServiceClient(r.conn).Explain(ctx, &schedulerv1.ExplainRequest{AgentId: agentID})
	tasks, err := taskv1.NewTaskServiceClient(r.conn).ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: agentID, PageSize: shownTasks})
	out.tasks, errs[2] = tasks.GetTasks(), err
	for _, err := range slices.Backward(errs[:]) {
		if err != nil && !errors.Is(err, fault.PermissionDenied) {
			return nil, err
		}
	}
	return out, nil
}

// watch calls changed for each event, and after a connection was made again, until ctx ends. It calls lost when the
// connection is lost.
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
