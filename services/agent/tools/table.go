// Package tools describes the tools that models call: the table of tools, the JSON Schema
// of their arguments, the request that a call becomes, and the result that it has. It
// sends nothing.
package tools

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

// Tool is one entry of the table: the tool's name and description, and the call behind
// it. The arguments are the JSON of the request message; agent_id and request_id come
// from the run, never from the model (SPEC X4).
type Tool struct {
	Name string
	// former is an earlier name, which calls may still use. It is not listed.
	former      string
	Description string
	Family      agentv1.ToolFamily
	Plane       string
	Method      string
	NewRequest  func() proto.Message
	NewResponse func() proto.Message
	Mutates     bool
	// bound means that a call that names no work item is about the turn's item, or outside of turns
	// about the item in focus. focused means that outside of turns the plane itself finds the item
	// in focus, in its rule, so that the request may leave it out.
	bound, focused bool
	// needsItem: a bound call for which no item is found is refused; others are then about the agent itself.
	needsItem bool
	// anyAgent: the call may be about another agent than the caller.
	anyAgent bool
	// NoRecall: the plane cannot be asked later for the outcome of a call.
	NoRecall bool
	// Required are arguments without which a call is refused before it is sent.
	Required []string
	// OneOf are arguments of which one is required.
	OneOf []string
	// adapt rewrites the tool's arguments to the fields of the message. left is what is
	// left of the round's time.
	adapt func(args map[string]any, left time.Duration)
	// shape changes the schema in the way that adapt changes the arguments.
	shape func(properties map[string]*structpb.Value)
}

// newMessage returns an empty message of a type, for the table.
func newMessage[M any, P interface {
	*M
	proto.Message
}]() proto.Message {
	return P(new(M))
}

// Table is the table of all tools (SPEC C4).
var Table = slices.Concat(coreTable, boardTable)

