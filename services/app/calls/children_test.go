package calls

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/work"
)

// fakePlanes are an agent, a work and a task plane that answer from fields, and record who
// called.
type fakePlanes struct {
	agentv1.UnimplementedAgentServiceServer
	workv1.UnimplementedWorkServiceServer
	taskv1.UnimplementedTaskServiceServer

	agent    *agentv1.Agent
	asking   []*agentv1.Delegation
	item     *workv1.WorkItem
	owner    string // of the item
	enqueued *agentv1.EnqueueMessageRequest
	asked    *taskv1.ListTasksRequest
	callers  []rpc.Actor
}

func (f *fakePlanes) record(ctx context.Context) { f.callers = append(f.callers, rpc.ActorFrom(ctx)) }

func (f *fakePlanes) EnqueueMessage(ctx context.Context, req *agentv1.EnqueueMessageRequest) (
	*agentv1.EnqueueMessageResponse, error,
) {
	f.record(ctx)
	f.enqueued = req
	return &agentv1.EnqueueMessageResponse{}, nil
}

func (f *fakePlanes) GetAgent(ctx context.Context, _ *agentv1.GetAgentRequest) (*agentv1.GetAgentResponse, error) {
	f.record(ctx)
	if f.agent == nil {
		return nil, fault.NotFound.New("no such agent")
	}
	return &agentv1.GetAgentResponse{Agent: f.agent}, nil
}

func (f *fakePlanes) GetFacts(ctx context.Context, _ *agentv1.GetFactsRequest) (*agentv1.GetFactsResponse, error) {
	f.record(ctx)
	if f.agent == nil {
		return &agentv1.GetFactsResponse{}, nil
	}
	return &agentv1.GetFactsResponse{Facts: []*agentv1.AgentFacts{{Agent: f.agent, AskingChildren: f.asking}}}, nil
}

func (f *fakePlanes) GetDelegation(ctx context.Context, req *agentv1.GetDelegationRequest) (
	*agentv1.GetDelegationResponse, error,
) {
	f.record(ctx)
	return &agentv1.GetDelegationResponse{Delegation: &agentv1.Delegation{ResultSummary: "of " + req.GetAgentId() +
		"/" + req.GetDelegationId()}}, nil
}

func (f *fakePlanes) GetWorkItem(ctx context.Context, _ *workv1.GetWorkItemRequest) (*workv1.GetWorkItemResponse,
	error,
) {
	f.record(ctx)
	if f.item == nil {
		return nil, fault.NotFound.New("no such item")
	}
	return &workv1.GetWorkItemResponse{WorkItem: f.item}, nil
}

func (f *fakePlanes) FindWorkItem(ctx context.Context, _ *workv1.FindWorkItemRequest) (*workv1.FindWorkItemResponse,
	error,
) {
	f.record(ctx)
	if f.owner == "" {
		return nil, fault.NotFound.New("no such item")
	}
	return &workv1.FindWorkItemResponse{AgentId: f.owner}, nil
}

func (f *fakePlanes) ListTasks(ctx context.Context, req *taskv1.ListTasksRequest) (*taskv1.ListTasksResponse, error) {
	f.record(ctx)
	f.asked = req
	if req.GetPageToken() == "" {
		return &taskv1.ListTasksResponse{
			Tasks:         []*taskv1.Task{{TaskId: "task_1", Blocking: true}},
			NextPageToken: "more",
		}, nil
	}
	return &taskv1.ListTasksResponse{Tasks: []*taskv1.Task{{TaskId: "task_2"}}}, nil
}

// callsTo returns calls to the planes, over a network as in a process.
func callsTo(t *testing.T, planes *fakePlanes) Planes {
	t.Helper()
	keys := rpc.NewKeyring(nil, false)
	network := rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Token: keys.MintService("test")})
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	for _, name := range []string{"agent", "work", "task"} {
		server := rpc.NewServer(rpc.Config{Auth: keys})
		switch name {
		case "agent":
			agentv1.RegisterAgentServiceServer(server, planes)
		case "work":
			workv1.RegisterWorkServiceServer(server, planes)
		case "task":
			taskv1.RegisterTaskServiceServer(server, planes)
		}
		t.Cleanup(server.Stop)
		require.NoError(t, network.Listen(name, server))
	}
	return Planes{Network: network}
}

// parent returns the context of a call that a run of the agent boss makes.
func parent(t *testing.T) context.Context {
	return rpc.WithActor(t.Context(), rpc.Actor{
		Namespace: "acme", Principal: "agent/boss", Role: rpc.RoleAgent, AgentID: "boss", RunID: "run_1",
	})
}

