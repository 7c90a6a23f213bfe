package calls

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/task"
	"quartet/services/work"
)

// Planes are the clients that services use to call each other. The network decides
// whether a service is in this process or in another one.
type Planes struct {
	Network *rpc.Network
	// Via, if set, returns the connections in place of Network. A simulation delays and loses calls with it.
	Via func(service string) grpc.ClientConnInterface
}

// Conn returns a connection to a service.
func (c Planes) Conn(service string) (grpc.ClientConnInterface, error) {
	if c.Via != nil {
		return c.Via(service), nil
	}
	return c.Network.Dial(service)
}

// To returns a connection to a service that is dialled by its first call.
func (c Planes) To(service string) grpc.ClientConnInterface {
	return rpc.Lazy(func() (grpc.ClientConnInterface, error) { return c.Conn(service) })
}

// facts reads the facts of an agent.
func (c Planes) facts(ctx context.Context, agentID string) (*agentv1.GetFactsResponse, error) {
	return agentv1.NewAgentServiceClient(c.To("agent")).GetFacts(ctx, &agentv1.GetFactsRequest{AgentId: agentID})
}

// AgentExists returns NOT_FOUND for an agent that never existed, and AGENT_DELETED for one
// that is deleted or being deleted.
func (c Planes) AgentExists(ctx context.Context, agentID string) error {
	r, err := c.facts(ctx, agentID)
	if err != nil {
		return err
	}
	return requireActive(r)
}

// Supervision returns the supervisor of a private child, "" for another agent, and the ids of
// the agent's tasks that are children which ask something.
func (c Planes) Supervision(ctx context.Context, agentID string) (supervisor string, askedBy []string, err error) {
	r, err := c.facts(ctx, agentID)
	if err != nil {
		return "", nil, err
	}
	for _, f := range r.GetFacts() {
		supervisor = f.GetAgent().GetSupervisorAgentId()
		for _, d := range f.GetAskingChildren() {
			askedBy = append(askedBy, d.GetTaskId())
		}
	}
	return supervisor, askedBy, nil
}

// LaneRoom returns OVERLOADED if the lane of an agent takes no further message now.
func (c Planes) LaneRoom(ctx context.Context, agentID string) error {
	r, err := c.facts(ctx, agentID)
	if err != nil {
		return err
	}
	for _, f := range r.GetFacts() {
		if err := lane.Room(agentID, int(f.GetQueued()), int(f.GetQueuedBytes())); err != nil {
			return err
		}
	}
	return nil
}

// requireActive returns AGENT_DELETED if an agent of the facts is deleted or being deleted,
// nil otherwise.
func requireActive(r *agentv1.GetFactsResponse) error {
	for _, f := range r.GetFacts() {
		if a := f.GetAgent(); a.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_ACTIVE {
			return fault.AgentDeleted.Newf("agent %q is deleted; nothing can be created for it", a.GetAgentId()).
				With("agent_id", a.GetAgentId())
		}
	}
	return nil
}

// checkedByPlane are methods that Fence passes. Most name a run, which the rules of the plane check: a run that has
// ended may repeat such a call, and gets the result of its own turn or is refused.
var checkedByPlane = map[string]bool{
	agentv1.AgentService_SubmitRound_FullMethodName:     true,
	agentv1.AgentService_FinishTurn_FullMethodName:      true,
	agentv1.AgentService_RenewTurn_FullMethodName:       true,
	agentv1.AgentService_StartLocalCalls_FullMethodName: true,
	agentv1.AgentService_WatchTurn_FullMethodName:       true,
	// Fence itself calls it, in the name of the caller. identity.Permit refuses it to all but services.
	agentv1.AgentService_GetFacts_FullMethodName: true,
	// Workspace reads the same facts before anything happens, and checks the run.
	taskv1.TaskService_ExecCommand_FullMethodName: true,
}

// Fence returns RUN_STALE for a call with the credential of a run that has ended (SPEC X4.2, X12),
// nil for any other. The methods of checkedByPlane and the calls of workers pass, because their
// services check the run. No run's credential acquires a turn: it would get the credential of the
// next run, and so never end.
func (c Planes) Fence(ctx context.Context, method string, a rpc.Actor) error {
	switch {
	case a.RunID == "":
		return nil
	case a.Role == rpc.RoleWorker: // the run of a worker on a board, which the board service checks itself
		return nil
	case checkedByPlane[method]:
		return nil
	case method == agentv1.AgentService_AcquireTurn_FullMethodName:
		return fault.PermissionDenied.Newf("the credential of run %s acquires no turn; use the key of the runner",
			a.RunID).With("run_id", a.RunID)
	}
	return c.RunHolds(ctx, a)
}

