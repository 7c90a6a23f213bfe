package cli

import (
	"bytes"
	"context"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/pkg/version"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/*.txt")

// harness is a real gRPC server whose planes give fixed responses and record the last
// request.
type harness struct {
	t       *testing.T
	address string
	keys    *rpc.Keyring
	planes  *planes
	server  *rpc.Server
}

type planes struct {
	agentv1.UnimplementedAgentServiceServer
	workv1.UnimplementedWorkServiceServer
	waitingv1.UnimplementedWaitingServiceServer
	taskv1.UnimplementedTaskServiceServer
	schedulerv1.UnimplementedSchedulerServiceServer
	eventv1.UnimplementedEventServiceServer
	boardv1.UnimplementedBoardServiceServer
	identityv1.UnimplementedIdentityServiceServer

	mu      sync.Mutex
	last    proto.Message
	actor   rpc.Actor
	failure error
	// revision is the work queue's; queueReads counts how often each was read.
	revision   int64
	queueReads map[int64]int
	// watch answers WatchEvents; nil sends two events.
	// down are the services that no process serves.
	down  []string
	watch func(req *eventv1.WatchEventsRequest, out grpc.ServerStreamingServer[eventv1.WatchEventsResponse]) error
}

// record keeps a request and its actor, and returns the error that was set.
func (p *planes) record(ctx context.Context, req proto.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.actor = req, rpc.ActorFrom(ctx)
	return p.failure
}

var (
	at     = timestamppb.New(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC))
	keeper = &agentv1.Agent{
		AgentId: "keeper", Visibility: agentv1.Visibility_VISIBILITY_PUBLIC, Control: agentv1.Control_CONTROL_RUNNING,
		Posture: agentv1.Posture_POSTURE_WAITING_EXTERNAL, PostureReason: "wi_1 waits for \x1b[31mCI",
		CurrentWorkItemId: "wi_1", Lane: &agentv1.Lane{Queued: 2, Quarantined: 1}, Revision: 3, CreatedAt: at,
		Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE, WorkspaceRoot: "/srv/repo",
	}
	release = &workv1.WorkItem{
		WorkItemId: "wi_1", AgentId: "keeper", Objective: "リリース 1.4 is published", IsCurrent: true, Revision: 7,
		CreatedAt:       at,
		PlanStatus:      workv1.PlanStatus_PLAN_STATUS_READY,
		SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_RUNNABLE, ReasonCode: "runnable",
		CurrentTodo: &workv1.TodoItem{Text: "test the build on every machine that we promise to support"},
		TodoList: []*workv1.TodoItem{
			{Text: "build", State: workv1.TodoState_TODO_STATE_COMPLETED},
			{Text: "test", State: workv1.TodoState_TODO_STATE_IN_PROGRESS},
			{Text: "publish"},
		},
	}
	blocked = &workv1.WorkItem{
		WorkItemId: "wi_2", AgentId: "keeper", Objective: "Upgrade the broker " +
			strings.Repeat("and everything around it ", 5), Revision: 1,
		PlanStatus:      workv1.PlanStatus_PLAN_STATUS_DRAFT,
		SchedulingState: workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL, BlockedBy: "CI\nruns",
		Waits: []*workv1.AttachedWait{{
			WaitId: "wt_1", Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
			Reason: "CI runs", Resource: "trg_1", TriggerCount: 3, ConsumedCount: 1, CreatedAt: at,
		}},
	}
	ci = &waitingv1.Wait{
		WaitId: "wt_1", AgentId: "keeper", WorkItemId: "wi_2",
		Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Reason: "CI runs",
		Resource: "trg_1", Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE, TriggerCount: 2,
	}
	build = &taskv1.Task{
		TaskId: "tsk_1", AgentId: "keeper", State: taskv1.TaskState_TASK_STATE_FAILED,
		Label: "make build", ExitCode: proto.Int32(2), EndReason: taskv1.TaskEndReason_TASK_END_REASON_EXITED,
		WorkItemId: "wi_1", CreatedAt: at, OutputBytes: 12,
	}
	test = &taskv1.Task{
		TaskId: "tsk_2", AgentId: "keeper", State: taskv1.TaskState_TASK_STATE_COMPLETED,
		Label: "make test", ExitCode: proto.Int32(0), CreatedAt: at,
	}
)

