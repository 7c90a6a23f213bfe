package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	// worktreesDir is the directory that has the worktrees: beside the repository, or
	// inside of it if beside it is outside of the roots. It has a .gitignore that
	// ignores everything, so that no repository shows it as a change.
	worktreesDir = ".quartet-worktrees"
	// branchPrefix begins the names of the branches of worktrees.
	branchPrefix = "quartet/"
)

// commitID matches a full commit id, of SHA-1 or SHA-256.
var commitID = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// carryOut carries out an order and returns the report. Orders may be repeated, also
// after a crash in the middle of one, so each begins by reading the current state.
func (w *Worker) carryOut(ctx context.Context, o *taskv1.WorktreeOrder) *taskv1.WorktreeReport {
	r := &taskv1.WorktreeReport{OrderId: o.GetOrderId()}
	space, err := w.workspaceOfNamespace(o.GetNamespace())
	repos := repositories{w, space}
	switch {
	case err != nil:
	case o.GetVerb() == planVerb:
		err = repos.planWorktree(ctx, o.GetWorkspaceRoot(), r)
	case o.GetVerb() == taskv1.WorktreeVerb_WORKTREE_VERB_MAKE:
		r.Worktree = proto.CloneOf(o.GetWorktree())
		err = repos.makeWorktree(ctx, r.Worktree)
	case o.GetVerb() == taskv1.WorktreeVerb_WORKTREE_VERB_REMOVE:
		r.Worktree = proto.CloneOf(o.GetWorktree())
		err = repos.removeWorktree(ctx, r.Worktree)
	default:
		err = fmt.Errorf("worker %s does not know the order %s", w.cfg.ID, o.GetVerb())
	}
	if err != nil {
		r.Failure = strings.ToValidUTF8(err.Error(), "\uFFFD")
	}
	return r
}

// repositories carries out the orders about worktrees of one namespace, in the workspace that the agents
// of the namespace share.
type repositories struct {
	*Worker
	space workspace
}

// planWorktree finds the repository that the directory root is in. It sets in r the repository and the
// commit of its HEAD, from which a worktree would be created, the directory for worktrees, and the path of
// root within the repository.
func (w repositories) planWorktree(ctx context.Context, root string, r *taskv1.WorktreeReport) error {
	dir, err := w.workdir(w.space, root)
	if err != nil {
		return err
	}
	out, err := w.git(ctx, dir, "rev-parse", "--show-toplevel", "--show-prefix")
	if err != nil {
		return fmt.Errorf("%s on worker %s: %w", dir, w.cfg.ID, err)
	}
	around, below, _ := strings.Cut(out, "\n")
	top, err := w.workdir(w.space, around)
	if err != nil {
		return fmt.Errorf("the work tree around %s: %w", dir, err)
	}
	base, err := w.git(ctx, dir, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return fmt.Errorf("%s on worker %s has no commit to begin at: %w", dir, w.cfg.ID, err)
	}
	r.Worktree = &taskv1.Worktree{WorkerId: w.cfg.ID, Repository: top, BaseCommit: base}
	r.Directory, r.Subdirectory = w.worktreesOf(top), strings.TrimSuffix(below, "/")
	return nil
}

// worktreesOf returns the directory for the worktrees of a repository: beside it, or
// inside of it if beside it is outside of the roots (SPEC T7).
func (w repositories) worktreesOf(top string) string {
	if beside := filepath.Dir(top); w.space.has(beside) {
		return filepath.Join(beside, worktreesDir)
	}
	return filepath.Join(top, worktreesDir)
}

