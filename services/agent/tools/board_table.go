package tools

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// boardTable holds the tools with which an agent manages boards (SPEC C4). The tools that only
// workers have are not among them. The board contract calls a board a task, which is also what
// models call commands and children, so the names here say board; the former names and the
// argument task_id are still accepted. The session of the contract is the agent.
var boardTable = []Tool{
	{
		Name: "board_template", former: "agent_task_template", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Read how to write a board. Read it before your first board_create.",
		Plane:       "board", Method: boardv1.BoardService_GetTemplate_FullMethodName,
		NewRequest: newMessage[boardv1.GetTemplateRequest], NewResponse: newMessage[boardv1.GetTemplateResponse],
	},
	{
		Name: "board_create", former: "agent_task_create", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Create a board: a graph of steps that workers execute. Choose board_id and wal_name yourself. " +
			"Give no status: a step is ready once the steps it depends on are completed. Nothing runs before " +
			"board_dispatch_worker.",
		Plane: "board", Method: boardv1.BoardService_CreateBoard_FullMethodName,
		NewRequest: newMessage[boardv1.CreateBoardRequest], NewResponse: newMessage[boardv1.CreateBoardResponse],
		Mutates: true, Required: []string{"board_id", "wal_name", "title", "steps"}, adapt: adaptBoard,
		shape: shapeBoard,
	},
	{
		Name: "board_get", former: "agent_task_get", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Read a whole board: its steps with dependencies, status and results, and what stalls it.",
		Plane:       "board", Method: boardv1.BoardService_GetBoard_FullMethodName,
		NewRequest: newMessage[boardv1.GetBoardRequest], NewResponse: newMessage[boardv1.GetBoardResponse],
		Required: []string{"board_id"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_list", former: "agent_task_list", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "List your boards, by default the active ones.",
		Plane:       "board", Method: boardv1.BoardService_ListBoards_FullMethodName,
		NewRequest: newMessage[boardv1.ListBoardsRequest], NewResponse: newMessage[boardv1.ListBoardsResponse],
		shape: shapeBoard,
	},
	{
		Name: "board_update", former: "agent_task_update", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Change a board by a list of operations, all of them or none: update_task, add_step, " +
			"update_step, delete_step, add_dependency, remove_dependency, cancel_step, reopen_step, block_board, " +
			"reopen_board.",
		Plane: "board", Method: boardv1.BoardService_UpdateBoard_FullMethodName,
		NewRequest: newMessage[boardv1.UpdateBoardRequest], NewResponse: newMessage[boardv1.UpdateBoardResponse],
		Mutates: true, Required: []string{"board_id", "operations"}, adapt: adaptPatch, shape: shapePatch,
	},
	{
		Name: "board_query_steps", former: "agent_task_query_steps", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Read some steps of a board: by status, pool, holder or id.",
		Plane:       "board", Method: boardv1.BoardService_QuerySteps_FullMethodName,
		NewRequest: newMessage[boardv1.QueryStepsRequest], NewResponse: newMessage[boardv1.QueryStepsResponse],
		Required: []string{"board_id"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_update_step", former: "agent_task_update_step", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Set the status of a board's step yourself: a ready one to completed, a pending or ready one to " +
			"blocked, failed or cancelled, a held one to blocked, completed or failed, a blocked or failed one back " +
			"to pending.",
		Plane: "board", Method: boardv1.BoardService_UpdateStep_FullMethodName,
		NewRequest: newMessage[boardv1.UpdateStepRequest], NewResponse: newMessage[boardv1.UpdateStepResponse],
		Mutates: true, Required: []string{"board_id", "step_id", "status"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_complete", former: "agent_task_complete", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Close a board whose required steps are completed and of which none is held. It never " +
			"changes again.",
		Plane: "board", Method: boardv1.BoardService_CompleteBoard_FullMethodName,
		NewRequest: newMessage[boardv1.CompleteBoardRequest], NewResponse: newMessage[boardv1.CompleteBoardResponse],
		Mutates: true, Required: []string{"board_id"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_fail", former: "agent_task_fail", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Give a board up as failed: its workers are stopped first, then every step that has not ended " +
			"fails. It never changes again.",
		Plane: "board", Method: boardv1.BoardService_FailBoard_FullMethodName,
		NewRequest: newMessage[boardv1.FailBoardRequest], NewResponse: newMessage[boardv1.FailBoardResponse],
		Mutates: true, Required: []string{"board_id", "reason"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_cancel", former: "agent_task_cancel", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Give a board up: its workers are stopped first, then every step that has not ended is " +
			"cancelled. It never changes again.",
		Plane: "board", Method: boardv1.BoardService_CancelBoard_FullMethodName,
		NewRequest: newMessage[boardv1.CancelBoardRequest], NewResponse: newMessage[boardv1.CancelBoardResponse],
		Mutates: true, Required: []string{"board_id"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_dispatch_worker", former: "agent_dispatch_worker", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Send one worker of a pool to one ready step of a board, or to one of allowed_step_ids. It " +
			"claims, works and reports by itself; with wait you get what came of it, else read the board later. A " +
			"pool without a free worker refuses.",
		Plane: "board", Method: boardv1.BoardService_DispatchWorker_FullMethodName,
		NewRequest: newMessage[boardv1.DispatchWorkerRequest], NewResponse: newMessage[boardv1.DispatchWorkerResponse],
		Mutates: true, Required: []string{"board_id"}, adapt: adaptDispatch, shape: shapeDispatch,
	},
	{
		Name: "board_cancel_run", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Stop one run of a worker, named by run_id (claimed_by_run_id of its step). The step that it " +
			"holds fails with the reason worker_cancelled and can be reopened.",
		Plane: "board", Method: boardv1.BoardService_CancelWorkerRun_FullMethodName,
		NewRequest:  newMessage[boardv1.CancelWorkerRunRequest],
		NewResponse: newMessage[boardv1.CancelWorkerRunResponse],
		Mutates:     true, Required: []string{"board_id", "run_id"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_open_dispatch", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Let every free worker of a pool claim ready steps of a board, each in a run of its own, until " +
			"board_close_dispatch. A run that exceeds step_timeout (default 1h) is stopped and its step fails.",
		Plane: "board", Method: boardv1.BoardService_OpenStandingDispatch_FullMethodName,
		NewRequest:  newMessage[boardv1.OpenStandingDispatchRequest],
		NewResponse: newMessage[boardv1.OpenStandingDispatchResponse],
		Mutates:     true, Required: []string{"board_id"}, adapt: adaptDispatch, shape: shapeDispatch,
	},
	{
		Name: "board_close_dispatch", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "Close a standing dispatch: nothing more is claimed under it, and its runs continue.",
		Plane:       "board", Method: boardv1.BoardService_CloseStandingDispatch_FullMethodName,
		NewRequest:  newMessage[boardv1.CloseStandingDispatchRequest],
		NewResponse: newMessage[boardv1.CloseStandingDispatchResponse],
		Mutates:     true, Required: []string{"board_id", "dispatch_id"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_list_dispatches", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "List the standing dispatches of a board that are open, with their ids.",
		Plane:       "board", Method: boardv1.BoardService_ListStandingDispatches_FullMethodName,
		NewRequest:  newMessage[boardv1.ListStandingDispatchesRequest],
		NewResponse: newMessage[boardv1.ListStandingDispatchesResponse],
		Required:    []string{"board_id"}, adapt: adaptBoard, shape: shapeBoard,
	},
	{
		Name: "board_list_workers", Family: agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		Description: "List the workers that are connected now, of one pool or all: their pools, capacity, " +
			"labels and runs.",
		Plane: "board", Method: boardv1.BoardService_ListWorkers_FullMethodName,
		NewRequest: newMessage[boardv1.ListWorkersRequest], NewResponse: newMessage[boardv1.ListWorkersResponse],
	},
}

// adaptBoard accepts the argument names of the board contract: task_id for board_id, and
// wal_filename for wal_name.
func adaptBoard(args map[string]any, _ time.Duration) {
	for theirs, ours := range map[string]string{"task_id": "board_id", "wal_filename": "wal_name"} {
		if v, given := args[theirs]; given && args[ours] == nil {
			delete(args, theirs)
			args[ours] = v
		}
	}
}

// adaptPatch accepts a step's dependencies as a list in a patch.
func adaptPatch(args map[string]any, left time.Duration) {
	adaptBoard(args, left)
	ops, _ := args["operations"].([]any)
	for _, op := range ops {
		if m, ok := op.(map[string]any); ok {
			fields, _ := m["fields"].(map[string]any)
			wrapSteps(fields, "depends_on_step_ids")
		}
	}
}

// adaptDispatch limits wait to what is left of the round's time.
func adaptDispatch(args map[string]any, left time.Duration) {
	adaptBoard(args, left)
	wrapSteps(args, "allowed_step_ids")
	text, given := args["wait"].(string)
	if !given {
		return
	}
	if d, err := time.ParseDuration(text); err == nil && d > left {
		args["wait"] = fmt.Sprintf("%.3fs", max(left, 0).Seconds())
	}
}

// wrapSteps wraps a list of steps in a message, which can tell an empty list from none.
func wrapSteps(args map[string]any, name string) {
	if list, ok := args[name].([]any); ok {
		args[name] = map[string]any{"step_ids": list}
	}
}

// shapeBoard leaves out the session, which follows from the caller.
func shapeBoard(properties map[string]*structpb.Value) {
	delete(properties, "session_id")
}

func shapePatch(properties map[string]*structpb.Value) {
	shapeBoard(properties)
	fields := properties["operations"].GetStructValue().GetFields()["items"].GetStructValue().
		GetFields()["properties"].GetStructValue().GetFields()["fields"]
	unwrapSteps(fields.GetStructValue().GetFields()["properties"].GetStructValue().GetFields(), "depends_on_step_ids")
}

func shapeDispatch(properties map[string]*structpb.Value) {
	shapeBoard(properties)
	unwrapSteps(properties, "allowed_step_ids")
}

// unwrapSteps describes a wrapped list as a list.
func unwrapSteps(properties map[string]*structpb.Value, name string) {
	wrapped := properties[name].GetStructValue().GetFields()
	list := wrapped["properties"].GetStructValue().GetFields()["step_ids"]
	if text := wrapped["description"]; text != nil && list.GetStructValue() != nil {
		list.GetStructValue().Fields["description"] = text
	}
	properties[name] = list
}