func (p *planes) SpawnAgent(ctx context.Context, r *agentv1.SpawnAgentRequest) (*agentv1.SpawnAgentResponse, error) {
	return &agentv1.SpawnAgentResponse{AgentId: "keeper", Agent: keeper}, p.record(ctx, r)
}

func (p *planes) GetAgent(ctx context.Context, r *agentv1.GetAgentRequest) (*agentv1.GetAgentResponse, error) {
	child := &agentv1.Agent{
		AgentId: "agt_2", Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE, Control: agentv1.Control_CONTROL_RUNNING,
	}
	return &agentv1.GetAgentResponse{Agent: keeper, Children: []*agentv1.Agent{child}}, p.record(ctx, r)
}

func (p *planes) PauseAgent(ctx context.Context, r *agentv1.PauseAgentRequest) (*agentv1.PauseAgentResponse, error) {
	return &agentv1.PauseAgentResponse{Agent: controlled(agentv1.Control_CONTROL_PAUSED, r.GetReason())},
		p.record(ctx, r)
}

func (p *planes) ResumeAgent(ctx context.Context, r *agentv1.ResumeAgentRequest) (*agentv1.ResumeAgentResponse, error) {
	return &agentv1.ResumeAgentResponse{Agent: controlled(agentv1.Control_CONTROL_RUNNING, r.GetReason())},
		p.record(ctx, r)
}

func (p *planes) StopAgent(ctx context.Context, r *agentv1.StopAgentRequest) (*agentv1.StopAgentResponse, error) {
	return &agentv1.StopAgentResponse{Agent: controlled(agentv1.Control_CONTROL_STOPPED, r.GetReason())},
		p.record(ctx, r)
}

func (p *planes) StartAgent(ctx context.Context, r *agentv1.StartAgentRequest) (*agentv1.StartAgentResponse, error) {
	return &agentv1.StartAgentResponse{Agent: controlled(agentv1.Control_CONTROL_RUNNING, r.GetReason())},
		p.record(ctx, r)
}

func (p *planes) AbortRun(ctx context.Context, r *agentv1.AbortRunRequest) (*agentv1.AbortRunResponse, error) {
	resp := &agentv1.AbortRunResponse{Agent: controlled(agentv1.Control_CONTROL_PAUSED, "operator_aborted")}
	if r.GetRunId() != "" {
		resp.Turn = &agentv1.Turn{TurnId: "trn_1", State: agentv1.TurnState_TURN_STATE_ABORTED}
	}
	return resp, p.record(ctx, r)
}

func (p *planes) DeleteAgent(ctx context.Context, r *agentv1.DeleteAgentRequest) (*agentv1.DeleteAgentResponse, error) {
	return &agentv1.DeleteAgentResponse{
			Agent: &agentv1.Agent{
				AgentId: r.GetAgentId(), Lifecycle: agentv1.Lifecycle_LIFECYCLE_DELETING, Revision: 4,
			},
		},
		p.record(ctx, r)
}

func (p *planes) ListDelegations(ctx context.Context, r *agentv1.ListDelegationsRequest) (
	*agentv1.ListDelegationsResponse, error,
) {
	return &agentv1.ListDelegationsResponse{Delegations: []*agentv1.Delegation{
		{
			ChildAgentId: "agt_2", TaskId: "tsk_2", State: agentv1.DelegationState_DELEGATION_STATE_OPEN,
			Label: "Check the changelog", ParentWorkItemId: "wi_1",
		},
		{
			ChildAgentId: "agt_1", TaskId: "tsk_1", State: agentv1.DelegationState_DELEGATION_STATE_COMPLETED,
			Outcome: agentv1.DelegationOutcome_DELEGATION_OUTCOME_COMPLETED, Label: "Count",
			ResultSummary: "There are 7.\nAll fine.",
		},
	}}, p.record(ctx, r)
}

