package agent

import (
	"context"
	"strings"
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
	require.Equal(t, "ExecCommand: the command runs on as a task: tsk_1",
		exec(taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK, &taskv1.Task{
			State: taskv1.TaskState_TASK_STATE_RUNNING,
		}))
	r.on("GetTask", func(context.Context, proto.Message) (proto.Message, error) {
		return &taskv1.GetTaskResponse{Task: &taskv1.Task{
			TaskId: "tsk_1", State: taskv1.TaskState_TASK_STATE_FAILED, ExitCode: new(int32(3)), EndedAt: ended,
		}}, nil
	})
	require.Equal(t, "TaskStatus succeeded: tsk_1 failed, exit code 3", r.submit(a, r.turn(a).GetRounds(), "",
		use("TaskStatus", "task_id", "tsk_1")).GetToolResults()[0].GetSummaryText())
}

// A command that did not run to its end is an error with all that is known of it; one that exited is
// a success, whatever its code (SPEC C4.6).
func TestC4_ACommandThatWasCutShortIsAnError(t *testing.T) {
	r, a := turn(t)
	ended := timestamppb.New(epoch)
	var task *taskv1.Task
	r.on("ExecCommand", func(context.Context, proto.Message) (proto.Message, error) {
		return &taskv1.ExecCommandResponse{
			Outcome: taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED, Task: task, Output: "half",
		}, nil
	})
	r.on("GetTask", func(context.Context, proto.Message) (proto.Message, error) {
		return &taskv1.GetTaskResponse{Task: task}, nil
	})
	r.on("GetTaskOutput", func(context.Context, proto.Message) (proto.Message, error) {
		return &taskv1.GetTaskOutputResponse{Task: task, RetrievalStatus: "success", Text: "half"}, nil
	})
	r.on("StopTask", func(context.Context, proto.Message) (proto.Message, error) {
		return &taskv1.StopTaskResponse{Task: task}, nil
	})
	calls := []*agentv1.ToolCall{
		use("ExecCommand", "cmd", "make"), use("TaskStatus", "task_id", "tsk_1"), use("TaskOutput", "task_id", "tsk_1"),
		use("TaskStop", "task_id", "tsk_1"),
	}
	const exited, stopped, timeout = taskv1.TaskEndReason_TASK_END_REASON_EXITED,
		taskv1.TaskEndReason_TASK_END_REASON_STOPPED, taskv1.TaskEndReason_TASK_END_REASON_TIMEOUT
	for _, c := range []struct {
		state  taskv1.TaskState
		reason taskv1.TaskEndReason
		kind   string // "" is a success
		end    string
	}{
		{
			taskv1.TaskState_TASK_STATE_INTERRUPTED, taskv1.TaskEndReason_TASK_END_REASON_WORKER_LOST,
			"task_interrupted",
			"was interrupted, the worker was lost",
		},
		{taskv1.TaskState_TASK_STATE_CANCELLED, stopped, "task_cancelled", "was cancelled, stopped"},
		{taskv1.TaskState_TASK_STATE_FAILED, timeout, "task_timed_out", "failed, no end within 1h"},
		{taskv1.TaskState_TASK_STATE_FAILED, exited, "", "failed, exit code 3"},
		{taskv1.TaskState_TASK_STATE_COMPLETED, exited, "", "completed, exit code 0"},
	} {
		_, message, _ := strings.Cut(c.end, ", ")
		task = &taskv1.Task{
			TaskId: "tsk_1", Kind: taskv1.TaskKind_TASK_KIND_COMMAND_TASK, State: c.state,
			EndReason: c.reason, EndMessage: message, EndedAt: ended,
		}
		results := r.submit(a, r.turn(a).GetRounds(), "", calls...).GetToolResults()
		require.Equal(t, tools.StatusSuccess, results[3].GetStatus(), "TaskStop did what it was called for")
		for i, res := range results[:3] {
			if c.kind == "" {
				require.Equal(t, tools.StatusSuccess, res.GetStatus(), c.end)
				require.NotNil(t, res.GetResult())
				continue
			}
			require.Equal(t, tools.StatusError, res.GetStatus(), c.end)
			require.Nil(t, res.GetResult())
			require.Equal(t, c.kind, res.GetError().GetKind())
			require.Equal(t, []string{
				"ExecCommand: the command " + c.end + ": tsk_1", "TaskStatus: tsk_1 " + c.end,
				"TaskOutput: tsk_1 " + c.end,
			}[i], res.GetSummaryText())
			require.Equal(t, res.GetSummaryText(), res.GetError().GetMessage())
			require.NotEmpty(t, res.GetError().GetRecoveryHint())
			details := res.GetError().GetDetails().GetFields()
			require.Equal(t, "tsk_1", details["task"].GetStructValue().GetFields()["task_id"].GetStringValue())
			require.Equal(t, []string{"half", "", "half"}[i], details["output"].GetStringValue()+
				details["text"].GetStringValue())
		}
		// The caller knows how the command ended, so no message reports it again.
		require.Equal(t, "tsk_1", tools.CompletedTask(results[0]))
	}
	// A child that was stopped is its parent's decision, and a task that runs has not ended.
	task = &taskv1.Task{
		TaskId: "tsk_1", Kind: taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK,
		State: taskv1.TaskState_TASK_STATE_CANCELLED, EndReason: stopped, EndedAt: ended,
	}
	require.Equal(t, []string{"success"}, statuses(r.submit(a, r.turn(a).GetRounds(), "", calls[1])))
	task = &taskv1.Task{TaskId: "tsk_1", State: taskv1.TaskState_TASK_STATE_CANCELLING}
	require.Equal(t, []string{"success"}, statuses(r.submit(a, r.turn(a).GetRounds(), "", calls[1])))
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
		return &workv1.ListWorkItemsResponse{WorkItems: []*workv1.WorkItem{{WorkItemId: "wi_1"}, {WorkItemId: "wi_2"}}},
			nil
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
		return &workv1.PickWorkItemResponse{
			BindingNote: "Further calls of this turn are bound",
			WorkItem:    &workv1.WorkItem{WorkItemId: "wi_1"},
		}, nil
	})
	note := r.callTool(r.operator(), "", "", "PickWorkItem", "work_item_id", "wi_1").GetResult().GetResult().
		GetFields()["binding_note"].GetStringValue()
	require.Contains(t, note, "work_item_id")
	require.NotContains(t, note, "bound")
}

