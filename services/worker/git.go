package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
)

// gitTerm bounds one git command; a checkout of a large repository takes minutes.
const gitTerm = 10 * time.Minute

// gitSettings keep git from running what a repository brings along while it is
// nobody's command: hooks, a file system monitor, a collection in the background.
var gitSettings = []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"}

// git runs git in a directory and gives what it says. It has the environment of
// a command, so that it inherits no secrets, and its marks, so that the next
// life of this worker ends it if this one dies.
func (w *Worker) git(ctx context.Context, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTerm)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append(append([]string{"-C", dir}, gitSettings...), args...)...) //nolint:gosec // arguments are ours; paths and refs were checked
	cmd.Env = append(w.environ(&taskv1.Task{}), "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
	cmd.SysProcAttr = proctree.GroupAttr()
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	mark, err := w.host.Start(cmd, nil)
	if err == nil {
		err = cmd.Wait()
		if _, left := w.host.End(context.WithoutCancel(ctx), mark, 0); left != nil {
			err = errors.Join(err, left)
		}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", &gitError{args[0], lastLine(said.String()), err}
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// gitError is what git said when it failed.
type gitError struct {
	verb, said string
	err        error
}

func (e *gitError) Error() string {
	if e.said == "" {
		return fmt.Sprintf("git %s: %v", e.verb, e.err)
	}
	return fmt.Sprintf("git %s: %s", e.verb, e.said)
}

func (e *gitError) Unwrap() error { return e.err }

// refused reports whether git ran and said no, as opposed to never having had
// the chance.
func refused(err error) bool {
	var e *gitError
	return errors.As(err, &e)
}

// lastLine is the line in which git says what is wrong.
func lastLine(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	for _, l := range lines {
		if strings.HasPrefix(l, "fatal: ") || strings.HasPrefix(l, "error: ") {
			return strings.ToValidUTF8(l[len("fatal: "):], "\uFFFD")
		}
	}
	return strings.ToValidUTF8(lines[len(lines)-1], "\uFFFD")
}