// controlled returns the agent with a control that was set.
func controlled(c agentv1.Control, reason string) *agentv1.Agent {
	return &agentv1.Agent{AgentId: "keeper", Control: c, ControlBy: "ann", ControlAt: at, ControlReason: reason}
}

func (p *planes) ListAgents(ctx context.Context, r *agentv1.ListAgentsRequest) (*agentv1.ListAgentsResponse, error) {
	if r.GetLineageParentAgentId() != "" {
		return &agentv1.ListAgentsResponse{}, p.record(ctx, r)
	}
	other := &agentv1.Agent{
		AgentId: "a-much-longer-name", Posture: agentv1.Posture_POSTURE_IDLE, Control: agentv1.Control_CONTROL_PAUSED,
	}
	return &agentv1.ListAgentsResponse{Agents: []*agentv1.Agent{keeper, other}, NextPageToken: "abc"}, p.record(ctx, r)
}

func (p *planes) EnqueueMessage(ctx context.Context, r *agentv1.EnqueueMessageRequest) (*agentv1.EnqueueMessageResponse,
	error,
) {
	return &agentv1.EnqueueMessageResponse{MessageId: "msg_1"}, p.record(ctx, r)
}

func (p *planes) ListMessages(ctx context.Context, r *agentv1.ListMessagesRequest) (*agentv1.ListMessagesResponse,
	error,
) {
	return &agentv1.ListMessagesResponse{Messages: []*agentv1.Message{
		{
			MessageId: "msg_1", State: agentv1.MessageState_MESSAGE_STATE_QUEUED,
			Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, Priority: agentv1.Priority_PRIORITY_NEXT,
			CreatedAt: at, Text: "Prepare\nthe release",
		},
	}}, p.record(ctx, r)
}

func (p *planes) ListTurns(ctx context.Context, r *agentv1.ListTurnsRequest) (*agentv1.ListTurnsResponse, error) {
	return &agentv1.ListTurnsResponse{
		Turns: []*agentv1.Turn{{
			TurnId: "trn_1", State: agentv1.TurnState_TURN_STATE_COMPLETED,
			EndReason: agentv1.TurnEndReason_TURN_END_REASON_WAIT_FOR, Rounds: 3, Mutations: 2, BoundWorkItemId: "wi_1",
			StartedAt: at,
		}},
	}, p.record(ctx, r)
}

func (p *planes) ListDecisions(ctx context.Context, r *agentv1.ListDecisionsRequest) (*agentv1.ListDecisionsResponse,
	error,
) {
	return &agentv1.ListDecisionsResponse{Decisions: []*agentv1.Decision{
		{
			Action: agentv1.DecisionAction_DECISION_ACTION_TICK, Reason: "queued_runnable",
			Explanation: "pick_queued: nothing runnable is in focus", DecidedAt: at,
		},
		{Action: agentv1.DecisionAction_DECISION_ACTION_IDLE, Reason: "no_work_items", DecidedAt: at},
	}, NextPageToken: "more"}, p.record(ctx, r)
}

func (p *planes) CreateWorkItem(ctx context.Context, r *workv1.CreateWorkItemRequest) (*workv1.CreateWorkItemResponse,
	error,
) {
	return &workv1.CreateWorkItemResponse{WorkItem: release, Warnings: []*workv1.Warning{
			{Kind: workv1.WarningKind_WARNING_KIND_SEVERAL_IN_PROGRESS, Message: "two todos are in progress"},
		}},
		p.record(ctx, r)
}

func (p *planes) GetWorkItem(ctx context.Context, r *workv1.GetWorkItemRequest) (*workv1.GetWorkItemResponse, error) {
	it := map[string]*workv1.WorkItem{"wi_1": release, "wi_2": blocked}[r.GetWorkItemId()]
	return &workv1.GetWorkItemResponse{WorkItem: it}, p.record(ctx, r)
}