// admit returns an error unless the worktree is one that this worker could have planned: its repository,
// path, branch and base commit must have the form and place that the worker gives them.
func (w repositories) admit(wt *taskv1.Worktree) error {
	name := filepath.Base(wt.GetPath())
	switch top := wt.GetRepository(); {
	case !filepath.IsAbs(top) || filepath.Clean(top) != top || !w.space.has(top):
		return fmt.Errorf("execution_root_violation: the repository %s is outside the roots of worker %s", top,
			w.cfg.ID)
	case fault.Name("worktree", name) != nil || wt.GetPath() != filepath.Join(w.worktreesOf(top), name):
		return fmt.Errorf("execution_root_violation: worker %s keeps worktrees of %s in %s, not at %s", w.cfg.ID, top,
			w.worktreesOf(top), wt.GetPath())
	case wt.GetBranch() != branchPrefix+name:
		return fmt.Errorf("the branch of worktree %s is %s%s, not %s", name, branchPrefix, name, wt.GetBranch())
	case !commitID.MatchString(wt.GetBaseCommit()):
		return fmt.Errorf("%q is no commit", wt.GetBaseCommit())
	}
	return nil
}

// makeWorktree creates a worktree on a branch of its own, unless it exists and is on that
// branch. What an interrupted creation left at its path is removed first: nobody has worked
// in it, since a child begins after its worktree was reported as ready. Anything else at its
// path is an error and is not touched.
func (w repositories) makeWorktree(ctx context.Context, wt *taskv1.Worktree) error {
	if err := w.admit(wt); err != nil {
		return err
	}
	complete, err := w.isComplete(ctx, wt)
	if err != nil {
		return err
	}
	if complete {
		wt.State = taskv1.WorktreeState_WORKTREE_STATE_READY
		return nil
	}
	dir := filepath.Dir(wt.GetPath())
	if err := w.makeDirectory(dir); err != nil {
		return err
	}
	if err := w.discard(ctx, wt); err != nil {
		return err
	}
	if _, err := w.git(ctx, wt.GetRepository(), "worktree", "add", "--quiet", "--no-track", "-b", wt.GetBranch(),
		wt.GetPath(), wt.GetBaseCommit()); err != nil {
		return err
	}
	wt.State = taskv1.WorktreeState_WORKTREE_STATE_READY
	return nil
}

// makeDirectory creates the directory of worktrees with its .gitignore, if they are missing. A
// symbolic link in its place is an error.
func (w repositories) makeDirectory(dir string) error {
	root, name, err := w.space.open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	err = root.MkdirAll(name, 0o755) // as readable as the repository beside it
	if to, lost := filepath.EvalSymlinks(dir); lost != nil || to != dir {
		return fmt.Errorf("execution_root_violation: %s must be a directory, not a link", dir)
	}
	if err != nil {
		return err
	}
	ignore := filepath.Join(name, ".gitignore")
	if _, err := root.Lstat(ignore); err == nil {
		return nil
	}
	return root.WriteFile(ignore, []byte("*\n"), 0o644)
}

// isComplete reports whether a worktree exists and its creation was not interrupted. It
// returns an error if there is something else at its path that is not left by an interrupted
// creation.
func (w repositories) isComplete(ctx context.Context, wt *taskv1.Worktree) (bool, error) {
	interrupted, err := isInterrupted(wt)
	if err != nil || interrupted {
		return false, err
	}
	on, err := w.headOf(ctx, wt)
	switch {
	case err != nil:
		return false, err
	case on == "":
		return false, fmt.Errorf("%s exists and is not on the branch %s; it is not touched", wt.GetPath(),
			wt.GetBranch())
	case on != wt.GetBranch():
		return false, fmt.Errorf("%s exists and is on the branch %s, not on %s; it is not touched", wt.GetPath(), on,
			wt.GetBranch())
	}
	return true, nil
}

// initializing is the reason with which git locks a worktree while it creates it. Users lock
// worktrees with reasons of their own or none.
const initializing = "initializing"

