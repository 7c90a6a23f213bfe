package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"quartet/pkg/confine"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/sandboxes"
)

// gitTimeout bounds one git command; a checkout of a large repository takes
// minutes.
const gitTimeout = 10 * time.Minute

// gitOwner is the prefix of the names under which git has sandboxes. There is one for each directory, so
// that what one repository configures does not affect git in another repository.
const gitOwner = "git:"

// gitSettings keep git from running programs that a repository configures: hooks, a
// file system monitor, and garbage collection in the background.
var gitSettings = []string{
	"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c",
	"maintenance.auto=false",
}

// git runs git in a directory and returns its output without the final newline. Git runs with the
// environment of a command, so that it inherits no secrets; in a sandbox of its own, since a
// repository can configure programs that git runs; and with the marks of a command (see proctree), so that
// the worker's next process ends it if this process dies.
func (w repositories) git(ctx context.Context, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	sandbox, leave, err := w.sandboxes.Enter(gitOwner+dir, w.space)
	if err != nil {
		return "", &gitError{verb: args[0], err: err}
	}
	defer leave()
	var out, stderr bytes.Buffer
	err = sandboxes.Run(ctx, w.host, sandbox, sandboxes.Program{
		Spec: confine.Spec{
			Argv: append(append([]string{"git", "-C", dir}, gitSettings...), args...),
			Env: append(w.environ(w.space, &taskv1.Task{}, sandbox), "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0",
				"LC_ALL=C"),
			Dir: w.space[0],
		},
		Stdout: &out, Stderr: &stderr,
	})
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

// exitCode returns the exit code of a git command that ran to its end and failed, -1 for one that
// was ended by a signal, and 0 for any other error and for nil.
func exitCode(err error) int {
	var e *gitError
	var exit *sandboxes.ExitError
	if !errors.As(err, &e) || !errors.As(e.err, &exit) {
		return 0
	}
	return exit.Status.ExitStatus()
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
