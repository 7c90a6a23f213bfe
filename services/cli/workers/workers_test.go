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
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/proctree"
	"quartet/pkg/sandboxes"
)

func newAssignment() *boardv1.StepAssignment {
	return &boardv1.StepAssignment{
		Run:          &boardv1.WorkerRun{RunId: "run_1", SessionId: "keeper", BoardId: "build"},
		Step:         &boardv1.Step{StepId: "vet", Title: "quartet/pkg/id", Summary: "go vet it"},
		Dependencies: []*boardv1.Step{{StepId: "fetch", ResultSummary: "12 MB"}},
	}
}

func newHost(t *testing.T) *proctree.Host {
	h := must.Value(proctree.Open(t.Context(), proctree.Config{Owner: t.TempDir(), Boot: "1"}))(t)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	return h
}

// unconfined returns a handler with the rights of the test.
func unconfined(host *proctree.Host, command string) *handler {
	return &handler{
		command: command, dir: "/", env: withoutQuartetVariables(os.Environ()), host: host,
		sandboxes: sandboxes.NewPool(nil, "", nil),
	}
}

// SPEC B11: a handler gets the step on stdin; its exit code, stdout and stderr are the result.
func TestB11_Handler(t *testing.T) {
	t.Setenv("QUARTET_TOKEN", "secret")
	for name, c := range map[string]struct {
		command string
		want    client.StepResult
		err     string
	}{
		"text":    {`echo one; echo two`, client.StepResult{Summary: "one\ntwo"}, ""},
		"nothing": {`true`, client.StepResult{}, ""},
		"more": {
			`echo text; echo '{"summary":"said","artifacts":["a","b"],"status":"blocked","reason":"no key"}'`,
			client.StepResult{
				Summary: "said", ArtifactIDs: []string{"a", "b"},
				Status: boardv1.StepStatus_STEP_STATUS_BLOCKED, Reason: "no key",
			},
			"",
		},
		"only artifacts": {
			`echo text; echo '{"artifacts":["a"]}'`,
			client.StepResult{Summary: "text", ArtifactIDs: []string{"a"}},
			"",
		},
		"some other JSON": {`echo '{"lines": 3}'`, client.StepResult{Summary: `{"lines": 3}`}, ""},
		"failure": {
			`echo out; echo oh no >&2; exit 3`,
			client.StepResult{Summary: "out"},
			"exit status 3: oh no",
		},
		"no UTF-8": {`printf 'a\377b'`, client.StepResult{Summary: "a\uFFFDb"}, ""},
		"stdin": {
			`grep -o '"result_summary":"12 MB"' | head -1`,
			client.StepResult{Summary: `"result_summary":"12 MB"`},
			"",
		},
		"environment": {
			`echo $QUARTET_SESSION_ID/$QUARTET_BOARD_ID $QUARTET_STEP_ID $QUARTET_STEP_TITLE $QUARTET_RUN_ID "$QUARTET_STEP_SUMMARY" [$QUARTET_TOKEN]`, client.StepResult{Summary: "keeper/build vet quartet/pkg/id run_1 go vet it []"}, "",
		},
		"no status": {`echo '{"summary":"said","status":null}'`, client.StepResult{Summary: "said"}, ""},
		"status in capitals": {
			`echo '{"Status":"FAILED","reason":"no key"}'`,
			client.StepResult{Status: boardv1.StepStatus_STEP_STATUS_FAILED, Reason: "no key"},
			"",
		},
		"binary failure":   {`printf 'a\377b' >&2; exit 1`, client.StepResult{}, "exit status 1: a\uFFFDb"},
		"JSON that is cut": {`echo '{"status": "failed"'`, client.StepResult{Summary: `{"status": "failed"`}, ""},
		"two objects": {
			`echo '{"status": "failed"} {}'`,
			client.StepResult{Summary: `{"status": "failed"} {}`},
			"",
		},
		"an array": {`echo '["status"]'`, client.StepResult{Summary: `["status"]`}, ""},
		"deep JSON": {
			`printf '{"a":%s' "$(yes '[' | head -c 10000 | tr -d '\n')"`,
			client.StepResult{Summary: `{"a":` + strings.Repeat("[", 5000)},
			"",
		},
		"no such command": {`no-such-command-at-all`, client.StepResult{}, "exit status 127"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := unconfined(newHost(t), c.command).run(t.Context(), newAssignment())
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
			require.Equal(t, c.want, got)
		})
	}
}

// SPEC B15.6: a status that is none of those of a handler completes no step, and neither does an
// object with a status that cannot be read.
func TestB15_AStatusThatIsNone(t *testing.T) {
	host := newHost(t)
	for result, reason := range map[string]string{
		`{"status":"banana"}`:                            `the handler set the status "banana", which is none of completed, blocked, failed and cancelled`,
		`{"status":"banana","summary":"all good"}`:       `"banana"`,
		`{"Status":"banana"}`:                            `"banana"`,
		`{"status":""}`:                                  `the handler set the status ""`,
		`{"status":"running"}`:                           `"running"`,
		`{"status":"claimed"}`:                           `"claimed"`,
		`{"status":"ready"}`:                             `"ready"`,
		`{"status":"pending"}`:                           `"pending"`,
		`{"status":"unspecified"}`:                       `"unspecified"`,
		`{"status":7}`:                                   `cannot be used`,
		`{"status":{"a":1}}`:                             `cannot be used`,
		`{"status":"blocked","artifacts":"one"}`:         `cannot be used`,
		`{"status":"blocked","why":"no key"}`:            `cannot be used: json: unknown field "why"`,
		`{"status":"` + strings.Repeat("x", 1000) + `"}`: `xxx…", which is none of`,

		// not an object
		`{"status":"failed","summary":"` + strings.Repeat("x", 20_000): "",
	} {
		_, err := unconfined(host, "printf '%s\n' '"+result+"'").run(t.Context(), newAssignment())
		if reason == "" {
			require.NoError(t, err, result)
			continue
		}
		require.ErrorContains(t, err, reason, result)
		require.Less(t, len(err.Error()), 1000)
	}
	// A result that is longer than a summary is still read.
	got := must.Value(unconfined(host,
		`printf '{"status":"failed","reason":"no key","summary":"%s"}' "$(yes | head -c 60000 | tr -d '\n')"`).
		run(t.Context(), newAssignment()))(t)
	require.Equal(t, boardv1.StepStatus_STEP_STATUS_FAILED, got.Status)
	require.Equal(t, "no key", got.Reason)
}

// A handler with much output needs bounded memory, and the end of its output is kept.
func TestB11_HandlerWithMuchOutput(t *testing.T) {
	got := must.Value(unconfined(newHost(t), `yes 0123456789 | head -c 5000000; echo; echo the end`).
		run(t.Context(), newAssignment()))(t)
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
		_, err := unconfined(host, `trap "" TERM; sleep 600 & echo $! $$ > `+pids+`; wait; wait; sleep 600`).
			run(ctx, newAssignment())
		ended <- err
	}()
	var started []byte
	require.Eventually(t, func() bool {
		started, _ = os.ReadFile(pids)
		return len(strings.Fields(string(started))) == 2
	}, time.Minute, time.Millisecond)
	cancel(cause)
	require.ErrorIs(t, <-ended, cause)
	for _, pid := range strings.Fields(string(started)) {
		n := must.Value(strconv.Atoi(pid))(t)
		require.Eventually(t, func() bool { return hasEnded(n) }, time.Minute, time.Millisecond)
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
