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

// gitTimeout bounds one git command; a checkout of a large repository takes
// minutes.
const gitTimeout = 10 * time.Minute

// gitSettings keep git from running programs that a repository configures: hooks, a
// file system monitor, and garbage collection in the background.
var gitSettings = []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"}

// git runs git in a directory and returns its output without the final newline. Git
// has the environment of a command, so that it inherits no secrets, and the marks of
// one, so that the worker's next process ends it if this process dies.
func (w *Worker) git(ctx context.Context, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append(append([]string{"-C", dir}, gitSettings...), args...)...)
	cmd.Env = append(w.environ(&taskv1.Task{}), "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
	cmd.SysProcAttr = proctree.GroupAttr()
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
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
		return "", &gitError{args[0], errorLine(stderr.String()), err}
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// gitError is the error of a git command that failed, was ended by a signal, or could not be
// started.
type gitError struct {
	verb, message string
	err           error
}

func (e *gitError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("git %s: %v", e.verb, e.err)
	}
	return fmt.Sprintf("git %s: %s", e.verb, e.message)
}

func (e *gitError) Unwrap() error { return e.err }

// refused reports whether err says that git ran to its end and failed: that is git's
// answer. It reports false for nil, and for a git command that could not be started or was
// ended by a signal.
func refused(err error) bool { return exitCode(err) > 0 }

// exitCode returns the exit code of a git command that ran to its end and failed; otherwise
// it returns 0 or less.
func exitCode(err error) int {
	var e *gitError
	var exit *exec.ExitError
	if !errors.As(err, &e) || !errors.As(e.err, &exit) {
		return 0
	}
	return exit.ExitCode()
}

// errorLine returns the first line of git's error output that names an error, without
// "fatal: " or "error: ". If there is none, it returns the last line.
func errorLine(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for _, l := range lines {
		if strings.HasPrefix(l, "fatal: ") || strings.HasPrefix(l, "error: ") {
			return strings.ToValidUTF8(l[len("fatal: "):], "\uFFFD")
		}
	}
	return strings.ToValidUTF8(lines[len(lines)-1], "\uFFFD")
}