func (p *planes) ListWorkItems(ctx context.Context, r *workv1.ListWorkItemsRequest) (*workv1.ListWorkItemsResponse,
	error,
) {
	return &workv1.ListWorkItemsResponse{WorkItems: []*workv1.WorkItem{release, blocked}}, p.record(ctx, r)
}

func (p *planes) PickWorkItem(ctx context.Context, r *workv1.PickWorkItemRequest) (*workv1.PickWorkItemResponse,
	error,
) {
	return &workv1.PickWorkItemResponse{
		WorkItem: release, PreviousWorkItem: blocked, BindingNote: "calls are bound to wi_1 now",
	}, p.record(ctx, r)
}

func (p *planes) UpdateWorkItem(ctx context.Context, r *workv1.UpdateWorkItemRequest) (*workv1.UpdateWorkItemResponse,
	error,
) {
	return &workv1.UpdateWorkItemResponse{WorkItem: release}, p.record(ctx, r)
}

func (p *planes) CompleteWorkItem(ctx context.Context, r *workv1.CompleteWorkItemRequest) (
	*workv1.CompleteWorkItemResponse, error,
) {
	return &workv1.CompleteWorkItemResponse{WorkItem: release, AlreadyCompleted: true}, p.record(ctx, r)
}

func (p *planes) GetWorkQueue(ctx context.Context, r *workv1.GetWorkQueueRequest) (*workv1.GetWorkQueueResponse,
	error,
) {
	p.mu.Lock()
	revision := p.revision
	if p.queueReads == nil {
		p.queueReads = map[int64]int{}
	}
	p.queueReads[revision]++
	p.mu.Unlock()
	return &workv1.GetWorkQueueResponse{
		Revision: revision, Current: release, Blocked: []*workv1.WorkItem{blocked},
		Counts: &workv1.WorkQueueCounts{Open: 2, Blocked: 1, Completed: 4},
	}, p.record(ctx, r)
}

func (p *planes) WaitFor(ctx context.Context, r *waitingv1.WaitForRequest) (*waitingv1.WaitForResponse, error) {
	return &waitingv1.WaitForResponse{Wait: ci}, p.record(ctx, r)
}

func (p *planes) CreateWait(ctx context.Context, r *waitingv1.CreateWaitRequest) (*waitingv1.CreateWaitResponse,
	error,
) {
	return &waitingv1.CreateWaitResponse{Wait: ci, Warnings: []*waitingv1.WaitWarning{
		{Kind: waitingv1.WaitWarningKind_WAIT_WARNING_KIND_WEAK_WAIT, Message: "nothing can end it; make one with " +
			"CreateExternalTrigger"},
	}}, p.record(ctx, r)
}

func (p *planes) GetWait(ctx context.Context, r *waitingv1.GetWaitRequest) (*waitingv1.GetWaitResponse, error) {
	w := proto.CloneOf(ci)
	w.WeakReason = waitingv1.WeakReason_WEAK_REASON_TRIGGER_DEAD
	return &waitingv1.GetWaitResponse{Wait: w}, p.record(ctx, r)
}

func (p *planes) CancelWait(ctx context.Context, r *waitingv1.CancelWaitRequest) (*waitingv1.CancelWaitResponse,
	error,
) {
	return &waitingv1.CancelWaitResponse{Wait: ci}, p.record(ctx, r)
}

func (p *planes) ListWaits(ctx context.Context, r *waitingv1.ListWaitsRequest) (*waitingv1.ListWaitsResponse, error) {
	return &waitingv1.ListWaitsResponse{Waits: []*waitingv1.Wait{ci}}, p.record(ctx, r)
}

var trigger = &waitingv1.Trigger{
	TriggerId: "trg_1", Status: waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE,
	DeliveryCount: 3, CoalescedCount: 2, SignatureScheme: waitingv1.SignatureScheme_SIGNATURE_SCHEME_HUB_SHA256,
	LastDeliveredAt: at, Description: "CI of main",
}

func (p *planes) CreateExternalTrigger(ctx context.Context, r *waitingv1.CreateExternalTriggerRequest) (
	*waitingv1.CreateExternalTriggerResponse, error,
) {
	return &waitingv1.CreateExternalTriggerResponse{Trigger: trigger, Url: "http://127.0.0.1:7480/v1/triggers/qtr_x"},
		p.record(ctx, r)
}

