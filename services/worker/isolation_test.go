package worker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
	"quartet/services/worker"
)

// run runs a shell line of an agent in a directory, and returns its output, or why it could not be started.
func (r *rig) run(agentID, workdir, line string) string {
	r.t.Helper()
	resp := r.exec(&taskv1.ExecCommandRequest{AgentId: agentID, Command: &taskv1.CommandSpec{
		Cmd: line, Workdir: workdir,
	}, YieldTime: durationpb.New(45e9)})
	require.Equal(r.t, taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED, resp.GetOutcome())
	if resp.GetTask().GetEndReason() == taskv1.TaskEndReason_TASK_END_REASON_SPAWN_FAILED {
		return resp.GetTask().GetEndMessage()
	}
	return strings.TrimSpace(resp.GetOutput())
}

// TestT10_AgentsWithDirectoriesOfTheirOwn: where commands of agents run by default, and where they must not run, for
// each isolation.
func TestT10_AgentsWithDirectoriesOfTheirOwn(t *testing.T) {
	for _, c := range []struct {
		isolate             worker.Isolation
		own, sibling, other string // directories below the root: of one agent, of another, and of another namespace's
	}{
		{"", "", "", ""},
		{worker.IsolateNone, "", "", ""},
		{worker.IsolateNamespaces, "acme", "acme", "globex"},
		{worker.IsolateAgents, "acme/keeper", "acme/builder", "globex/keeper"},
	} {
		t.Run(string(c.isolate), func(t *testing.T) {
			r := newRig(t)
			r.worker(func(cfg *worker.Config) { cfg.Isolate = c.isolate })
			own, sibling, other := filepath.Join(r.root, c.own), filepath.Join(r.root, c.sibling),
				filepath.Join(r.root, c.other)
			require.Equal(t, own, r.run("keeper", "", "pwd"))
			require.Equal(t, sibling, r.run("builder", "", "pwd"))
			require.Equal(t, own, r.run("keeper", own, "pwd"))
			acme := r.ctx
			r.ctx = rpc.WithActor(t.Context(), rpc.Actor{Namespace: "globex", Principal: "op", Role: rpc.RoleOperator})
			require.Equal(t, other, r.run("keeper", "", "pwd"))
			r.ctx = acme
			for dir, shared := range map[string]bool{
				sibling: sibling == own, other: other == own,
				r.root: r.root == own,
			} {
				said := r.run("keeper", dir, "pwd")
				if shared {
					require.Equal(t, dir, said)
				} else {
					require.Contains(t, said, "execution_root_violation: "+dir+
						" is outside the roots of worker local; use a directory under "+own)
				}
			}
			if own != r.root {
				require.Equal(t, os.FileMode(0o700), must.Value(os.Stat(own))(t).Mode().Perm())
			}
		})
	}
}

// TestT10_LinksIsolateNothing: what agents left in a root that they shared does not lead others' commands away.
func TestT10_LinksIsolateNothing(t *testing.T) {
	for _, link := range []string{"acme", "acme/keeper"} {
		r := newRig(t)
		elsewhere := filepath.Join(r.root, "elsewhere")
		require.NoError(t, os.MkdirAll(elsewhere, 0o700))
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(r.root, link)), 0o700))
		require.NoError(t, os.Symlink(elsewhere, filepath.Join(r.root, link)))
		r.worker(func(cfg *worker.Config) { cfg.Isolate = worker.IsolateAgents })
		require.Contains(t, r.run("keeper", "", "pwd"), "workspace_unavailable")
		require.Contains(t, r.run("keeper", elsewhere, "pwd"), "workspace_unavailable")
	}
}

// TestT10_WorktreesOfIsolatedNamespaces: children work in worktrees of their namespace's repositories only, and a
// worker that isolates agents makes none.
func TestT10_WorktreesOfIsolatedNamespaces(t *testing.T) {
	r := newRig(t)
	r.worker(func(cfg *worker.Config) { cfg.Isolate = worker.IsolateNamespaces })
	repo := filepath.Join(r.root, "acme", "repo")
	repository(t, repo)
	foreign := filepath.Join(r.root, "globex", "repo")
	repository(t, foreign)
	wt := r.make(r.lay(repo, "tsk_1"))
	require.Equal(t, filepath.Join(r.root, "acme", ".quartet-worktrees", "tsk_1"), wt.GetPath())
	require.Equal(t, "one", r.run("keeper", filepath.Join(wt.GetPath(), "sub"), "cat file"))
	require.Equal(t, wtRemoved, r.remove(wt).GetState())

	_, err := r.worktrees().PlanWorktree(r.asService(), &taskv1.PlanWorktreeRequest{WorkspaceRoot: foreign})
	require.ErrorIs(t, err, fault.NotAWorkTree)
	require.ErrorContains(t, err, "execution_root_violation")
	stolen := r.lay(repo, "tsk_2")
	stolen.Repository, stolen.Path = foreign, filepath.Join(r.root, "globex", ".quartet-worktrees", "tsk_2")
	_, err = r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: stolen})
	require.ErrorContains(t, err, "execution_root_violation")

	// The directory of worktrees is replaced by a link to another namespace's.
	require.NoError(t, os.MkdirAll(filepath.Join(r.root, "globex", "victim", "tsk_3"), 0o700))
	require.NoError(t, os.RemoveAll(filepath.Join(r.root, "acme", ".quartet-worktrees")))
	require.NoError(t, os.Symlink(filepath.Join(r.root, "globex", "victim"),
		filepath.Join(r.root, "acme", ".quartet-worktrees")))
	_, err = r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: r.lay(repo, "tsk_3")})
	require.ErrorIs(t, err, fault.WorktreeFailed)
	require.DirExists(t, filepath.Join(r.root, "globex", "victim", "tsk_3"))

	r = newRig(t)
	r.worker(func(cfg *worker.Config) { cfg.Isolate = worker.IsolateAgents })
	repository(t, filepath.Join(r.root, "acme", "keeper"))
	_, err = r.worktrees().PlanWorktree(r.asService(), &taskv1.PlanWorktreeRequest{
		WorkspaceRoot: filepath.Join(r.root, "acme", "keeper"),
	})
	require.ErrorIs(t, err, fault.NotAWorkTree)
	require.ErrorContains(t, err, "workspace_mode inherit")
}

// TestT10_WhatIsolationIsRefused: the names of isolations, and the one root that one divides.
func TestT10_WhatIsolationIsRefused(t *testing.T) {
	r := newRig(t)
	_, err := worker.New(worker.Config{ID: "local", Roots: []string{r.root}, Dial: r.dial, Isolate: "agents"})
	require.EqualError(t, err, `worker: isolation "agents": must be none, namespace or agent`)
	for _, isolate := range []worker.Isolation{worker.IsolateNamespaces, worker.IsolateAgents} {
		_, err = worker.New(worker.Config{
			ID: "local", Roots: []string{r.root, t.TempDir()}, Dial: r.dial, Isolate: isolate,
		})
		require.ErrorContains(t, err, "divides one root, and there are 2")
	}
	must.Value(worker.New(worker.Config{
		ID: "local", Roots: []string{r.root, t.TempDir()}, Dial: r.dial, Isolate: worker.IsolateNone,
	}))(t)
}
