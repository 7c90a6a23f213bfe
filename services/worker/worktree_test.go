package worker_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
	"quartet/pkg/rpc"
	"quartet/services/worker"
)

const (
	wtPreparing = taskv1.WorktreeState_WORKTREE_STATE_PREPARING
	wtReady     = taskv1.WorktreeState_WORKTREE_STATE_READY
	wtRemoved   = taskv1.WorktreeState_WORKTREE_STATE_REMOVED
	wtKept      = taskv1.WorktreeState_WORKTREE_STATE_KEPT
)

// git runs the real git for a test, as somebody with a name.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "git",
		append([]string{"-C", dir, "-c", "user.name=Test", "-c", "user.email=test@example.com"}, args...)...)
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, proctree.StartUnmarked(cmd)) // a worker may start commands meanwhile
	require.NoError(t, cmd.Wait(), "git %v: %s", args, out)
	return strings.TrimSpace(out.String())
}

// repository creates a git repository with one commit.
func repository(t testing.TB, dir string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "file"), []byte("one\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("ignored\n"), 0o600))
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "--quiet", "-m", "first")
	return git(t, dir, "rev-parse", "HEAD")
}

func (r *rig) worktrees() taskv1.WorktreeServiceClient {
	return taskv1.NewWorktreeServiceClient(must.Value(r.dial())(r.t))
}

func (r *rig) asService() context.Context {
	return rpc.WithActor(r.t.Context(), rpc.Actor{Namespace: "acme", Principal: "agent", Role: rpc.RoleService})
}

func (r *rig) plan(root string) *taskv1.PlanWorktreeResponse {
	r.t.Helper()
	return must.Value(r.worktrees().PlanWorktree(r.asService(), &taskv1.PlanWorktreeRequest{WorkspaceRoot: root}))(r.t)
}

// lay creates a planned worktree for a task.
func (r *rig) lay(root, taskID string) *taskv1.Worktree {
	r.t.Helper()
	p := r.plan(root)
	wt := proto.CloneOf(p.GetWorktree())
	wt.Path, wt.Branch = filepath.Join(p.GetDirectory(), taskID), "quartet/"+taskID
	return wt
}

func (r *rig) make(wt *taskv1.Worktree) *taskv1.Worktree {
	r.t.Helper()
	resp := must.Value(r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: wt}))(r.t)
	require.Equal(r.t, wtReady, resp.GetWorktree().GetState())
	return resp.GetWorktree()
}

func (r *rig) remove(wt *taskv1.Worktree) *taskv1.Worktree {
	r.t.Helper()
	resp := must.Value(r.worktrees().RemoveWorktree(r.asService(), &taskv1.RemoveWorktreeRequest{Worktree: wt}))(r.t)
	return resp.GetWorktree()
}

func branches(t testing.TB, repo string) string {
	return git(t, repo, "for-each-ref", "--format=%(refname:short)", "refs/heads")
}

// Calls that plan worktrees of one directory at the same time are all answered, each with the state after its begin.
func TestT9_PlansAtTheSameTime(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	repo := filepath.Join(r.root, "repo")
	base := repository(t, repo)
	errs := make(chan error)
	const calls = 12
	for range calls {
		go func() {
			resp, err := r.worktrees().PlanWorktree(r.asService(), &taskv1.PlanWorktreeRequest{WorkspaceRoot: repo})
			if err == nil && resp.GetWorktree().GetBaseCommit() != base {
				err = errors.New("another commit: " + resp.String())
			}
			errs <- err
		}()
	}
	for range calls {
		require.NoError(t, <-errs)
	}
}