// isInterrupted reports whether there is nothing at a worktree's path but what an interrupted
// creation or removal of one can have left. Git writes the file .git before all others and
// keeps the worktree locked until it is complete; removal may delete .git first.
func isInterrupted(wt *taskv1.Worktree) (bool, error) {
	link, err := readLine(filepath.Join(wt.GetPath(), ".git"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOTDIR):
		return false, nil // a repository of its own, or a file
	case err != nil:
		return false, err
	}
	admin, ok := strings.CutPrefix(link, "gitdir: ")
	if !ok {
		return len(link) == 0, nil // git was ended before it wrote the link
	}
	if !filepath.IsAbs(admin) {
		admin = filepath.Join(wt.GetPath(), admin)
	}
	lock, err := readLine(filepath.Join(admin, "locked"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return lock == initializing, err
}

// maxLine bounds the files of git that are read, in bytes: they have a path or a reason.
const maxLine = 8 << 10

// readLine returns what a small file contains, without the space around it. Commands of the
// agent may have made the file: one that is not regular, such as a pipe, which would block,
// is an error.
func readLine(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return "", err
	} else if info.IsDir() {
		return "", &fs.PathError{Op: "read", Path: path, Err: unix.EISDIR}
	} else if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxLine))
	return strings.TrimSpace(string(b)), err
}

// headOf returns the branch that a worktree is on. It is empty if there is no
// worktree of the repository at its path, if it is on no branch, or if git refuses.
func (w repositories) headOf(ctx context.Context, wt *taskv1.Worktree) (string, error) {
	if _, err := os.Lstat(filepath.Join(wt.GetPath(), ".git")); err != nil {
		return "", nil //nolint:nilerr // it does not exist, which is the answer
	}
	top, err := w.git(ctx, wt.GetPath(), "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir")
	if err != nil {
		return "", unlessRefused(err)
	}
	common, err := w.git(ctx, wt.GetRepository(), "rev-parse", "--path-format=absolute", "--git-common-dir")
	if err != nil {
		return "", unlessRefused(err)
	}
	if top != wt.GetPath()+"\n"+common {
		return "", nil
	}
	head, err := w.git(ctx, wt.GetPath(), "symbolic-ref", "--quiet", "--short", "HEAD")
	return head, unlessAbsent(err)
}

// unlessRefused returns nil if err says that git ran and failed (see refused), and err otherwise.
func unlessRefused(err error) error {
	if refused(err) {
		return nil
	}
	return err
}

// unlessAbsent returns nil if err is that of exit code 1, with which git says, under --quiet, that there
// is no such reference. Otherwise it returns err.
func unlessAbsent(err error) error {
	if exitCode(err) == 1 {
		return nil
	}
	return err
}

// discard removes what an interrupted creation left: first the directory with all that is in
// it, then the branch. A branch that is not at the base commit is kept and is an error, after
// the directory was removed.
func (w repositories) discard(ctx context.Context, wt *taskv1.Worktree) error {
	// --force is given twice because git locks a worktree while it creates it. A path
	// that git does not know is removed directly; admit has checked that it is below
	// the directory for worktrees.
	if _, err := w.git(ctx, wt.GetRepository(), "worktree", "remove", "--force", "--force",
		wt.GetPath()); unlessRefused(err) != nil {
		return err
	}
	if err := w.removeAll(wt.GetPath()); err != nil {
		return err
	}
	at, err := w.branchAt(ctx, wt)
	if err != nil || at == "" {
		return err
	}
	if at != wt.GetBaseCommit() {
		return fmt.Errorf("the branch %s exists and is at %s; it is not touched", wt.GetBranch(), at)
	}
	return w.deleteBranch(ctx, wt, at)
}

// removeAll removes a directory of the workspace and what is in it.
func (w repositories) removeAll(path string) error {
	root, name, err := w.space.open(path)
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}

// branchAt returns the commit of the worktree's branch; empty if there is no branch.
func (w repositories) branchAt(ctx context.Context, wt *taskv1.Worktree) (string, error) {
	at, err := w.git(ctx, wt.GetRepository(), "rev-parse", "--verify", "--quiet", "refs/heads/"+wt.GetBranch())
	return at, unlessAbsent(err)
}

