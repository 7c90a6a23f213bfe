package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/proctree"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

// TestT9_ChildrenInWorktrees has a parent delegate to children in worktrees of a
// real repository, on a real worker, with the server stopped and started between:
// one changes nothing, one leaves a file, one commits (SPEC T4, T9, A12).
func TestT9_ChildrenInWorktrees(t *testing.T) {
	s := dev.Start(t)
	ctx := dev.Within(t)
	agents, tasks := agentv1.NewAgentServiceClient(s.Conn()), taskv1.NewTaskServiceClient(s.Conn())
	repo := filepath.Join(must.Value(filepath.EvalSymlinks(s.Cfg.WorkerRoots[0]))(t), "repo")
	require.NoError(t, os.Mkdir(repo, 0o755))
	git := func(args ...string) string {
		cmd := exec.CommandContext(ctx, "git",
			append([]string{"-C", repo, "-c", "user.name=Test", "-c", "user.email=test@example.com"}, args...)...)
		out := &strings.Builder{}
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(t, proctree.StartUnmarked(cmd)) // the server's worker starts commands meanwhile
		require.NoError(t, cmd.Wait(), "%v: %s", args, out)
		return out.String()
	}
	must.Value(agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "lead", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, WorkspaceRoot: repo,
	}))(t)
	spawn := func(text string) (*agentv1.SpawnAgentResponse, error) {
		return agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			ParentAgentId: "lead", InitialMessage: text, RequestId: text,
			WorkspaceMode: agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE,
		})
	}
	_, err := spawn("too early")
	require.ErrorIs(t, fault.From(err), fault.NotAWorkTree)
	git("init", "--quiet", "--initial-branch=main")
	git("commit", "--quiet", "--allow-empty", "-m", "first")

	children := map[string]*agentv1.SpawnAgentResponse{}
	for _, job := range []string{"true", "echo x > left", "git -c user.name=Test -c user.email=test@example.com " +
		"commit --quiet --allow-empty -m own"} {
		children[job] = must.Value(spawn(job))(t)
	}
	s.Down()
	s.Up()
	for job, child := range children {
		id := child.GetAgentId()
		var got *agentv1.AcquireTurnResponse
		require.Eventually(t, func() bool {
			got, err = agents.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{
				AgentIds: []string{id},
				Wait:     durationpb.New(0),
			})
			return err == nil && got.GetTurn() != nil
		}, time.Minute, 10*time.Millisecond)
		require.Equal(t, job, got.GetMessage().GetText())
		so, err := tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{AgentId: "lead", TaskId: child.GetTaskId()})
		require.NoError(t, err)
		require.Contains(t, so.GetText(), "works in: "+child.GetAgent().GetWorkspaceRoot()+" (branch quartet/"+
			child.GetTaskId()+", worker local)")
		result := must.Value(agents.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
			AgentId: id, TurnId: got.GetTurn().GetTurnId(), RunId: got.GetTurn().GetRunId(), Text: "did " + job,
			ToolCalls: []*agentv1.ToolCall{call("ExecCommand", "cmd", "pwd; "+job)},
		}))(t).GetToolResults()[0].GetResult().GetFields()
		require.Equal(t, child.GetAgent().GetWorkspaceRoot()+"\n", result["output"].GetStringValue())
		require.Equal(t, "local", result["task"].GetStructValue().GetFields()["pinned_worker_id"].GetStringValue())
		must.Value(agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
			AgentId: id, TurnId: got.GetTurn().GetTurnId(), RunId: got.GetTurn().GetRunId(),
		}))(t)
	}
	why := map[string]string{"true": "", "echo x > left": "1 uncommitted change(s)"}
	for job, child := range children {
		task := awaitTask(ctx, t, tasks, "lead", child.GetTaskId())
		require.Equal(t, taskv1.TaskState_TASK_STATE_COMPLETED, task.GetState())
		out, err := tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{AgentId: "lead", TaskId: child.GetTaskId()})
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(out.GetText(), "did "+job), out.GetText())
		wt := task.GetWorktree()
		if reason, known := why[job]; known && reason == "" {
			require.Equal(t, taskv1.WorktreeState_WORKTREE_STATE_REMOVED, wt.GetState())
			require.NoDirExists(t, wt.GetPath())
			require.NotContains(t, git("branch", "--list"), wt.GetBranch())
			continue
		} else if !known {
			require.Equal(t, "1 commit(s) of its own", wt.GetReason())
		} else {
			require.Equal(t, reason, wt.GetReason())
		}
		require.Equal(t, taskv1.WorktreeState_WORKTREE_STATE_KEPT, wt.GetState())
		require.DirExists(t, wt.GetPath())
		require.Contains(t, git("branch", "--list"), wt.GetBranch())
		require.Contains(t, out.GetText(), wt.GetPath(), "the supervisor is told where it is")
		require.Contains(t, out.GetText(), wt.GetReason())
	}
	require.Empty(t, git("status", "--porcelain"))
}