// A worktree lies beside its repository, on a branch of its own; the repository
// shows nothing of it. Made twice it is one; removed twice it is gone, with its
// branch and all that git knew of it.
func TestT9_MadeAndRemovedAgainAndAgain(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	repo := filepath.Join(r.root, "repo")
	base := repository(t, repo)
	p := r.plan(filepath.Join(repo, "sub"))
	require.Equal(t, "sub", p.GetSubdirectory())
	require.Equal(t, repo, p.GetWorktree().GetRepository())
	require.Equal(t, base, p.GetWorktree().GetBaseCommit())
	require.Equal(t, "local", p.GetWorktree().GetWorkerId())
	require.Equal(t, filepath.Join(r.root, ".quartet-worktrees"), p.GetDirectory())

	wt := r.lay(repo, "tsk_1")
	for range 2 {
		ready := r.make(wt)
		require.Equal(t, "one\n", readFile(t, filepath.Join(ready.GetPath(), "sub", "file")))
		require.Equal(t, "quartet/tsk_1", git(t, ready.GetPath(), "symbolic-ref", "--short", "HEAD"))
		require.Equal(t, base, git(t, ready.GetPath(), "rev-parse", "HEAD"))
		wt = ready
	}
	require.NoError(t, os.WriteFile(filepath.Join(wt.GetPath(), "ignored"), []byte("x"), 0o600))
	for range 2 {
		require.Equal(t, wtRemoved, r.remove(wt).GetState())
		require.NoDirExists(t, wt.GetPath())
		require.Equal(t, "main", branches(t, repo))
		require.Equal(t, "worktree "+repo, strings.Split(git(t, repo, "worktree", "list", "--porcelain"), "\n")[0])
		require.Equal(t, 1, strings.Count(git(t, repo, "worktree", "list", "--porcelain"), "worktree "))
	}
	require.Empty(t, git(t, repo, "status", "--porcelain"))
}

// A repository that fills its root has its worktrees within, and still shows
// nothing of them.
func TestT9_ARepositoryThatIsTheRoot(t *testing.T) {
	r := newRig(t)
	repository(t, r.root)
	r.worker(nil)
	wt := r.make(r.lay("", "tsk_1"))
	require.Equal(t, filepath.Join(r.root, ".quartet-worktrees", "tsk_1"), wt.GetPath())
	require.Empty(t, git(t, r.root, "status", "--porcelain"))
	require.NoError(t, os.WriteFile(filepath.Join(wt.GetPath(), "new"), []byte("x"), 0o600))
	require.Empty(t, git(t, r.root, "status", "--porcelain"))
	require.Equal(t, wtKept, r.remove(wt).GetState())
}

// What was changed is kept, whatever the change was, and the reason is said.
func TestT9_ChangedIsKept(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	repo := filepath.Join(r.root, "repo")
	repository(t, repo)
	change := func(path string) func(string) {
		return func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte("changed\n"), 0o600))
		}
	}
	for taskID, c := range map[string]struct {
		do  func(dir string)
		why string
	}{
		"tsk_modified":  {change("sub/file"), "1 uncommitted change(s)"},
		"tsk_untracked": {change("other"), "1 uncommitted change(s)"},
		"tsk_staged": {
			func(dir string) { change("other")(dir); git(t, dir, "add", "other") },
			"1 uncommitted change(s)",
		},
		"tsk_deleted": {
			func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "sub", "file"))) },
			"1 uncommitted change(s)",
		},
		"tsk_committed": {func(dir string) {
			change("sub/file")(dir)
			git(t, dir, "commit", "--quiet", "-am", "own")
		}, "1 commit(s) of its own"},
		"tsk_detached": {
			func(dir string) { git(t, dir, "checkout", "--quiet", "--detach") },
			"it is not on its branch any more",
		},
		"tsk_switched": {
			func(dir string) { git(t, dir, "checkout", "--quiet", "-b", "mine") },
			"it is on the branch mine",
		},
		"tsk_locked": {
			func(dir string) { git(t, repo, "worktree", "lock", dir) },
			"git worktree: cannot remove a locked working tree",
		},
		"tsk_replaced": {func(dir string) {
			require.NoError(t, os.RemoveAll(dir))
			repository(t, dir)
		}, "it is not on its branch any more"},
	} {
		t.Run(taskID, func(t *testing.T) {
			wt := r.make(r.lay(repo, taskID))
			c.do(wt.GetPath())
			for range 2 {
				got := r.remove(wt)
				require.Equal(t, wtKept, got.GetState())
				require.Contains(t, got.GetReason(), c.why)
				require.DirExists(t, wt.GetPath())
				require.Contains(t, branches(t, repo), "quartet/"+taskID)
			}
		})
	}
	t.Run("committed, then removed by hand", func(t *testing.T) {
		wt := r.make(r.lay(repo, "tsk_byhand"))
		change("sub/file")(wt.GetPath())
		git(t, wt.GetPath(), "commit", "--quiet", "-am", "own")
		require.NoError(t, os.RemoveAll(wt.GetPath()))
		require.Contains(t, r.remove(wt).GetReason(), "1 commit(s) of its own")
		require.Contains(t, branches(t, repo), "quartet/tsk_byhand")
	})
	t.Run("clean, then removed by hand", func(t *testing.T) {
		wt := r.make(r.lay(repo, "tsk_gone"))
		require.NoError(t, os.RemoveAll(wt.GetPath()))
		require.Equal(t, wtRemoved, r.remove(wt).GetState())
		require.NotContains(t, branches(t, repo), "quartet/tsk_gone")
		require.NotContains(t, git(t, repo, "worktree", "list", "--porcelain"), "tsk_gone")
	})
}

