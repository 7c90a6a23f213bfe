package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/tools"
)

// The tool worked, the command did not: the summary says both (SPEC C4, T1).
func TestC4_ASummaryTellsHowACommandEnded(t *testing.T) {
	r, a := turn(t)
	ended := timestamppb.New(epoch)
	exec := func(outcome taskv1.ExecOutcome, task *taskv1.Task) string {
		task.TaskId = "tsk_1"
		r.on("ExecCommand", func(context.Context, proto.Message) (proto.Message, error) {
			return &taskv1.ExecCommandResponse{Outcome: outcome, Task: task}, nil
		})
		res := r.submit(a, r.turn(a).GetRounds(), "", use("ExecCommand", "cmd", "make")).GetToolResults()[0]
		require.Equal(t, tools.StatusSuccess, res.GetStatus())
		return res.GetSummaryText()
	}
	const completed = taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED
	require.Equal(t, "ExecCommand: the command failed, exit code 3: tsk_1", exec(completed, &taskv1.Task{
		State: taskv1.TaskState_TASK_STATE_FAILED, ExitCode: new(int32(3)), EndMessage: "exit code 3", EndedAt: ended,
	}))
	require.Equal(t, "ExecCommand: the command failed, exit code 3: tsk_1", exec(completed, &taskv1.Task{
		State: taskv1.TaskState_TASK_STATE_FAILED, ExitCode: new(int32(3)), EndedAt: ended,
	}))
	require.Equal(t, "ExecCommand: the command failed, ended by SIGKILL: tsk_1", exec(completed, &taskv1.Task{
		State: taskv1.TaskState_TASK_STATE_FAILED, EndMessage: "ended by SIGKILL", EndedAt: ended,
	}))
	require.Equal(t, "ExecCommand: the command completed, exit code 0: tsk_1", exec(completed, &taskv1.Task{
		State: taskv1.TaskState_TASK_STATE_COMPLETED, ExitCode: new(int32(0)), EndedAt: ended,
	}))
	require.Equal(t, "ExecCommand: the command runs on as a task: tsk_1", exec(taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK, &taskv1.Task{
		State: taskv1.TaskState_TASK_STATE_RUNNING,
	}))
	r.on("GetTask", func(context.Context, proto.Message) (proto.Message, error) {
		return &taskv1.GetTaskResponse{Task: &taskv1.Task{TaskId: "tsk_1", State: taskv1.TaskState_TASK_STATE_FAILED, ExitCode: new(int32(3)), EndedAt: ended}}, nil
	})
	require.Equal(t, "TaskStatus succeeded: tsk_1 failed, exit code 3", r.submit(a, r.turn(a).GetRounds(), "", use("TaskStatus", "task_id", "tsk_1")).GetToolResults()[0].GetSummaryText())
}

// A list without entries is a list, and its summary counts.
func TestC4_ListsAreCounted(t *testing.T) {
	r, a := turn(t)
	one := func(name string, args ...any) *agentv1.ToolResult {
		return r.submit(a, r.turn(a).GetRounds(), "", use(name, args...)).GetToolResults()[0]
	}
	none := one("ListWorkItems")
	require.Equal(t, "ListWorkItems succeeded: 0 work items", none.GetSummaryText())
	require.NotNil(t, none.GetResult().GetFields()["work_items"].GetListValue())
	r.on("ListWorkItems", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.ListWorkItemsResponse{WorkItems: []*workv1.WorkItem{{WorkItemId: "wi_1"}, {WorkItemId: "wi_2"}}}, nil
	})
	require.Equal(t, "ListWorkItems succeeded: 2 work items", one("ListWorkItems").GetSummaryText())
	for _, name := range []string{"TaskList", "HomeList", "board_list"} {
		require.Contains(t, one(name).GetSummaryText(), "succeeded: 0 ")
	}
	require.Equal(t, "board_list", one("agent_task_list").GetToolName(), "SPEC C5.8: a former name in a round")
	require.Contains(t, one("HomeGrep", "pattern", "x").GetSummaryText(), "succeeded: 0 ")
	require.Equal(t, "HomeRead succeeded", one("HomeRead", "path", "x").GetSummaryText())
}

// Outside of a turn nothing is bound, and a pick does not promise it.
func TestC4_APickOutsideATurnBindsNothing(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.on("PickWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.PickWorkItemResponse{BindingNote: "Further calls of this turn are bound", WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}}, nil
	})
	note := r.callTool(r.operator(), "", "", "PickWorkItem", "work_item_id", "wi_1").GetResult().GetResult().GetFields()["binding_note"].GetStringValue()
	require.Contains(t, note, "work_item_id")
	require.NotContains(t, note, "bound")
}