func TestChildrenAreCalledAsTheSystem(t *testing.T) {
	planes := &fakePlanes{
		agent: &agentv1.Agent{
			AgentId: "child", Posture: agentv1.Posture_POSTURE_RUNNING_TURN, PostureReason: "a turn",
			CurrentWorkItemId: "wi_1", Worktree: &taskv1.Worktree{Path: "/srv/wt", Branch: "fix", WorkerId: "w1"},
		},
		item: &workv1.WorkItem{Objective: "mend it", TodoList: []*workv1.TodoItem{
			{State: workv1.TodoState_TODO_STATE_COMPLETED},
			{State: workv1.TodoState_TODO_STATE_PENDING},
			{State: workv1.TodoState_TODO_STATE_COMPLETED},
		}},
	}
	c := Children{callsTo(t, planes)}
	require.NoError(t, c.FollowUp(parent(t), "child", "r1", "wt_1", "go on"))
	require.Equal(t, []string{"child", "r1", "wt_1", "go on", "MESSAGE_KIND_INTERNAL_FOLLOWUP"},
		[]string{
			planes.enqueued.GetAgentId(), planes.enqueued.GetRequestId(), planes.enqueued.GetAnsweredWaitId(),
			planes.enqueued.GetText(), planes.enqueued.GetKind().String(),
		})
	text := must.Value(c.Progress(parent(t), "child"))(t)
	require.Equal(t, "running_turn: a turn\nworks in: /srv/wt (branch fix, worker w1)\nworks on: mend it (2 of 3 "+
		"todos done)\n", text)
	text = must.Value(c.Result(parent(t), "boss", "del_1"))(t)
	require.Equal(t, "of boss/del_1", text)
	require.Len(t, planes.callers, 4)
	for _, caller := range planes.callers {
		require.Equal(t, []string{"acme", "quartet", rpc.RoleService, "", ""},
			[]string{caller.Namespace, caller.Principal, caller.Role, caller.AgentID, caller.RunID})
	}

	planes.agent = &agentv1.Agent{
		AgentId: "child", Posture: agentv1.Posture_POSTURE_IDLE, PostureReason: "nothing to do",
	}
	text = must.Value(c.Progress(parent(t), "child"))(t)
	require.Equal(t, "idle: nothing to do\n", text)
	planes.agent, planes.item = &agentv1.Agent{CurrentWorkItemId: "wi_1"}, nil
	must.Refuse(c.Progress(parent(t), "child"))(t, fault.NotFound)
	planes.agent = nil
	must.Refuse(c.Progress(parent(t), "child"))(t, fault.NotFound)
}

func TestNothingIsMadeForADeletedAgent(t *testing.T) {
	planes := &fakePlanes{agent: &agentv1.Agent{
		AgentId: "boss", Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE, CurrentRunId: "run_1",
		ToolFamilies: []agentv1.ToolFamily{agentv1.ToolFamily_TOOL_FAMILY_BOARDS},
	}}
	c := callsTo(t, planes)
	require.NoError(t, c.AgentExists(parent(t), "boss"))
	orchestrates := must.Value(c.Orchestrates(parent(t), "boss"))(t)
	require.True(t, orchestrates)
	planes.agent.ToolFamilies = nil
	orchestrates = must.Value(c.Orchestrates(parent(t), "boss"))(t)
	require.False(t, orchestrates)

	planes.agent.Lifecycle = agentv1.Lifecycle_LIFECYCLE_DELETED
	require.ErrorIs(t, c.AgentExists(parent(t), "boss"), fault.AgentDeleted)
	must.Refuse(c.Orchestrates(parent(t), "boss"))(t, fault.AgentDeleted)
	must.Refuse(c.Workspace(parent(t), "boss"))(t, fault.AgentDeleted)
}

// The credential of a run that has ended is refused, and those that other services check are
// left to them.
func TestA6_EndedRunsAreRefused(t *testing.T) {
	planes := &fakePlanes{agent: &agentv1.Agent{AgentId: "boss", CurrentRunId: "run_2"}}
	c := callsTo(t, planes)
	fence := func(method string, a rpc.Actor) error { return c.Fence(rpc.WithActor(t.Context(), a), method, a) }
	ended := rpc.Actor{Namespace: "acme", Role: rpc.RoleAgent, AgentID: "boss", RunID: "run_1"}
	require.ErrorIs(t, fence(workv1.WorkService_CreateWorkItem_FullMethodName, ended), fault.RunStale)
	holds := ended
	holds.RunID = "run_2"
	require.NoError(t, fence(workv1.WorkService_CreateWorkItem_FullMethodName, holds))
	for _, method := range []string{
		agentv1.AgentService_GetAgent_FullMethodName, agentv1.AgentService_ListConversation_FullMethodName,
		agentv1.AgentService_GetContext_FullMethodName,
		agentv1.AgentService_ListRounds_FullMethodName, agentv1.AgentService_CallTool_FullMethodName,
		agentv1.AgentService_SpawnAgent_FullMethodName,
	} {
		require.ErrorIs(t, fence(method, ended), fault.RunStale, method)
		require.NoError(t, fence(method, holds), method)
	}
	for _, a := range []rpc.Actor{ended, holds} {
		require.ErrorIs(t, fence(agentv1.AgentService_AcquireTurn_FullMethodName, a), fault.PermissionDenied,
			"it would never end")
	}
	reads := len(planes.callers)
	for _, method := range []string{
		agentv1.AgentService_SubmitRound_FullMethodName, agentv1.AgentService_FinishTurn_FullMethodName,
		agentv1.AgentService_RenewTurn_FullMethodName,
		agentv1.AgentService_StartLocalCalls_FullMethodName, agentv1.AgentService_WatchTurn_FullMethodName,
	} {
		require.NoError(t, fence(method, ended), "the agent plane checks runs itself")
	}
	ended.Role = rpc.RoleWorker
	require.NoError(t, fence(workv1.WorkService_CreateWorkItem_FullMethodName, ended),
		"the run of a worker on a board is no run of the agent")
	require.Len(t, planes.callers, reads)
}