// A make that was cut off is made anew, and removed whole when nobody needs it
// any more: whatever there is of it, nobody has worked in it.
func TestT9_AMakeThatWasCutOff(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	repo := filepath.Join(r.root, "repo")
	repository(t, repo)
	for taskID, leave := range map[string]func(wt *taskv1.Worktree){
		"tsk_nothing": func(*taskv1.Worktree) {},
		"tsk_directory": func(wt *taskv1.Worktree) {
			require.NoError(t, os.MkdirAll(filepath.Join(wt.GetPath(), "x"), 0o755))
		},
		"tsk_branch": func(wt *taskv1.Worktree) { git(t, repo, "branch", wt.GetBranch(), wt.GetBaseCommit()) },
		"tsk_half": func(wt *taskv1.Worktree) { // as git has it in the middle: locked, without files
			git(t, repo, "worktree", "add", "--quiet", "--no-checkout", "-b", wt.GetBranch(), wt.GetPath(),
				wt.GetBaseCommit())
			git(t, repo, "worktree", "lock", "--reason", "initializing", wt.GetPath())
		},
		"tsk_without_directory": func(wt *taskv1.Worktree) {
			git(t, repo, "worktree", "add", "--quiet", "-b", wt.GetBranch(), wt.GetPath(), wt.GetBaseCommit())
			require.NoError(t, os.RemoveAll(wt.GetPath()))
		},
	} {
		t.Run(taskID, func(t *testing.T) {
			wt := r.lay(repo, taskID)
			require.Equal(t, wtPreparing, wt.GetState())
			leave(wt)
			ready := r.make(wt)
			require.Equal(t, "one\n", readFile(t, filepath.Join(ready.GetPath(), "sub", "file")))
			require.Empty(t, git(t, ready.GetPath(), "status", "--porcelain"))
			require.Equal(t, wtRemoved, r.remove(ready).GetState())

			leave(wt)
			require.Equal(t, wtRemoved, r.remove(wt).GetState())
			require.NoDirExists(t, wt.GetPath())
			require.Equal(t, "main", branches(t, repo))
			require.NotContains(t, git(t, repo, "worktree", "list", "--porcelain"), taskID)
		})
	}
	wt := r.lay(repo, "tsk_foreign") // somebody's branch is nobody else's to take
	git(t, repo, "commit", "--quiet", "--allow-empty", "-m", "second")
	git(t, repo, "branch", wt.GetBranch())
	_, err := r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: wt})
	require.ErrorIs(t, err, fault.WorktreeFailed)
	require.Contains(t, branches(t, repo), wt.GetBranch())
}