// RunHolds returns RUN_STALE if the run of an actor does not hold its agent any more. An actor
// without a run passes.
func (c Planes) RunHolds(ctx context.Context, a rpc.Actor) error {
	r, err := c.facts(ctx, a.AgentID)
	if err != nil {
		return err
	}
	return checkRun(r, a)
}

// checkRun returns RUN_STALE if an actor's run does not hold its agent by these facts. An
// actor without a run passes.
func checkRun(r *agentv1.GetFactsResponse, a rpc.Actor) error {
	if a.RunID == "" {
		return nil
	}
	for _, f := range r.GetFacts() {
		if f.GetAgent().GetCurrentRunId() == a.RunID {
			return nil
		}
	}
	return fault.RunStale.Newf("run %s no longer holds agent %s; its credential ended with it", a.RunID, a.AgentID).
		With("run_id", a.RunID)
}

// Orchestrates reports whether an agent's profile has the tools of boards. It returns
// NOT_FOUND for an agent that never existed, and AGENT_DELETED for one that is deleted or
// being deleted.
func (c Planes) Orchestrates(ctx context.Context, agentID string) (bool, error) {
	r, err := c.facts(ctx, agentID)
	if err == nil {
		err = requireActive(r)
	}
	if err != nil {
		return false, err
	}
	for _, f := range r.GetFacts() {
		return slices.Contains(f.GetAgent().GetToolFamilies(), agentv1.ToolFamily_TOOL_FAMILY_BOARDS), nil
	}
	return false, nil
}

// Workspace reads from the agent plane where an agent's commands run. It also checks that
// the caller's run still holds its agent, which Fence leaves to it, so that a command costs
// one read of the agent's facts. It returns NOT_FOUND, RUN_STALE or AGENT_DELETED if nothing
// may run for the agent.
func (c Planes) Workspace(ctx context.Context, agentID string) (task.Workspace, error) {
	r, err := c.facts(ctx, agentID)
	if err == nil {
		if a := rpc.ActorFrom(ctx); a.Role != rpc.RoleWorker {
			err = checkRun(r, a)
		}
	}
	if err == nil {
		err = requireActive(r)
	}
	if err != nil {
		return task.Workspace{}, err
	}
	for _, f := range r.GetFacts() {
		return task.Workspace{Root: f.GetAgent().GetWorkspaceRoot(), Worktree: f.GetAgent().GetWorktree()}, nil
	}
	return task.Workspace{}, nil
}

// OwnsItem returns an error if an item does not exist or belongs to another agent.
func (c Planes) OwnsItem(ctx context.Context, agentID, workItemID string) error {
	_, err := c.Work().GetWorkItem(ctx, &workv1.GetWorkItemRequest{
		AgentId: agentID, WorkItemId: workItemID,
		OmitTodoList: true,
	})
	return err
}

// RunningTasks returns the tasks of a work item that have not ended.
func (c Planes) RunningTasks(ctx context.Context, agentID, workItemID string) ([]work.RunningTask, error) {
	tasks := taskv1.NewTaskServiceClient(c.To("task"))
	req := &taskv1.ListTasksRequest{AgentId: agentID, WorkItemId: workItemID, PageSize: page.MaxSize}
	var running []work.RunningTask
	for {
		r, err := tasks.ListTasks(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, t := range r.GetTasks() {
			running = append(running, work.RunningTask{TaskID: t.GetTaskId(), Blocking: t.GetBlocking()})
		}
		if req.PageToken = r.GetNextPageToken(); req.GetPageToken() == "" {
			return running, nil
		}
	}
}

// Work returns a client of the work plane.
func (c Planes) Work() workv1.WorkServiceClient { return workv1.NewWorkServiceClient(c.To("work")) }

// ForeignItem returns, for the NOT_FOUND err of an item, PERMISSION_DENIED if the item belongs
// to another agent than the request names (SPEC W4), otherwise err. The partition of the
// requesting agent cannot know that, because it has only its own agents' items.
func (c Planes) ForeignItem(ctx context.Context, req proto.Message, err error) error {
	agent, ok := req.(interface{ GetAgentId() string })
	item := fault.From(err).Metadata()["work_item_id"]
	if !ok || item == "" {
		return err
	}
	system := rpc.WithActor(ctx, plane.ActorOf(*plane.System(rpc.ActorFrom(ctx).Namespace)))
	found, ferr := c.Work().FindWorkItem(system, &workv1.FindWorkItemRequest{WorkItemId: item})
	if ferr != nil || found.GetAgentId() == agent.GetAgentId() {
		return err
	}
	return work.Foreign(agent.GetAgentId(), item)
}