func awaitTask(ctx context.Context, t *testing.T, tasks taskv1.TaskServiceClient, agentID, taskID string) *taskv1.Task {
	t.Helper()
	for {
		r := must.Value(tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{AgentId: agentID, TaskId: taskID}))(t)
		if r.GetTask().GetTerminal() {
			return r.GetTask()
		}
		select {
		case <-ctx.Done():
			require.FailNow(t, "the task does not end", "%v", r.GetTask())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestA10_AForkInATurn has an agent fork a child in a round, on the real planes:
// the child sees the item that the round was bound to, with its plan, and the item
// that the plan refers to; of the third it sees nothing (SPEC A10).
func TestA10_AForkInATurn(t *testing.T) {
	s := dev.Start(t)
	ctx := dev.Within(t)
	agents := agentv1.NewAgentServiceClient(s.Conn())
	_, err := agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "lead", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, InitialMessage: "go",
	})
	require.NoError(t, err)
	acquire := func(agentID string) (got *agentv1.AcquireTurnResponse) {
		require.Eventually(t, func() bool {
			got, err = agents.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{
				AgentIds: []string{agentID},
				Wait:     durationpb.New(time.Second),
			})
			return err == nil && got.GetTurn() != nil
		}, time.Minute, 10*time.Millisecond)
		return got
	}
	turn := acquire("lead").GetTurn()
	index := int32(-1)
	round := func(text string, calls ...*agentv1.ToolCall) []*agentv1.ToolResult {
		index++
		r, err := agents.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
			AgentId: "lead", TurnId: turn.GetTurnId(),
			RunId: turn.GetRunId(), RoundIndex: index, Text: text, ToolCalls: calls,
		})
		require.NoError(t, err)
		for _, res := range r.GetToolResults() {
			require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, res.GetStatus(), "%v", res)
		}
		return r.GetToolResults()
	}
	rules := itemOf(round("", call("CreateWorkItem", "objective", "the rules of the house"))[0])
	other := itemOf(round("", call("CreateWorkItem", "objective", "nobody's business"))[0])
	main := itemOf(round("", call("CreateWorkItem", "objective", "ship the parser", "plan", "1. lexer\n2. as "+rules+
		" says"))[0])
	round("", call("PickWorkItem", "work_item_id", main))
	spawned := round("I hand the lexer over", call("SpawnAgent", "initial_message", "make the lexer", "context",
		"fork"),
		call("SpawnAgent", "initial_message", "make the lexer"))
	id := func(i int) string { return spawned[i].GetResult().GetFields()["agent_id"].GetStringValue() }

	text := acquire(id(0)).GetContext().GetText()
	for _, want := range []string{
		"> make the lexer", main, "ship the parser", "> 1. lexer", rules,
		"the rules of the house", "I hand the lexer over",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, other)
	require.NotContains(t, text, "nobody's business")
	fresh := acquire(id(1)).GetContext().GetText()
	require.Contains(t, fresh, "> make the lexer")
	require.NotContains(t, fresh, "parser")
}

// call returns a tool call with arguments that are texts.
func call(name string, args ...string) *agentv1.ToolCall {
	m := map[string]*structpb.Value{}
	for i := 0; i+1 < len(args); i += 2 {
		m[args[i]] = structpb.NewStringValue(args[i+1])
	}
	return &agentv1.ToolCall{Name: name, Arguments: &structpb.Struct{Fields: m}}
}

// itemOf returns the id of the item that a result shows.
func itemOf(r *agentv1.ToolResult) string {
	return r.GetResult().GetFields()["work_item"].GetStructValue().GetFields()["work_item_id"].GetStringValue()
}

// SPEC A2, P2, A12: a child that waits for an operator is answered by the one who
// may reach it, its supervisor, with TaskInput: the wait is over, the item goes on,
// and the child's end brings the result. Nobody else can answer it, and without
// this it would wait without end.
func TestP2_ASupervisorAnswersItsChild(t *testing.T) {
	proc.Long(t)
	eachWay(t, func(t *testing.T, ctx context.Context, s *system) {
		s.spawn(t, ctx, "lead")
		s.say(t, ctx, "lead", "go")
		lead := s.acquire(t, ctx, "lead")
		spawned := lead.round(t, ctx, "I hand it over",
			tool(t, "SpawnAgent", map[string]any{"initial_message": "paint it"})).GetToolResults()[0]
		childID, taskID := at(spawned, "agent_id"), at(spawned, "task_handle", "task_id")

		child := s.acquire(t, ctx, childID)
		itemID := at(child.round(t, ctx, "", tool(t, "CreateWorkItem", map[string]any{"objective": "paint the door"})).
			GetToolResults()[0], "work_item", "work_item_id")
		asked := child.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": itemID}),
			tool(t, "WaitFor", map[string]any{"reason": "which colour?", "wake": "operator_input"}))
		require.True(t, asked.GetTurnEnded())

		_, err := s.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: childID, Text: "green"})
		require.Error(t, err, "no operator reaches a private child")
		told, err := s.agents.CallTool(ctx, &agentv1.CallToolRequest{
			AgentId: "lead", Name: "TaskInput", Arguments: args(t, map[string]any{"task_id": taskID, "text": "red"}),
		})
		require.NoError(t, err)
		require.Equal(t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, told.GetResult().GetStatus())

		child = s.acquire(t, ctx, childID)
		require.Contains(t, child.got.GetContext().GetText(), "> red")
		require.NotContains(t, child.got.GetContext().GetText(), "Waiting for an operator",
			"the turn begins when the answer was heard")
		// A turn waits 2 s at most for the work plane to know of the answer.
		require.Eventually(t, func() bool {
			it, err := s.work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: childID, WorkItemId: itemID})
			return err == nil && it.GetWorkItem().GetBlockedBy() == "" && len(it.GetWorkItem().GetWaits()) == 0
		}, time.Minute, 10*time.Millisecond)

		child.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": itemID}))
		child.round(t, ctx, "The door is red.", tool(t, "CompleteWorkItem", map[string]any{"work_item_id": itemID}))
		require.Eventually(t, func() bool {
			d, err := s.agents.ListDelegations(ctx, &agentv1.ListDelegationsRequest{AgentId: "lead"})
			return err == nil && len(d.GetDelegations()) == 1 && d.GetDelegations()[0].GetResultSummary() ==
				"The door is red."
		}, time.Minute, 10*time.Millisecond)
	})
}
