package agent

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// tool is one entry of the table: a seed's name, the rules of its use in the
// seeds' words, and the call behind it. The arguments are the request message in
// the seeds' JSON; agent_id and request_id come from the run, never from the
// model (SPEC X4).
type tool struct {
	name    string
	about   string
	family  agentv1.ToolFamily
	plane   string
	method  string
	request func() proto.Message
	reply   func() proto.Message
	mutates bool
	// bound: the call goes to the turn's item unless it names another.
	bound bool
	// anyAgent: it may be about another agent than the caller.
	anyAgent bool
	// forgets: its plane cannot be asked later what came of the call.
	forgets bool
	// required arguments; a call without them is refused before it goes anywhere.
	required []string
	// oneOf are arguments of which one is required.
	oneOf []string
	// adapt fits the seed's shape of the arguments to the message's.
	adapt func(args map[string]any, left time.Duration)
	// shape says to the schema what adapt does to the arguments.
	shape func(properties map[string]*structpb.Value)
}

// make of a message, for the table.
func of[M any, P interface {
	*M
	proto.Message
}]() proto.Message {
	return P(new(M))
}

// tools is the whole table (SPEC C4).
var tools = slices.Concat(ownTools, boardTools)

// ownTools are those of S0, S1 and S3.
var ownTools = []tool{
	{
		name: "CreateWorkItem", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Create a durable work item: an objective that outlives this conversation. Use it only for a genuinely separate objective with a life of its own; refine the current one with UpdateWorkItem. The item gets a plan file of its own, whose path the result names: keep the plan there with file tools, and progress in todo_list. Creating does not focus; call PickWorkItem for that.",
		plane: "work", method: workv1.WorkService_CreateWorkItem_FullMethodName,
		request: of[workv1.CreateWorkItemRequest], reply: of[workv1.CreateWorkItemResponse],
		mutates: true, required: []string{"objective"}, adapt: adaptCreate, shape: shapeTodos,
	},
	{
		name: "PickWorkItem", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Put the focus on an open work item; further calls are bound to it unless they name another. Give a reason when you leave an item that is still runnable. A blocked or waiting item may be picked to look at it; that does not make it runnable.",
		plane: "work", method: workv1.WorkService_PickWorkItem_FullMethodName,
		request: of[workv1.PickWorkItemRequest], reply: of[workv1.PickWorkItemResponse],
		mutates: true, required: []string{"work_item_id"},
	},
	{
		name: "UpdateWorkItem", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Refine a work item: objective, plan_status, todo_list, or a blocker. todo_list replaces the whole checklist. blocked_by says why work stands still and releases the focus; null clears it. For new waits use WaitFor, which also wakes you.",
		plane: "work", method: workv1.WorkService_UpdateWorkItem_FullMethodName,
		request: of[workv1.UpdateWorkItemRequest], reply: of[workv1.UpdateWorkItemResponse],
		mutates: true, bound: true, adapt: adaptUpdate, shape: shapeUpdate,
	},
	{
		name: "CompleteWorkItem", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Complete a work item. Write the report for the operator as your text in this same reply: it becomes the item's one report. Complete one item a reply.",
		plane: "work", method: workv1.WorkService_CompleteWorkItem_FullMethodName,
		request: of[workv1.CompleteWorkItemRequest], reply: of[workv1.CompleteWorkItemResponse],
		mutates: true, required: []string{"work_item_id"},
	},
	{
		name: "GetWorkItem", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Read one work item: objective, plan descriptor with preview, checklist, blocker, waits.",
		plane: "work", method: workv1.WorkService_GetWorkItem_FullMethodName,
		request: of[workv1.GetWorkItemRequest], reply: of[workv1.GetWorkItemResponse],
		bound: true, adapt: adaptGet, shape: shapeGet,
	},
	{
		name: "ListWorkItems", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "List your work items: all, open, completed, current, queued, blocked, waiting_for_operator or runnable.",
		plane: "work", method: workv1.WorkService_ListWorkItems_FullMethodName,
		request: of[workv1.ListWorkItemsRequest], reply: of[workv1.ListWorkItemsResponse],
		adapt: adaptList, shape: shapeList,
	},
	{
		name: "WaitFor", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Wait for an operator (a child: for its supervisor), a task's result, an outside event or a time, and end this turn. It attaches to the current work item, else to you. You are woken when it happens; the blocker of an outside event is yours to clear with UpdateWorkItem when you have looked at it.",
		plane: "waiting", method: waitingv1.WaitingService_WaitFor_FullMethodName,
		request: of[waitingv1.WaitForRequest], reply: of[waitingv1.WaitForResponse],
		mutates: true, bound: true, required: []string{"reason", "wake"},
	},
	{
		name: "CreateWait", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Register interest in something outside without stopping: it is counted and shows on the item, and blocks nothing.",
		plane: "waiting", method: waitingv1.WaitingService_CreateWait_FullMethodName,
		request: of[waitingv1.CreateWaitRequest], reply: of[waitingv1.CreateWaitResponse],
		mutates: true, bound: true,
	},
	{
		name: "CancelWait", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Cancel a wait or an interest. Cancelling again changes nothing.",
		plane: "waiting", method: waitingv1.WaitingService_CancelWait_FullMethodName,
		request: of[waitingv1.CancelWaitRequest], reply: of[waitingv1.CancelWaitResponse],
		mutates: true, required: []string{"wait_id"},
	},
	{
		name: "CreateExternalTrigger", family: agentv1.ToolFamily_TOOL_FAMILY_EXTERNAL_TRIGGER,
		about: "Make a secret URL that an outside system can POST to. Wait for it with WaitFor wake external and its id as resource. Hand the URL only to whom you want to be woken by.",
		plane: "waiting", method: waitingv1.WaitingService_CreateExternalTrigger_FullMethodName,
		request: of[waitingv1.CreateExternalTriggerRequest], reply: of[waitingv1.CreateExternalTriggerResponse],
		mutates: true, bound: true,
	},
	{
		name: "CancelExternalTrigger", family: agentv1.ToolFamily_TOOL_FAMILY_EXTERNAL_TRIGGER,
		about: "Revoke a trigger: its URL is refused from now on.",
		plane: "waiting", method: waitingv1.WaitingService_CancelExternalTrigger_FullMethodName,
		request: of[waitingv1.CancelExternalTriggerRequest], reply: of[waitingv1.CancelExternalTriggerResponse],
		mutates: true, required: []string{"trigger_id"},
	},
	{
		name: "CreateTimer", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Be sent a message at a time, once or repeatedly. It stops nothing; to stand still until a time use WaitFor wake timer.",
		plane: "waiting", method: waitingv1.WaitingService_CreateTimer_FullMethodName,
		request: of[waitingv1.CreateTimerRequest], reply: of[waitingv1.CreateTimerResponse],
		mutates: true, bound: true,
	},
	{
		name: "CancelTimer", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Cancel a timer.",
		plane: "waiting", method: waitingv1.WaitingService_CancelTimer_FullMethodName,
		request: of[waitingv1.CancelTimerRequest], reply: of[waitingv1.CancelTimerResponse],
		mutates: true, required: []string{"timer_id"},
	},
	{
		name: "AgentGet", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Read how an agent stands: identity, lifecycle, posture with its reason, focus, waits, visible children. Without agent_id it is you.",
		plane: "agent", method: agentv1.AgentService_GetAgent_FullMethodName,
		request: of[agentv1.GetAgentRequest], reply: of[agentv1.GetAgentResponse],
		anyAgent: true, shape: shapeAgentGet,
	},
	{
		name: toolSpawnAgent, family: agentv1.ToolFamily_TOOL_FAMILY_AGENT_CREATION,
		about: "Create another reasoning context. private_child (the default) is a bounded delegation: give initial_message, the handoff that says what to do, which constraints matter and what to return; you get agent_id and task_handle. Supervise it with TaskStatus, TaskOutput, TaskInput for follow-ups and TaskStop; its result comes back as a task result for the work item that is current now. Spawning blocks nothing: go on, or WaitFor wake task_result with the task id as resource. context fork shows it a bounded view of your current item; fresh only the initial_message. workspace_mode worktree gives it a git worktree of your repository on a branch of its own: unchanged it goes with the child, changed it is kept and the result says where. public_named makes a long-lived agent of its own under agent_id, without a handle.",
		plane: Plane, method: agentv1.AgentService_SpawnAgent_FullMethodName,
		request: of[agentv1.SpawnAgentRequest], reply: of[agentv1.SpawnAgentResponse],
		mutates: true, anyAgent: true, shape: shapeSpawn,
	},
	{
		name: "ExecCommand", family: agentv1.ToolFamily_TOOL_FAMILY_LOCAL_ENVIRONMENT,
		about: "Run a command: cmd for a shell line, or argv for a program and its arguments. Short ones answer their output; what takes longer than yield_time goes on as a task, whose handle you get: follow it with TaskOutput, or end the turn with WaitFor wake task_result and its id as resource.",
		plane: "task", method: taskv1.TaskService_ExecCommand_FullMethodName,
		request: of[taskv1.ExecCommandRequest], reply: of[taskv1.ExecCommandResponse],
		mutates: true, bound: true, adapt: adaptExec, shape: shapeExec,
	},
	{
		name: "TaskList", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "List your tasks that are running.",
		plane: "task", method: taskv1.TaskService_ListTasks_FullMethodName,
		request: of[taskv1.ListTasksRequest], reply: of[taskv1.ListTasksResponse],
	},
	{
		name: "TaskStatus", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Read how a task stands. Its output is TaskOutput's.",
		plane: "task", method: taskv1.TaskService_GetTask_FullMethodName,
		request: of[taskv1.GetTaskRequest], reply: of[taskv1.GetTaskResponse],
		required: []string{"task_id"},
	},
	{
		name: "TaskOutput", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Read a task's output from an offset, bounded; block waits for more.",
		plane: "task", method: taskv1.TaskService_GetTaskOutput_FullMethodName,
		request: of[taskv1.GetTaskOutputRequest], reply: of[taskv1.GetTaskOutputResponse],
		required: []string{"task_id"},
	},
	{
		name: "TaskInput", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Send input to a task: to a command's stdin, or a follow-up message to a child agent. A refusal is a normal result that says why.",
		plane: "task", method: taskv1.TaskService_SendTaskInput_FullMethodName,
		request: of[taskv1.SendTaskInputRequest], reply: of[taskv1.SendTaskInputResponse],
		mutates: true, forgets: true, required: []string{"task_id"},
	},
	{
		name: "TaskStop", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Stop a task with all its processes. A second stop kills at once.",
		plane: "task", method: taskv1.TaskService_StopTask_FullMethodName,
		request: of[taskv1.StopTaskRequest], reply: of[taskv1.StopTaskResponse],
		mutates: true, required: []string{"task_id"},
	},
	{
		name: "HomeRead", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Read a file of your home directory, which outlives conversations: plans are below work-items/<id>/plan.md.",
		plane: "work", method: workv1.HomeService_ReadFile_FullMethodName,
		request: of[workv1.ReadFileRequest], reply: of[workv1.ReadFileResponse],
		required: []string{"path"},
	},
	{
		name: "HomeWrite", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Write a whole file in your home directory.",
		plane: "work", method: workv1.HomeService_WriteFile_FullMethodName,
		request: of[workv1.WriteFileRequest], reply: of[workv1.WriteFileResponse],
		mutates: true, forgets: true, required: []string{"path"}, oneOf: []string{"text", "data"},
	},
	{
		name: "HomeEdit", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Replace an exact piece of text in a file of your home directory.",
		plane: "work", method: workv1.HomeService_EditFile_FullMethodName,
		request: of[workv1.EditFileRequest], reply: of[workv1.EditFileResponse],
		mutates: true, forgets: true, required: []string{"path", "old_text", "new_text"},
	},
	{
		name: "HomeList", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "List the files of your home directory.",
		plane: "work", method: workv1.HomeService_ListFiles_FullMethodName,
		request: of[workv1.ListFilesRequest], reply: of[workv1.ListFilesResponse],
	},
	{
		name: "HomeGrep", family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		about: "Search the text files of your home directory for a regular expression (RE2).",
		plane: "work", method: workv1.HomeService_GrepFiles_FullMethodName,
		request: of[workv1.GrepFilesRequest], reply: of[workv1.GrepFilesResponse],
		required: []string{"pattern"},
	},
}
