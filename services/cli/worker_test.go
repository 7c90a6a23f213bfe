package cli

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

func anAssignment() *boardv1.StepAssignment {
	return &boardv1.StepAssignment{
		Run:          &boardv1.WorkerRun{RunId: "run_1", SessionId: "keeper", BoardId: "build"},
		Step:         &boardv1.Step{StepId: "vet", Title: "quartet/pkg/id", Summary: "go vet it"},
		Dependencies: []*boardv1.Step{{StepId: "fetch", ResultSummary: "12 MB"}},
	}
}

func aHost(t *testing.T) *proctree.Host {
	h, err := proctree.Open(t.Context(), proctree.Config{Owner: t.TempDir(), Boot: "1"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	return h
}

// SPEC B11: the step on stdin, the result by exit code, stdout and stderr.
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
			got, err := handle(t.Context(), aHost(t), c.command, anAssignment())
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
			require.Equal(t, c.want, got)
		})
	}
}

// Output without end costs bounded memory, and its end is kept.
func TestB11_HandlerThatSaysMuch(t *testing.T) {
	got, err := handle(t.Context(), aHost(t), `yes 0123456789 | head -c 5000000; echo; echo the end`, anAssignment())
	require.NoError(t, err)
	require.LessOrEqual(t, len(got.Summary), summaryBytes)
	require.True(t, strings.HasSuffix(got.Summary, "the end"))
}

// A cancelled step ends with all that it started, also what refuses to listen.
func TestB11_CancelledHandler(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	why := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	host := aHost(t)
	go func() {
		_, err := handle(ctx, host, `trap "" TERM; sleep 600 & echo $! $$ > `+pids+`; wait; wait; sleep 600`, anAssignment())
		ended <- err
	}()
	var started []byte
	require.Eventually(t, func() bool {
		started, _ = os.ReadFile(pids)
		return len(strings.Fields(string(started))) == 2
	}, 20*time.Second, time.Millisecond)
	cancel(why)
	require.ErrorIs(t, <-ended, why)
	for _, pid := range strings.Fields(string(started)) {
		n, err := strconv.Atoi(pid)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return gone(n) }, 20*time.Second, time.Millisecond)
	}
}

// gone says that a process has ended; one that nobody waited for yet has too.
func gone(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z")
}

func TestWorkerNeedsAPoolAndAHandler(t *testing.T) {
	r := newRig(t)
	for args, says := range map[string]string{
		"worker":                                         "give --root DIR",
		"worker --handler x":                             "--pool is missing",
		"worker --root / --pool go --handler x":          "one of both",
		"worker --root / --capacity 10001":               "--capacity 10001",
		"worker --root / --max-memory-mib -1":            "--max-memory-mib -1",
		"worker --root / --max-processes -1":             "--max-processes -1",
		"worker --pool go --handler x --max-processes 3": "for commands",
		"task exec keeper --max-memory 12XB -- x":        "--max-memory \"12XB\"",
		"task exec keeper --max-output 0 -- x":           "--max-output \"0\"",
		"worker --pool go":                               "--handler is missing",
		"worker --pool go --handler x --capacity 0":      "--capacity 0",
	} {
		got := r.run(strings.Fields(args)...)
		require.Equal(t, 2, got.code)
		require.Contains(t, got.err, says)
	}
}