func (p *planes) RotateExternalTrigger(ctx context.Context, r *waitingv1.RotateExternalTriggerRequest) (
	*waitingv1.RotateExternalTriggerResponse, error,
) {
	return &waitingv1.RotateExternalTriggerResponse{
		Trigger: trigger, Url: "http://127.0.0.1:7480/v1/triggers/qtr_y",
		SigningSecret: "qts_z",
	}, p.record(ctx, r)
}

func (p *planes) CancelExternalTrigger(ctx context.Context, r *waitingv1.CancelExternalTriggerRequest) (
	*waitingv1.CancelExternalTriggerResponse, error,
) {
	return &waitingv1.CancelExternalTriggerResponse{Trigger: trigger}, p.record(ctx, r)
}

func (p *planes) GetExternalTrigger(ctx context.Context, r *waitingv1.GetExternalTriggerRequest) (
	*waitingv1.GetExternalTriggerResponse, error,
) {
	return &waitingv1.GetExternalTriggerResponse{Trigger: trigger}, p.record(ctx, r)
}

func (p *planes) ListExternalTriggers(ctx context.Context, r *waitingv1.ListExternalTriggersRequest) (
	*waitingv1.ListExternalTriggersResponse, error,
) {
	return &waitingv1.ListExternalTriggersResponse{Triggers: []*waitingv1.Trigger{trigger}}, p.record(ctx, r)
}

func (p *planes) DeliverTrigger(ctx context.Context, r *waitingv1.DeliverTriggerRequest) (
	*waitingv1.DeliverTriggerResponse, error,
) {
	return &waitingv1.DeliverTriggerResponse{
		Outcome: waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_IGNORED,
		Reason:  "work_item_completed",
	}, p.record(ctx, r)
}

var timer = &waitingv1.Timer{
	TimerId: "tmr_1", Status: waitingv1.TimerStatus_TIMER_STATUS_ACTIVE, NextFireAt: at, Description: "look",
}

func (p *planes) CreateTimer(ctx context.Context, r *waitingv1.CreateTimerRequest) (*waitingv1.CreateTimerResponse,
	error,
) {
	return &waitingv1.CreateTimerResponse{Timer: timer}, p.record(ctx, r)
}

func (p *planes) GetTimer(ctx context.Context, r *waitingv1.GetTimerRequest) (*waitingv1.GetTimerResponse, error) {
	return &waitingv1.GetTimerResponse{Timer: timer}, p.record(ctx, r)
}

func (p *planes) CancelTimer(ctx context.Context, r *waitingv1.CancelTimerRequest) (*waitingv1.CancelTimerResponse,
	error,
) {
	return &waitingv1.CancelTimerResponse{Timer: timer}, p.record(ctx, r)
}

func (p *planes) ListTimers(ctx context.Context, r *waitingv1.ListTimersRequest) (*waitingv1.ListTimersResponse,
	error,
) {
	again := proto.CloneOf(timer)
	again.Every, again.Count, again.FireCount, again.SkippedCount = durationpb.New(24*time.Hour), 3, 1, 2
	return &waitingv1.ListTimersResponse{Timers: []*waitingv1.Timer{timer, again}}, p.record(ctx, r)
}

func (p *planes) ExecCommand(ctx context.Context, r *taskv1.ExecCommandRequest) (*taskv1.ExecCommandResponse, error) {
	resp := &taskv1.ExecCommandResponse{
		Outcome: taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED, Task: build, Output: "no rule\n",
	}
	switch r.GetCommand().GetCmd() {
	case "test":
		resp.Task, resp.Output = test, "ok\n"
	case "slow":
		resp.Outcome, resp.Handle = taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK,
			&taskv1.TaskHandle{TaskId: "tsk_1"}
	}
	return resp, p.record(ctx, r)
}