// coreTable holds the tools for work items, waits, agents, commands and files.
var coreTable = []Tool{
	{
		Name: "CreateWorkItem", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Create a durable work item: an objective that outlives this conversation. Use it only for a " +
			"genuinely separate objective with a life of its own; refine the current one with UpdateWorkItem. The " +
			"item gets a plan file of its own, whose path the result names: keep the plan there with file tools, and " +
			"progress in todo_list. Creating does not focus; call PickWorkItem for that.",
		Plane: "work", Method: workv1.WorkService_CreateWorkItem_FullMethodName,
		NewRequest: newMessage[workv1.CreateWorkItemRequest], NewResponse: newMessage[workv1.CreateWorkItemResponse],
		Mutates: true, Required: []string{"objective"}, adapt: adaptCreate, shape: shapeTodos,
	},
	{
		Name: "PickWorkItem", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Put the focus on an open work item; further calls are bound to it unless they name another. " +
			"Give a reason when you leave an item that is still runnable. A blocked or waiting item may be picked to " +
			"look at it; that does not make it runnable.",
		Plane: "work", Method: workv1.WorkService_PickWorkItem_FullMethodName,
		NewRequest: newMessage[workv1.PickWorkItemRequest], NewResponse: newMessage[workv1.PickWorkItemResponse],
		Mutates: true, Required: []string{"work_item_id"},
	},
	{
		Name: "UpdateWorkItem", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Refine a work item, by default the one of this turn: objective, plan_status, todo_list, or a " +
			"blocker. todo_list replaces the whole checklist. blocked_by says why work stands still and releases the " +
			"focus; recheck_at reminds you once. null clears either. For new waits use WaitFor, which also wakes you.",
		Plane: "work", Method: workv1.WorkService_UpdateWorkItem_FullMethodName,
		NewRequest: newMessage[workv1.UpdateWorkItemRequest], NewResponse: newMessage[workv1.UpdateWorkItemResponse],
		Mutates: true, bound: true, focused: true, needsItem: true, adapt: adaptUpdate, shape: shapeUpdate,
	},
	{
		Name: "CompleteWorkItem", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Complete a work item, by default the one of this turn. Write the report for the operator as " +
			"your text in this same reply: it becomes the item's one report. Complete one item a reply.",
		Plane: "work", Method: workv1.WorkService_CompleteWorkItem_FullMethodName,
		NewRequest:  newMessage[workv1.CompleteWorkItemRequest],
		NewResponse: newMessage[workv1.CompleteWorkItemResponse],
		Mutates:     true, bound: true, needsItem: true,
	},
	{
		Name: "GetWorkItem", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Read one work item: objective, plan descriptor with preview, checklist, blocker, waits.",
		Plane:       "work", Method: workv1.WorkService_GetWorkItem_FullMethodName,
		NewRequest: newMessage[workv1.GetWorkItemRequest], NewResponse: newMessage[workv1.GetWorkItemResponse],
		bound: true, focused: true, needsItem: true, adapt: adaptGet, shape: shapeGet,
	},
	{
		Name: "ListWorkItems", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "List your work items by a filter. Plans are shown by path, size and hash; GetWorkItem shows " +
			"the beginning of one.",
		Plane: "work", Method: workv1.WorkService_ListWorkItems_FullMethodName,
		NewRequest: newMessage[workv1.ListWorkItemsRequest], NewResponse: newMessage[workv1.ListWorkItemsResponse],
		adapt: adaptList, shape: shapeList,
	},
	{
		Name: "WaitFor", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Wait for an operator (a child: for its supervisor), a task's result, an outside event or a " +
			"time, and end this turn. It attaches to the work item of this turn, else to you. You are woken when it " +
			"happens; the blocker of an outside event is yours to clear with UpdateWorkItem when you have " +
			"looked at it.",
		Plane: "waiting", Method: waitingv1.WaitingService_WaitFor_FullMethodName,
		NewRequest: newMessage[waitingv1.WaitForRequest], NewResponse: newMessage[waitingv1.WaitForResponse],
		Mutates: true, bound: true, focused: true, Required: []string{"reason", "wake"},
	},
	{
		Name: "CreateWait", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Register interest in something outside without stopping: it is counted and shows on the item, " +
			"and blocks nothing.",
		Plane: "waiting", Method: waitingv1.WaitingService_CreateWait_FullMethodName,
		NewRequest: newMessage[waitingv1.CreateWaitRequest], NewResponse: newMessage[waitingv1.CreateWaitResponse],
		Mutates: true, bound: true,
	},
	{
		Name: "CancelWait", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Cancel a wait or an interest. Cancelling again changes nothing.",
		Plane:       "waiting", Method: waitingv1.WaitingService_CancelWait_FullMethodName,
		NewRequest: newMessage[waitingv1.CancelWaitRequest], NewResponse: newMessage[waitingv1.CancelWaitResponse],
		Mutates: true, Required: []string{"wait_id"},
	},
	{
		Name: "CreateExternalTrigger", Family: agentv1.ToolFamily_TOOL_FAMILY_EXTERNAL_TRIGGER,
		Description: "Make a secret URL that an outside system can POST to. Wait for it with WaitFor wake external " +
			"and its id as resource. Hand the URL only to whom you want to be woken by.",
		Plane: "waiting", Method: waitingv1.WaitingService_CreateExternalTrigger_FullMethodName,
		NewRequest:  newMessage[waitingv1.CreateExternalTriggerRequest],
		NewResponse: newMessage[waitingv1.CreateExternalTriggerResponse],
		Mutates:     true, bound: true,
	},
	{
		Name: "CancelExternalTrigger", Family: agentv1.ToolFamily_TOOL_FAMILY_EXTERNAL_TRIGGER,
		Description: "Revoke a trigger: its URL is refused from now on.",
		Plane:       "waiting", Method: waitingv1.WaitingService_CancelExternalTrigger_FullMethodName,
		NewRequest:  newMessage[waitingv1.CancelExternalTriggerRequest],
		NewResponse: newMessage[waitingv1.CancelExternalTriggerResponse],
		Mutates:     true, Required: []string{"trigger_id"},
	},
	{
		Name: "CreateTimer", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Be sent a message at a time, once or repeatedly. It stops nothing; to stand still until a time " +
			"use WaitFor wake timer.",
		Plane: "waiting", Method: waitingv1.WaitingService_CreateTimer_FullMethodName,
		NewRequest: newMessage[waitingv1.CreateTimerRequest], NewResponse: newMessage[waitingv1.CreateTimerResponse],
		Mutates: true, bound: true,
	},
	{
		Name: "CancelTimer", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Cancel a timer.",
		Plane:       "waiting", Method: waitingv1.WaitingService_CancelTimer_FullMethodName,
		NewRequest: newMessage[waitingv1.CancelTimerRequest], NewResponse: newMessage[waitingv1.CancelTimerResponse],
		Mutates: true, Required: []string{"timer_id"},
	},
	{
		Name: "ReadConversation", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Read back what operators, channels and your supervisor said to you and what you answered, " +
			"newest first. A context shows only the newest part. Find older parts by words (contains), by time " +
			"(since, until) or by work_item_id. A page may be empty although next_page_token is set; then go on with " +
			"it. history_removed: what was said before was removed because of its age.",
		Plane: "agent", Method: agentv1.AgentService_ListConversation_FullMethodName,
		NewRequest:  newMessage[agentv1.ListConversationRequest],
		NewResponse: newMessage[agentv1.ListConversationResponse],
	},
	{
		Name: "ListRounds", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Read back your own rounds, newest first: texts, calls with their arguments, and results. Name " +
			"a turn_id or a work_item_id, and a small page_size, since results are long. history_removed: older " +
			"rounds were removed because of their age.",
		Plane: "agent", Method: agentv1.AgentService_ListRounds_FullMethodName,
		NewRequest: newMessage[agentv1.ListRoundsRequest], NewResponse: newMessage[agentv1.ListRoundsResponse],
	},
	{
		Name: "AgentGet", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Read how an agent stands: identity, lifecycle, posture with its reason, focus, waits, visible " +
			"children. Without agent_id it is you.",
		Plane: "agent", Method: agentv1.AgentService_GetAgent_FullMethodName,
		NewRequest: newMessage[agentv1.GetAgentRequest], NewResponse: newMessage[agentv1.GetAgentResponse],
		anyAgent: true, shape: shapeAgentGet,
	},
	{
		Name: ToolSpawnAgent, Family: agentv1.ToolFamily_TOOL_FAMILY_AGENT_CREATION,
		Description: "Create another reasoning context. private_child (the default) is a bounded delegation: give " +
			"initial_message, the handoff that says what to do, which constraints matter and what to return; you get " +
			"agent_id and task_handle. Supervise it with TaskStatus, TaskOutput, TaskInput for follow-ups and " +
			"TaskStop; its result comes back as a task result for the work item that is current now. When it asks " +
			"something you get a message, also while you wait for its task; answer with TaskInput. Spawning blocks " +
			"nothing: go on, or WaitFor wake task_result with the task id as resource. context fork shows it a " +
			"bounded view of your current item; fresh only the initial_message. workspace_mode worktree gives it a " +
			"git worktree of your repository on a branch of its own: unchanged it goes with the child, changed it is " +
			"kept and the result says where. public_named makes a long-lived agent of its own under agent_id, " +
			"without a handle.",
		Plane: "agent", Method: agentv1.AgentService_SpawnAgent_FullMethodName,
		NewRequest: newMessage[agentv1.SpawnAgentRequest], NewResponse: newMessage[agentv1.SpawnAgentResponse],
		Mutates: true, anyAgent: true, shape: shapeSpawn,
	},
	{
		Name: "ExecCommand", Family: agentv1.ToolFamily_TOOL_FAMILY_LOCAL_ENVIRONMENT,
		Description: "Run a command: cmd for a shell line, or argv for a program and its arguments. Short ones " +
			"answer their output; what takes longer than yield_time goes on as a task, whose handle you get: follow " +
			"it with TaskOutput, or end the turn with WaitFor wake task_result and its id as resource. Commands are " +
			"usually confined: they write below the workspace, in $HOME and in $TMPDIR, do not see other files, and " +
			"reach no server of the machine that they run on.",
		Plane: "task", Method: taskv1.TaskService_ExecCommand_FullMethodName,
		NewRequest: newMessage[taskv1.ExecCommandRequest], NewResponse: newMessage[taskv1.ExecCommandResponse],
		Mutates: true, bound: true, adapt: adaptExec, shape: shapeExec,
	},
	{
		Name: "TaskList", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "List your tasks that are running.",
		Plane:       "task", Method: taskv1.TaskService_ListTasks_FullMethodName,
		NewRequest: newMessage[taskv1.ListTasksRequest], NewResponse: newMessage[taskv1.ListTasksResponse],
	},
	{
		Name: toolTaskStatus, Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Read how a task stands. Its output is TaskOutput's. A command that was interrupted, stopped or " +
			"out of time is an error whose details have the task.",
		Plane: "task", Method: taskv1.TaskService_GetTask_FullMethodName,
		NewRequest: newMessage[taskv1.GetTaskRequest], NewResponse: newMessage[taskv1.GetTaskResponse],
		Required: []string{"task_id"},
	},
	{
		Name: toolTaskOutput, Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Read a task's output from an offset, bounded; block waits for more.",
		Plane:       "task", Method: taskv1.TaskService_GetTaskOutput_FullMethodName,
		NewRequest: newMessage[taskv1.GetTaskOutputRequest], NewResponse: newMessage[taskv1.GetTaskOutputResponse],
		Required: []string{"task_id"},
	},
	{
		Name: "TaskInput", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Send input to a task: to a command's stdin, or a message to a child agent, which also answers " +
			"what the child waits for; of several questions name one by wait_id. A refusal is a normal result that " +
			"says why.",
		Plane: "task", Method: taskv1.TaskService_SendTaskInput_FullMethodName,
		NewRequest: newMessage[taskv1.SendTaskInputRequest], NewResponse: newMessage[taskv1.SendTaskInputResponse],
		Mutates: true, NoRecall: true, Required: []string{"task_id"},
	},
	{
		Name: "TaskStop", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Stop a task with all its processes. A second stop kills at once.",
		Plane:       "task", Method: taskv1.TaskService_StopTask_FullMethodName,
		NewRequest: newMessage[taskv1.StopTaskRequest], NewResponse: newMessage[taskv1.StopTaskResponse],
		Mutates: true, Required: []string{"task_id"},
	},
	{
		Name: "HomeRead", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Read a file of your home directory, which outlives conversations: plans are below " +
			"work-items/<id>/plan.md.",
		Plane: "work", Method: workv1.HomeService_ReadFile_FullMethodName,
		NewRequest: newMessage[workv1.ReadFileRequest], NewResponse: newMessage[workv1.ReadFileResponse],
		Required: []string{"path"},
	},
	{
		Name: "HomeWrite", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Write a whole file in your home directory.",
		Plane:       "work", Method: workv1.HomeService_WriteFile_FullMethodName,
		NewRequest: newMessage[workv1.WriteFileRequest], NewResponse: newMessage[workv1.WriteFileResponse],
		Mutates: true, NoRecall: true, Required: []string{"path"}, OneOf: []string{"text", "data"},
	},
	{
		Name: "HomeEdit", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Replace an exact piece of text in a file of your home directory.",
		Plane:       "work", Method: workv1.HomeService_EditFile_FullMethodName,
		NewRequest: newMessage[workv1.EditFileRequest], NewResponse: newMessage[workv1.EditFileResponse],
		Mutates: true, NoRecall: true, Required: []string{"path", "old_text", "new_text"},
	},
	{
		Name: "HomeList", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "List the files of your home directory.",
		Plane:       "work", Method: workv1.HomeService_ListFiles_FullMethodName,
		NewRequest: newMessage[workv1.ListFilesRequest], NewResponse: newMessage[workv1.ListFilesResponse],
	},
	{
		Name: "HomeGrep", Family: agentv1.ToolFamily_TOOL_FAMILY_CORE,
		Description: "Search the text files of your home directory for a regular expression (RE2).",
		Plane:       "work", Method: workv1.HomeService_GrepFiles_FullMethodName,
		NewRequest: newMessage[workv1.GrepFilesRequest], NewResponse: newMessage[workv1.GrepFilesResponse],
		Required: []string{"pattern"},
	},
}

// The names of tools that are treated specially, and short names for the statuses of results.
const (
	toolExecCommand      = "ExecCommand"
	toolTaskStatus       = "TaskStatus"
	toolTaskOutput       = "TaskOutput"
	ToolWaitFor          = "WaitFor"
	ToolSpawnAgent       = "SpawnAgent"
	ToolCompleteWorkItem = "CompleteWorkItem"
	StatusSuccess        = agentv1.ToolStatus_TOOL_STATUS_SUCCESS
	StatusError          = agentv1.ToolStatus_TOOL_STATUS_ERROR
)
