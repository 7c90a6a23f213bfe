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

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
	"quartet/tests/dev"
)

// TestT9_ChildrenInWorktrees has a parent delegate to children in worktrees of a
// real repository, on a real worker, with the server stopped and started between:
// one changes nothing, one leaves a file, one commits (SPEC T4, T9, A12).
func TestT9_ChildrenInWorktrees(t *testing.T) {
	s := dev.Start(t)
	ctx := dev.Within(t)
	agents, tasks := agentv1.NewAgentServiceClient(s.Conn()), taskv1.NewTaskServiceClient(s.Conn())
	root := must.Value(filepath.EvalSymlinks(s.Cfg.WorkerRoots[0]))(t)
	repo := filepath.Join(root, "repo")
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