// A worktree that is complete is not made anew, whatever was done to it before a creation is
// repeated.
func TestT9_ARepeatedMakeTouchesNothing(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	repo := filepath.Join(r.root, "repo")
	repository(t, repo)
	for taskID, c := range map[string]struct {
		do  func(dir string)
		why string // empty: it is ready
	}{
		"tsk_worked": {func(string) {}, ""},
		"tsk_locked": {func(dir string) { git(t, repo, "worktree", "lock", dir) }, ""},
		"tsk_reason": {func(dir string) { git(t, repo, "worktree", "lock", "--reason", "mine", dir) }, ""},
		"tsk_switched": {
			func(dir string) { git(t, dir, "checkout", "--quiet", "-b", "mine") },
			"is on the branch mine",
		},
		"tsk_detached": {func(dir string) { git(t, dir, "checkout", "--quiet", "--detach") }, "is not on the branch"},
		"tsk_replaced": {func(dir string) {
			require.NoError(t, os.RemoveAll(dir))
			repository(t, dir)
		}, "is not on the branch"},
	} {
		t.Run(taskID, func(t *testing.T) {
			wt := r.lay(repo, taskID)
			work := filepath.Join(r.make(wt).GetPath(), "work")
			c.do(wt.GetPath())
			require.NoError(t, os.WriteFile(work, []byte("work\n"), 0o600))
			for range 2 {
				resp, err := r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: wt})
				if c.why == "" {
					require.NoError(t, err)
					require.Equal(t, wtReady, resp.GetWorktree().GetState())
				} else {
					require.ErrorIs(t, err, fault.WorktreeFailed)
					require.ErrorContains(t, err, c.why)
				}
				require.Equal(t, wtKept, r.remove(wt).GetState(), "as being created, which it is not")
				require.Equal(t, "work\n", readFile(t, work))
			}
		})
	}
}

// A git command that cannot be started says nothing about a worktree.
func TestT9_WithoutGitNothingIsTouched(t *testing.T) {
	r := newRig(t)
	repo := filepath.Join(r.root, "repo")
	repository(t, repo)
	r.worker(nil)
	wt := r.lay(repo, "tsk_1")
	work := filepath.Join(r.make(wt).GetPath(), "work")
	require.NoError(t, os.WriteFile(work, []byte("work\n"), 0o600))
	half := r.lay(repo, "tsk_2")
	git(t, repo, "branch", half.GetBranch(), half.GetBaseCommit())
	for name, put := range map[string]func(dir string){
		"missing": func(string) {},
		"killed": func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\nkill -9 $$\n"), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(dir)
			t.Setenv("PATH", dir)
			for _, wt := range []*taskv1.Worktree{wt, half} {
				_, err := r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: wt})
				require.ErrorIs(t, err, fault.WorktreeFailed)
				resp, err := r.worktrees().RemoveWorktree(r.asService(), &taskv1.RemoveWorktreeRequest{Worktree: wt})
				require.NotEqual(t, wtRemoved, resp.GetWorktree().GetState(), "%v", err)
			}
			require.Equal(t, "work\n", readFile(t, work))
		})
	}
	require.Contains(t, branches(t, repo), half.GetBranch())
	require.Equal(t, wtRemoved, r.remove(half).GetState())
}

// What cannot be the place of a worktree is refused with its reason.
func TestT9_NoWorkTree(t *testing.T) {
	r := newRig(t)
	plan := func(root string) error {
		return must.Err(r.worktrees().PlanWorktree(r.asService(), &taskv1.PlanWorktreeRequest{WorkspaceRoot: root}))
	}
	require.ErrorIs(t, plan(""), fault.NotReady)
	require.ErrorContains(t, plan(""), "no worker is connected")
	outer := filepath.Join(r.root, "outer")
	repository(t, outer)
	require.NoError(t, os.MkdirAll(filepath.Join(outer, "inner"), 0o755))
	plain := filepath.Join(r.root, "plain")
	empty := filepath.Join(r.root, "empty")
	for _, dir := range []string{plain, empty} {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	git(t, empty, "init", "--quiet")
	r.worker(func(c *worker.Config) {
		c.Roots = []string{plain, empty, filepath.Join(outer, "inner"), filepath.Join(outer, ".git")}
	})
	for root, why := range map[string]string{
		plain:                         "not a git repository",
		"":                            "not a git repository",
		empty:                         "has no commit to begin at",
		filepath.Join(outer, "inner"): "is outside the roots",
		filepath.Join(outer, ".git"):  "must be run in a work tree",
		filepath.Join(plain, "none"):  "does not exist",
		"/":                           "is outside the roots",
	} {
		err := plan(root)
		require.ErrorIs(t, err, fault.NotAWorkTree, root)
		require.ErrorContains(t, err, why, root)
	}
}

// A worker makes and removes only what it would have planned, wherever an order
// comes from.
func TestT9_OnlyInItsPlace(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	repo := filepath.Join(r.root, "repo")
	repository(t, repo)
	good := r.lay(repo, "tsk_1")
	elsewhere := t.TempDir()
	for name, spoil := range map[string]func(*taskv1.Worktree){
		"a path elsewhere":       func(wt *taskv1.Worktree) { wt.Path = filepath.Join(elsewhere, "tsk_1") },
		"a path that climbs":     func(wt *taskv1.Worktree) { wt.Path = filepath.Dir(wt.GetPath()) + "/x/../../tsk_1" },
		"the repository itself":  func(wt *taskv1.Worktree) { wt.Path = repo },
		"a repository elsewhere": func(wt *taskv1.Worktree) { wt.Repository = elsewhere },
		"another branch":         func(wt *taskv1.Worktree) { wt.Branch = "main" },
		"no commit":              func(wt *taskv1.Worktree) { wt.BaseCommit = "--force" },
	} {
		wt := proto.CloneOf(good)
		spoil(wt)
		_, err := r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: wt})
		require.ErrorIs(t, err, fault.WorktreeFailed, name)
		require.Equal(t, wtKept, r.remove(wt).GetState(), name)
	}
	require.Equal(t, "main", branches(t, repo))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(r.root, ".quartet-worktrees")))
	must.Fail(r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: good}))(t, "not a link")
	require.Empty(t, must.Value(os.ReadDir(elsewhere))(t))
}