func (p *planes) ListTasks(ctx context.Context, r *taskv1.ListTasksRequest) (*taskv1.ListTasksResponse, error) {
	return &taskv1.ListTasksResponse{Tasks: []*taskv1.Task{build, test}}, p.record(ctx, r)
}

func (p *planes) GetTask(ctx context.Context, r *taskv1.GetTaskRequest) (*taskv1.GetTaskResponse, error) {
	return &taskv1.GetTaskResponse{Task: build}, p.record(ctx, r)
}

func (p *planes) GetTaskOutput(ctx context.Context, r *taskv1.GetTaskOutputRequest) (*taskv1.GetTaskOutputResponse,
	error,
) {
	const all = "first\nsecond\n"
	from := min(int(r.GetOffset()), len(all))
	to := min(from+6, len(all))
	return &taskv1.GetTaskOutputResponse{
		Text: all[from:to], Offset: int64(from), NextOffset: int64(to), TotalBytes: int64(len(all)),
	}, p.record(ctx, r)
}

func (p *planes) FollowTaskOutput(r *taskv1.FollowTaskOutputRequest,
	out grpc.ServerStreamingServer[taskv1.FollowTaskOutputResponse],
) error {
	if err := p.record(out.Context(), r); err != nil {
		return err
	}
	for _, m := range []*taskv1.FollowTaskOutputResponse{
		{Chunk: &taskv1.OutputChunk{Data: []byte("out\n"), Stream: taskv1.OutputStream_OUTPUT_STREAM_STDOUT}},
		{Chunk: &taskv1.OutputChunk{Data: []byte("err\n"), Stream: taskv1.OutputStream_OUTPUT_STREAM_STDERR}},
		{Ended: build},
	} {
		if err := out.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func (p *planes) SendTaskInput(ctx context.Context, r *taskv1.SendTaskInputRequest) (*taskv1.SendTaskInputResponse,
	error,
) {
	if r.GetText() == "no" {
		return &taskv1.SendTaskInputResponse{Reason: "task_not_running"}, p.record(ctx, r)
	}
	if r.GetWaitId() != "" {
		return &taskv1.SendTaskInputResponse{
			AcceptedInput: true, InputTarget: "the answer to " + r.GetWaitId(), BytesWritten: int64(len(r.GetText())),
		}, p.record(ctx, r)
	}
	return &taskv1.SendTaskInputResponse{
		AcceptedInput: true, InputTarget: "stdin", BytesWritten: int64(len(r.GetText())),
	}, p.record(ctx, r)
}

func (p *planes) StopTask(ctx context.Context, r *taskv1.StopTaskRequest) (*taskv1.StopTaskResponse, error) {
	return &taskv1.StopTaskResponse{Task: build}, p.record(ctx, r)
}

func (p *planes) Explain(ctx context.Context, r *schedulerv1.ExplainRequest) (*schedulerv1.ExplainResponse, error) {
	return &schedulerv1.ExplainResponse{
		AgentId: "keeper",
		Verdict: &schedulerv1.Verdict{
			Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
			TickReason: agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT, Reason: "current_runnable", WorkItemId: "wi_1",
			Explanation: "the item in focus is runnable",
		},
		Facts: []*schedulerv1.Fact{
			{Name: "control", Value: "running"},
			{Name: "open_run"},
			{Name: "queued_messages", Value: "0"},
		},
		Candidates: []*schedulerv1.Candidate{
			{
				WorkItemId: "wi_1", Objective: "Release", SchedulingState: "runnable", Chosen: true,
				Why: "chosen: current_runnable",
			},
			{
				WorkItemId: "wi_2", Objective: "Upgrade", SchedulingState: "waiting_external",
				ReasonCode: "active_external_wait", Why: "not chosen: it waits for CI since 2h",
			},
		},
		Recent: []*schedulerv1.Verdict{{
			Action: agentv1.DecisionAction_DECISION_ACTION_IDLE, Reason: "no_candidates", DecidedAt: at,
		}},
	}, p.record(ctx, r)
}

// eventOf returns an event of a type with a cursor.
func eventOf(cursor, kind string) *eventv1.WatchEventsResponse {
	return &eventv1.WatchEventsResponse{Event: &eventv1.Event{
		Cursor: cursor, EventId: "evt_" + cursor, EventType: kind, Plane: "work", AgentId: "keeper", WorkItemId: "wi_1",
		CreatedAt:   at,
		ReadinessTo: "runnable", ReadinessReason: "runnable", Payload: &structpb.Struct{},
	}}
}

func (p *planes) WatchEvents(r *eventv1.WatchEventsRequest,
	out grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
) error {
	if err := p.record(out.Context(), r); err != nil {
		return err
	}
	if p.watch != nil {
		return p.watch(r, out)
	}
	for _, m := range []*eventv1.WatchEventsResponse{
		eventOf("c1", "work_item_created"),
		{HeartbeatCursor: "c1b"},
		eventOf("c2", "work_item_picked"),
	} {
		if err := out.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func newHarness(t *testing.T) *harness {
	r := &harness{t: t, keys: rpc.NewKeyring([]byte("key"), true), planes: &planes{}}
	r.serve("127.0.0.1:0")
	return r
}

// serve serves the planes at an address until the test ends.
func (r *harness) serve(address string) {
	r.server = rpc.NewServer(rpc.Config{Auth: r.keys})
	agentv1.RegisterAgentServiceServer(r.server, r.planes)
	workv1.RegisterWorkServiceServer(r.server, r.planes)
	waitingv1.RegisterWaitingServiceServer(r.server, r.planes)
	taskv1.RegisterTaskServiceServer(r.server, r.planes)
	schedulerv1.RegisterSchedulerServiceServer(r.server, r.planes)
	eventv1.RegisterEventServiceServer(r.server, r.planes)
	boardv1.RegisterBoardServiceServer(r.server, r.planes)
	identityv1.RegisterIdentityServiceServer(r.server, r.planes)
	var lc net.ListenConfig
	lis := must.Value(lc.Listen(r.t.Context(), "tcp", address))(r.t)
	served := make(chan struct{})
	server := r.server
	go func() {
		defer close(served)
		_ = server.Serve(lis) // ends with Stop
	}()
	r.t.Cleanup(func() {
		server.Stop()
		<-served
	})
	r.address = lis.Addr().String()
}

// queueReads returns how often the queue was read at a revision.
func (r *harness) queueReads(revision int64) int {
	r.planes.mu.Lock()
	defer r.planes.mu.Unlock()
	return r.planes.queueReads[revision]
}

// awaitQueueRead waits until the queue was read at a revision more than before times. It
// returns an error because it is called on goroutines of the server, which must not end
// a test.
func (r *harness) awaitQueueRead(revision int64, before int) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(30 * time.Second); ; {
		select {
		case <-tick.C:
			if r.queueReads(revision) > before {
				return nil
			}
		case <-limit:
			return fault.NotReady.Newf("revision %d was not read again", revision)
		}
	}
}

// result is what one command printed and its exit code.
type result struct {
	code     int
	out, err string
}

func (r *harness) run(args ...string) result { return r.runIn("", args...) }

func (r *harness) runIn(stdin string, args ...string) result {
	r.t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute) // a follower does not end by itself
	defer cancel()
	code := Run(ctx, Servers{Version: version.Info{
		Version: "1.2.3", Revision: "0123456789abcdef",
		Date: "2026-01-02T03:04:05Z", Go: "go1", Platform: "linux/amd64",
	}, Replay: fakeReplay, Now: func() time.Time {
		return at.AsTime().Add(3 * time.Minute)
	}}, append([]string{"--address", r.address}, args...), strings.NewReader(stdin), &out, &errs)
	return result{code, out.String(), errs.String()}
}

// golden compares with testdata/NAME.txt.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *rewrite {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	require.Equal(t, string(must.Value(os.ReadFile(path))(t)), got, "run: go test ./services/cli -rewrite")
}

// fail makes every call return err; nil ends that.
func (p *planes) fail(err *fault.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure = err
	if err == nil {
		p.failure = nil
	}
}
