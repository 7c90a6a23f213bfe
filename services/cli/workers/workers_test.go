package workers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/client"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/proctree"
)

func newAssignment() *boardv1.StepAssignment {
	return &boardv1.StepAssignment{
		Run:          &boardv1.WorkerRun{RunId: "run_1", SessionId: "keeper", BoardId: "build"},
		Step:         &boardv1.Step{StepId: "vet", Title: "quartet/pkg/id", Summary: "go vet it"},
		Dependencies: []*boardv1.Step{{StepId: "fetch", ResultSummary: "12 MB"}},
	}
}

func newHost(t *testing.T) *proctree.Host {
	h, err := proctree.Open(t.Context(), proctree.Config{Owner: t.TempDir(), Boot: "1"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	return h
}

// SPEC B11: a handler gets the step on stdin; its exit code, stdout and stderr are the result.
func TestB11_Handler(t *testing.T) {
	t.Setenv("QUARTET_TOKEN", "secret")
	for name, c := range map[string]struct {
		command string
		want    client.StepResult
		err     string
	}{
		"text":            {`echo one; echo two`, client.StepResult{Summary: "one\ntwo"}, ""},
		"nothing":         {`true`, client.StepResult{}, ""},
		"more":            {`echo text; echo '{"summary":"said","artifacts":["a","b"],"status":"blocked","reason":"no key"}'`, client.StepResult{Summary: "said", ArtifactIDs: []string{"a", "b"}, Status: boardv1.StepStatus_STEP_STATUS_BLOCKED, Reason: "no key"}, ""},
		"only artifacts":  {`echo text; echo '{"artifacts":["a"]}'`, client.StepResult{Summary: "text", ArtifactIDs: []string{"a"}}, ""},
		"some other JSON": {`echo '{"lines": 3}'`, client.StepResult{Summary: `{"lines": 3}`}, ""},
		"failure":         {`echo out; echo oh no >&2; exit 3`, client.StepResult{Summary: "out"}, "exit status 3: oh no"},
		"no UTF-8":        {`printf 'a\377b'`, client.StepResult{Summary: "a\uFFFDb"}, ""},
		"stdin":           {`grep -o '"result_summary":"12 MB"' | head -1`, client.StepResult{Summary: `"result_summary":"12 MB"`}, ""},
		"environment":     {`echo $QUARTET_SESSION_ID/$QUARTET_BOARD_ID $QUARTET_STEP_ID $QUARTET_STEP_TITLE $QUARTET_RUN_ID "$QUARTET_STEP_SUMMARY" [$QUARTET_TOKEN]`, client.StepResult{Summary: "keeper/build vet quartet/pkg/id run_1 go vet it []"}, ""},
		"no such command": {`no-such-command-at-all`, client.StepResult{}, "exit status 127"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := runHandler(t.Context(), newHost(t), c.command, newAssignment())
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
			require.Equal(t, c.want, got)
		})
	}
}

// A handler with much output needs bounded memory, and the end of its output is kept.
func TestB11_HandlerWithMuchOutput(t *testing.T) {
	got, err := runHandler(t.Context(), newHost(t), `yes 0123456789 | head -c 5000000; echo; echo the end`, newAssignment())
	require.NoError(t, err)
	require.LessOrEqual(t, len(got.Summary), summaryBytes)
	require.True(t, strings.HasSuffix(got.Summary, "the end"))
}

// When a step is cancelled all its processes are ended, including those that ignore SIGTERM.
func TestB11_CancelledHandler(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	cause := errors.New("cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	host := newHost(t)
	go func() {
		_, err := runHandler(ctx, host, `trap "" TERM; sleep 600 & echo $! $$ > `+pids+`; wait; wait; sleep 600`, newAssignment())
		ended <- err
	}()
	var started []byte
	require.Eventually(t, func() bool {
		started, _ = os.ReadFile(pids)
		return len(strings.Fields(string(started))) == 2
	}, 20*time.Second, time.Millisecond)
	cancel(cause)
	require.ErrorIs(t, <-ended, cause)
	for _, pid := range strings.Fields(string(started)) {
		n, err := strconv.Atoi(pid)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return hasEnded(n) }, 20*time.Second, time.Millisecond)
	}
}

// hasEnded reports whether a process has ended; a zombie has.
func hasEnded(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z")
}