func TestW4_AForeignItemIsNamedAsSuch(t *testing.T) {
	planes := &fakePlanes{}
	c := callsTo(t, planes)
	missing := fault.NotFound.New("item wi_1 does not exist").With("work_item_id", "wi_1")
	req := &workv1.GetWorkItemRequest{AgentId: "boss", WorkItemId: "wi_1"}
	require.Equal(t, error(missing), c.ForeignItem(parent(t), req, missing), "that nobody has")
	planes.owner = "boss"
	require.Equal(t, error(missing), c.ForeignItem(parent(t), req, missing), "that is the agent's own")
	planes.owner = "other"
	require.ErrorIs(t, c.ForeignItem(parent(t), req, missing), fault.PermissionDenied)
	require.Equal(t, rpc.RoleService, planes.callers[0].Role)
	other := fault.NotFound.New("agent boss does not exist")
	require.Equal(t, error(other), c.ForeignItem(parent(t), req, other), "an error about something else")
	require.ErrorIs(t, work.Foreign("boss", "wi_1"), fault.PermissionDenied)
}

func TestTasksOfAnItem(t *testing.T) {
	planes := &fakePlanes{item: &workv1.WorkItem{}}
	c := callsTo(t, planes)
	running := must.Value(c.RunningTasks(parent(t), "boss", "wi_1"))(t)
	require.Equal(t, []work.RunningTask{{TaskID: "task_1", Blocking: true}, {TaskID: "task_2"}}, running)
	require.Equal(t, []string{"boss", "wi_1"}, []string{planes.asked.GetAgentId(), planes.asked.GetWorkItemId()})
	require.NoError(t, c.OwnsItem(parent(t), "boss", "wi_1"))
	planes.item = nil
	require.ErrorIs(t, c.OwnsItem(parent(t), "boss", "wi_1"), fault.NotFound)
}

// What the agent plane is told of the sender of a follow-up: the run, or outside of one the
// caller's own authority (SPEC A14.4).
func TestA14_AFollowUpNamesItsSender(t *testing.T) {
	planes := &fakePlanes{}
	c := Children{callsTo(t, planes)}
	for name, k := range map[string]struct {
		actor rpc.Actor
		run   string
		most  agentv1.Authority
	}{
		"a run": {
			rpc.Actor{Role: rpc.RoleAgent, AgentID: "boss", RunID: "run_1"},
			"run_1",
			agentv1.Authority_AUTHORITY_UNSPECIFIED,
		},
		"an agent": {
			rpc.Actor{Role: rpc.RoleAgent, AgentID: "boss"},
			"",
			agentv1.Authority_AUTHORITY_RUNTIME_INSTRUCTION,
		},
		"a service":        {rpc.Actor{Role: rpc.RoleService}, "", agentv1.Authority_AUTHORITY_RUNTIME_INSTRUCTION},
		"an operator":      {rpc.Actor{Role: rpc.RoleOperator}, "", agentv1.Authority_AUTHORITY_UNSPECIFIED},
		"an administrator": {rpc.Actor{Role: rpc.RoleAdmin}, "", agentv1.Authority_AUTHORITY_UNSPECIFIED},
	} {
		k.actor.Namespace, k.actor.Principal = "acme", "someone"
		require.NoError(t, c.FollowUp(rpc.WithActor(t.Context(), k.actor), "agt_1", "req", "", "text"), name)
		require.Equal(t, k.run, planes.enqueued.GetSenderRunId(), name)
		require.Equal(t, k.most, planes.enqueued.GetMaxAuthority(), name)
	}
}

// Supervision is read from the facts of the agent plane.
func TestA14_SupervisionIsReadFromTheFacts(t *testing.T) {
	planes := &fakePlanes{
		agent:  &agentv1.Agent{AgentId: "child", SupervisorAgentId: "boss"},
		asking: []*agentv1.Delegation{{TaskId: "tsk_1"}, {TaskId: "tsk_2"}},
	}
	supervisor, askedBy, err := callsTo(t, planes).Supervision(parent(t), "child")
	require.NoError(t, err)
	require.Equal(t, "boss", supervisor)
	require.Equal(t, []string{"tsk_1", "tsk_2"}, askedBy)
}