// deleteBranch deletes the worktree's branch. If the branch is not at the commit at any more, git
// refuses, the branch is kept, and that is an error (see refused).
func (w repositories) deleteBranch(ctx context.Context, wt *taskv1.Worktree, at string) error {
	_, err := w.git(ctx, wt.GetRepository(), "update-ref", "-d", "refs/heads/"+wt.GetBranch(), at)
	return err
}

// removeWorktree removes a worktree without changes, and its branch. One that does not exist
// counts as removed, and one whose creation was interrupted is discarded. Any other one is
// kept, and the reason is reported. If removeWorktree returns an error, the worktree is neither removed
// nor reported as kept: git was ended before it was done, or a file could not be read or removed.
func (w repositories) removeWorktree(ctx context.Context, wt *taskv1.Worktree) error {
	kept := func(format string, args ...any) error { //nolint:unparam // it is returned where it is called
		wt.State, wt.Reason = taskv1.WorktreeState_WORKTREE_STATE_KEPT, fmt.Sprintf(format, args...)
		return nil
	}
	fail := func(err error) error {
		if refused(err) {
			return kept("%v", err)
		}
		return err
	}
	if err := w.admit(wt); err != nil {
		return kept("%v", err)
	}
	if _, err := os.Lstat(wt.GetRepository()); errors.Is(err, fs.ErrNotExist) {
		return kept("the repository %s is gone", wt.GetRepository())
	}
	interrupted, err := isInterrupted(wt)
	if err != nil {
		return err
	}
	if interrupted && wt.GetState() == taskv1.WorktreeState_WORKTREE_STATE_PREPARING {
		if err := w.discard(ctx, wt); err != nil { // no child ever worked in it
			return fail(err)
		}
		wt.State = taskv1.WorktreeState_WORKTREE_STATE_REMOVED
		return nil
	}
	if _, err := os.Lstat(wt.GetPath()); err == nil {
		why, err := w.changes(ctx, wt)
		switch {
		case err != nil:
			return fail(err)
		case why != "":
			return kept("%s", why)
		}
	}
	at, err := w.branchAt(ctx, wt)
	if err != nil {
		return err
	}
	if at != "" {
		own, err := w.git(ctx, wt.GetRepository(), "rev-list", "--count", wt.GetBaseCommit()+".."+at)
		switch {
		case err != nil:
			return fail(err)
		case own != "0":
			return kept("%s commit(s) of its own", own)
		}
	}
	// Git checks for changes itself and refuses if there are any now. For a worktree
	// that does not exist it removes its own records; if it has none, it fails.
	if _, err := w.git(ctx, wt.GetRepository(), "worktree", "remove", wt.GetPath()); err != nil {
		if _, gone := os.Lstat(wt.GetPath()); !errors.Is(gone, fs.ErrNotExist) || !refused(err) {
			return fail(err)
		}
	}
	if at != "" {
		if err := w.deleteBranch(ctx, wt, at); err != nil {
			return fail(err)
		}
	}
	wt.State, wt.Reason = taskv1.WorktreeState_WORKTREE_STATE_REMOVED, ""
	return nil
}

// changes returns a text that says what would be lost with a worktree, or that it is not
// on its branch; empty if nothing would be lost.
func (w repositories) changes(ctx context.Context, wt *taskv1.Worktree) (string, error) {
	on, err := w.headOf(ctx, wt)
	if err != nil {
		return "", err
	}
	if on != wt.GetBranch() {
		if on == "" {
			return "it is not on its branch any more", nil
		}
		return "it is on the branch " + on, nil
	}
	out, err := w.git(ctx, wt.GetPath(), "status", "--porcelain", "--untracked-files=all")
	if err != nil || out == "" {
		return "", err
	}
	return fmt.Sprintf("%d uncommitted change(s)", strings.Count(out, "\n")+1), nil
}