// A worker that is not there is said to be; one that comes back, in a new life
// or behind a new task plane, goes on with the same worktree.
func TestT9_OverRestarts(t *testing.T) {
	r := newRig(t)
	w := r.worker(nil)
	repo := filepath.Join(r.root, "repo")
	repository(t, repo)
	wt := r.make(r.lay(repo, "tsk_1"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, w.Stop(ctx))
	gone := func() error {
		return must.Err(r.worktrees().RemoveWorktree(r.asService(), &taskv1.RemoveWorktreeRequest{Worktree: wt}))
	}
	r.eventually(func() bool { return gone() != nil })
	require.ErrorIs(t, gone(), fault.NotReady)
	require.DirExists(t, wt.GetPath())
	w = r.worker(nil)
	wt = r.make(wt)
	r.down()
	r.up()
	r.eventually(func() bool { return w.Ready() == nil })
	r.eventually(func() bool {
		resp, err := r.worktrees().RemoveWorktree(r.asService(), &taskv1.RemoveWorktreeRequest{Worktree: wt})
		return err == nil && resp.GetWorktree().GetState() == wtRemoved
	})
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	return string(must.Value(os.ReadFile(name))(t))
}

// X1: a worker that ends in the middle of a checkout leaves half a worktree and no
// process; its next life makes the whole of it.
func TestT9_AWorkerThatEndsInTheMiddle(t *testing.T) {
	r := newRig(t)
	w := r.worker(nil)
	repo, mark := filepath.Join(r.root, "repo"), filepath.Join(r.root, "mark")
	repository(t, repo)
	require.NoError(t, os.WriteFile(filepath.Join(repo, ".gitattributes"), []byte("slow filter=slow\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(repo, "slow"), []byte("slow\n"), 0o600))
	git(t, repo, "add", "-A")
	git(t, repo, "commit", "--quiet", "-m", "slow")
	git(t, repo, "config", "filter.slow.smudge", "touch "+mark+"; sleep 3000; cat")
	git(t, repo, "config", "filter.slow.clean", "cat")
	wt := r.lay(repo, "tsk_1")
	cut := make(chan error, 1)
	go func() {
		_, err := r.worktrees().MakeWorktree(r.asService(), &taskv1.MakeWorktreeRequest{Worktree: wt})
		cut <- err
	}()
	r.eventually(func() bool {
		_, err := os.Lstat(mark)
		return err == nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, w.Stop(ctx))
	require.ErrorIs(t, fault.From(<-cut), fault.NotReady)
	require.DirExists(t, wt.GetPath())
	r.eventually(func() bool { return alive(t, r.state) == 0 })
	git(t, repo, "config", "filter.slow.smudge", "cat")
	r.worker(nil)
	ready := r.make(wt)
	require.Equal(t, "slow\n", readFile(t, filepath.Join(ready.GetPath(), "slow")))
	require.Equal(t, wtRemoved, r.remove(ready).GetState())
	require.Equal(t, "main", branches(t, repo))
}