// Models make names of tools up; metrics have none of those.
func TestToolsOfMetricsAreKnown(t *testing.T) {
	require.Equal(t, "ExecCommand", knownTool("ExecCommand"))
	require.Equal(t, "unknown", knownTool("Fly"))
}

// A result that the journal cannot take does not hold the round up: the call has
// its one result, which says so, and the turn goes on (SPEC C4, X8).
func TestC4_ResultsThatAreTooLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r, a := turn(t)
	text := ""
	r.on("ReadFile", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.ReadFileResponse{Text: text}, nil
	})
	read := func(n int) *agentv1.SubmitRoundResponse {
		resp := r.submit(a, r.turn(a).GetRounds(), "I read", asked(n)...)
		require.Len(t, resp.GetToolResults(), n)
		return resp
	}
	statuses := func(resp *agentv1.SubmitRoundResponse) (ok, refused int) {
		for _, res := range resp.GetToolResults() {
			if res.GetStatus() == tools.StatusSuccess {
				ok++
				continue
			}
			require.Equal(t, "limit_exceeded", res.GetError().GetKind())
			require.False(t, res.GetError().GetRetryable(), "the same call would end the same way")
			refused++
		}
		return ok, refused
	}
	// One byte in memory is six in the journal: what fits is not told by its length.
	const envelope = 200
	for size, fits := range map[int]bool{tools.MaxResult/tools.Escaped - envelope: true, tools.MaxResult/tools.Escaped +
		1: false, 1 << 20: false} {
		text = strings.Repeat("\x01", size)
		ok, refused := statuses(read(1))
		require.Equal(t, fits, ok == 1, "%d", size)
		require.Equal(t, !fits, refused == 1, "%d", size)
	}
	text = strings.Repeat("a", tools.MaxResult-envelope)
	ok, _ := statuses(read(1))
	require.Equal(t, 1, ok)

	// Together they stay within what a client takes.
	text = strings.Repeat("a", 1<<20)
	resp := read(40)
	ok, refused := statuses(resp)
	require.Equal(t, 7, ok)
	require.Equal(t, 33, refused)
	require.Less(t, proto.Size(resp), tools.MaxResults+1<<20)
	again, err := r.trySubmit(a, r.turn(a).GetRounds()-1, "I read", asked(40)...)
	require.NoError(t, err)
	require.True(t, proto.Equal(resp.GetToolResults()[39], again.GetToolResults()[39]))

	// Outside of a turn it is the same for each call.
	text = strings.Repeat("a", tools.MaxResult+1)
	require.Equal(t, "limit_exceeded", r.callTool(r.operator(), "", "", "HomeRead", "path", "x").GetResult().GetError().
		GetKind())

	// What was done stays done, and says so.
	r.on("CreateWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.CreateWorkItemResponse{
			WorkItem: &workv1.WorkItem{WorkItemId: "wi_1", Objective: strings.Repeat("a", tools.MaxResult)},
		}, nil
	})
	made := r.submit(a, r.turn(a).GetRounds(), "", use("CreateWorkItem", "objective", "x")).GetToolResults()[0]
	require.Equal(t, tools.StatusSuccess, made.GetStatus())
	require.Contains(t, made.GetSummaryText(), "too large")
	require.Contains(t, made.GetResult().GetFields()["dropped"].GetStringValue(), "do not repeat it")
	r.restart()
	r.finish(a, done)
}

func asked(n int) []*agentv1.ToolCall {
	calls := make([]*agentv1.ToolCall, n)
	for i := range calls {
		calls[i] = use("HomeRead", "path", "x")
	}
	return calls
}
