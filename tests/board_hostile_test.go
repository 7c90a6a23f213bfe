package tests

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/tests/proc"
)

var hostileSteps = flag.Int("hostile-steps", 300, "how many steps the test of hostile handlers has; from 10 000 on "+
	"it has 20 workers and handlers that print 1 GB")

// hostileKind is one way in which a handler misbehaves, and what must come of its step.
type hostileKind struct {
	name, script string
	status       boardv1.StepStatus
	says         string // part of the result of a completed step, or of the reason of another
}

const (
	completed = boardv1.StepStatus_STEP_STATUS_COMPLETED
	failed    = boardv1.StepStatus_STEP_STATUS_FAILED
	blocked   = boardv1.StepStatus_STEP_STATUS_BLOCKED
	cancelled = boardv1.StepStatus_STEP_STATUS_CANCELLED
)

// hostileKinds are the handlers. HUGE is replaced by a size in bytes.
var hostileKinds = []hostileKind{
	{"healthy", `echo fine`, completed, "fine"},
	{"silent", `:`, completed, ""},
	{"binary", `head -c 20000 /dev/urandom; echo; echo the end`, completed, "the end"},
	{"binaryerr", `head -c 20000 /dev/urandom >&2; exit 7`, failed, "exit status 7"},
	{"nul", `printf 'a\000b'`, completed, "a\uFFFDb"},
	{"nulerr", `printf 'a\000b' >&2; exit 1`, failed, "exit status 1: a\uFFFDb"},
	{"huge", `head -c HUGE /dev/zero; printf '\nthe end'`, completed, "the end"},
	{"hugeerr", `head -c HUGE /dev/zero >&2; printf 'the end' >&2; exit 3`, failed, "exit status 3"},
	{"forks", `for i in 1 2 3 4 5 6 7 8; do sleep 300 & done; setsid sleep 300 & echo forked`, completed, "forked"},
	{"daemon", `(setsid sh -c 'trap "" TERM HUP; sleep 300' >/dev/null 2>&1 &) ; echo left`, completed, "left"},
	{"zombies", `for i in 1 2 3; do (sh -c 'exit 0' & exec sleep 0.01); done; echo undead`, completed, "undead"},
	{"closed", `exec <&- >&- 2>&-; exit 0`, completed, ""},
	{"closederr", `exec <&- >&- 2>&-; exit 9`, failed, "exit status 9"},
	{"kill", `kill -9 $$`, failed, "ended by SIGKILL"},
	{"abort", `kill -ABRT $$`, failed, "ended by SIGABRT"},
	{"everybody", `kill -9 -1; echo alive`, completed, "alive"}, // nothing of another step
	{"group", `kill -TERM 0; sleep 300`, failed, "ended by SIGTERM"},
	{"banana", `echo '{"status":"banana","summary":"all good"}'`, failed, `"banana"`},
	{"wrongtypes", `echo '{"status":["completed"],"artifacts":7}'`, failed, "cannot be used"},
	{"needs", `echo '{"status":"blocked","reason":"needs a key"}'`, blocked, "needs a key"},
	{"gaveup", `echo '{"status":"cancelled","reason":"no use"}'`, cancelled, "no use"},
	{
		"longid", `printf '{"artifacts":["%s"]}' "$(head -c 300 /dev/zero | tr '\0' x)"`, failed,
		"the report of the worker was refused: limit_exceeded: artifact_ids[0]",
	},
	{
		"manyids", `printf '{"artifacts":[%s""]}' "$(yes '"a",' | head -250 | tr -d '\n')"`, failed,
		"artifact_ids has 251 entries",
	},
	{"emptyid", `echo '{"artifacts":[""]}'`, failed, "artifact_ids[0] is required"},
	{"escapes", `echo '{"summary":"a\u0000b\ud800c"}'`, completed, "a\uFFFDb\uFFFDc"},
	{"longsummary", `printf '{"summary":"%s"}' "$(head -c 60000 /dev/zero | tr '\0' x)"`, completed, "xxx"},
	{"deep", `yes '[' | head -c 40000 | tr -d '\n'`, completed, "[[["},
	{"deepobject", `yes '{"a":' | head -c 60000 | tr -d '\n'`, completed, `{"a":`},
	{"otherjson", `echo '{"lines": 3}'`, completed, `{"lines": 3}`},
	{"hangs", `trap "" TERM; sleep 300`, failed, "worker_timeout"},
}

// hostileHandler is a shell command that logs each execution, as "step run", in file and does
// what the kind of the step says.
func hostileHandler(file string, huge int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "echo \"$QUARTET_STEP_ID $QUARTET_RUN_ID\" >> '%s'\ncase \"$QUARTET_STEP_TITLE\" in\n", file)
	for _, k := range hostileKinds {
		fmt.Fprintf(&b, "%s)\n%s\n;;\n", k.name, strings.ReplaceAll(k.script, "HUGE", fmt.Sprint(huge)))
	}
	b.WriteString("esac\n")
	return b.String()
}

// Many steps go through hostile handlers of several workers, while workers and the server are
// killed: each step has one result, none is held by two runs, none is executed again without a kill,
// and nothing is stranded (SPEC B15, B11).
func TestB15_StepsThroughHostileHandlers(t *testing.T) {
	t.Parallel() // most of it is waiting
	bin := binary(t)
	steps, workers, huge, kills := *hostileSteps, 5, 3<<20, 6
	const capacity = 4
	limit := 5 * time.Minute
	if steps >= 10_000 {
		workers, kills, limit = 20, 60, 4*time.Hour
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	dir := t.TempDir()
	srv := startServer(t, ctx, filepath.Join(dir, "data"), "--step-lease", "3s")
	c := must.Value(client.Dial(srv.GRPC))(t)
	t.Cleanup(func() { _ = c.Close() })

	file := filepath.Join(dir, "board.yaml")
	require.NoError(t, os.WriteFile(file, []byte(hostileBoard(steps)), 0o600))
	quartet := func(args ...string) string {
		out, err := exec.CommandContext(ctx, bin, append([]string{"--address", srv.GRPC}, args...)...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
		return string(out)
	}
	quartet("agent", "spawn", "keeper")
	quartet("board", "apply", "keeper", file)
	quartet("board", "open", "keeper/hostile", "work", "--parallel", "10000")
	quartet("board", "open", "keeper/hostile", "hang", "--parallel", "10000", "--step-timeout", "2s")

	executions := filepath.Join(dir, "executions")
	hire := func(id string, huge int) *proc.Process {
		p := &proc.Process{
			Binary: bin, Args: []string{
				"--address", srv.GRPC, "worker", "--pool", "work,hang", "--capacity", fmt.Sprint(capacity), "--id", id,
				"--writable", filepath.Dir(executions), "--handler", hostileHandler(executions, huge),
			},
			Log: filepath.Join(dir, id), Ready: func(context.Context) bool { return true },
		}
		require.NoError(t, p.Start(ctx))
		t.Cleanup(func() { _ = p.Kill() })
		return p
	}
	team := make([]*proc.Process, workers)
	for i := range team {
		mine := huge
		if steps >= 10_000 && i == 0 {
			mine = 1 << 30
		}
		team[i] = hire(fmt.Sprint("w-", i), mine)
	}

	get := func() *boardv1.Board {
		return must.Value(client.Again(ctx, func(ctx context.Context) (*boardv1.GetBoardResponse, error) {
			return c.Boards.GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: "keeper", BoardId: "hostile"},
				grpc.MaxCallRecvMsgSize(64<<20))
		}))(t).GetBoard()
	}
	ended := func() int {
		n := get().GetCounts()
		return int(n.GetCompleted() + n.GetFailed() + n.GetCancelled() + n.GetBlocked())
	}
	for i := range kills { // at points of progress, evenly
		require.Eventually(t, func() bool { return ended() >= steps*(i+1)/(kills+2) }, limit, 20*time.Millisecond)
		if i%3 == 2 {
			require.NoError(t, srv.Kill())
			require.NoError(t, srv.Start(ctx))
		}
		victim := team[i%workers]
		require.NoError(t, victim.Kill())
		if i%2 == 0 { // its runs are lost
			team[i%workers] = hire(fmt.Sprintf("w-%d-after-%d", i%workers, i), huge)
			continue
		}
		require.NoError(t, victim.Start(ctx)) // the same worker, which has them again
	}
	require.Eventually(t, func() bool { return ended() == steps }, limit, 50*time.Millisecond, "steps are stranded")

	kinds := map[string]hostileKind{}
	for _, k := range hostileKinds {
		kinds[k.name] = k
	}
	for _, s := range get().GetSteps() {
		k := kinds[s.GetTitle()]
		require.Equal(t, k.status, s.GetStatus(), "%s: %s: %.500s", s.GetStepId(), k.name, s.GetReason())
		said := s.GetReason()
		if k.status == completed {
			said = s.GetResultSummary()
		}
		require.Contains(t, said, k.says, k.name)
		require.Empty(t, s.GetClaimedByRunId())
	}
	log := quartet("board", "wal", "read", "keeper", "hostile")
	requireOneResult(t, log, executions, steps, kills*capacity)
	copied := filepath.Join(dir, "copy.wal.jsonl")
	require.NoError(t, os.WriteFile(copied, []byte(log), 0o600))
	quartet("board", "wal", "verify", copied)
	// No worker has a run, so that every one has room for others.
	list := must.Value(c.Boards.ListWorkers(ctx, &boardv1.ListWorkersRequest{}))(t)
	require.Len(t, list.GetWorkers(), workers)
	for _, w := range list.GetWorkers() {
		require.Empty(t, w.GetRunIds(), w.GetWorkerId())
	}
}

// hostileBoard returns the file of a board with steps of all kinds, each dependent on none, and
// those that hang in a pool of their own. One of 100 hangs, because that takes its time.
func hostileBoard(steps int) string {
	var b strings.Builder
	b.WriteString("board: hostile\nwal: hostile\ntitle: Hostile handlers\npool: work\nsteps:\n")
	others := len(hostileKinds) - 1
	for i := range steps {
		k, pool := hostileKinds[i%others], "work"
		if i%100 == 99 {
			k, pool = hostileKinds[others], "hang"
		}
		fmt.Fprintf(&b, "  - {id: s%d, title: %s, pool: %s}\n", i, k.name, pool)
	}
	return b.String()
}

// requireOneResult checks the lines of a board's log and the executions of its steps.
func requireOneResult(t *testing.T, log, executions string, steps, repeats int) {
	t.Helper()
	results, holder, stepOf := map[string]int{}, map[string]string{}, map[string]string{}
	for line := range strings.Lines(log) {
		var ev struct {
			Type    string `json:"event_type"`
			Step    string `json:"step_id"`
			Run     string `json:"actor_run_id"`
			Payload struct {
				Run string `json:"claimed_by_run_id"`
			} `json:"payload"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &ev))
		switch ev.Type {
		case "task_step_claimed":
			require.Empty(t, holder[ev.Step], "%s is claimed while a run holds it", ev.Step)
			holder[ev.Step], stepOf[ev.Payload.Run] = ev.Payload.Run, ev.Step
		case "task_step_lease_expired":
			require.Equal(t, holder[ev.Step], ev.Payload.Run)
			holder[ev.Step] = ""
		case "task_step_completed", "task_step_failed", "task_step_blocked", "task_step_cancelled":
			require.Equal(t, holder[ev.Step], ev.Run, "%s of %s by a run that does not hold it", ev.Type, ev.Step)
			holder[ev.Step] = ""
			results[ev.Step]++
		}
	}
	require.Len(t, results, steps)
	for id, n := range results {
		require.Equal(t, 1, n, id)
	}
	text := must.Value(os.ReadFile(executions))(t)
	n := 0
	for line := range strings.Lines(string(text)) {
		step, run, ok := strings.Cut(strings.TrimSpace(line), " ")
		require.True(t, ok, line)
		require.Equal(t, step, stepOf[run], "an execution of a run that did not claim the step")
		n++
	}
	// The next process of a worker that was killed executes the runs of the one before again,
	// and a run that was lost leaves its step to another.
	require.LessOrEqual(t, n, steps+repeats)
	t.Logf("%d steps, %d runs, %d executions", steps, len(stepOf), n)
}

// When the orchestrator takes a step, the handler that works on it is stopped at once, with what it
// started, and the worker goes on to the next step (SPEC B15.4).
func TestB15_AHandlerWhoseStepIsTakenIsStopped(t *testing.T) {
	bin := binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	// leases of 300 s, so that no heartbeat tells the worker
	srv := startServer(t, ctx, filepath.Join(dir, "data"))
	c := must.Value(client.Dial(srv.GRPC))(t)
	t.Cleanup(func() { _ = c.Close() })
	quartet := func(args ...string) {
		out, err := exec.CommandContext(ctx, bin, append([]string{"--address", srv.GRPC}, args...)...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
	}
	quartet("agent", "spawn", "keeper")
	file := filepath.Join(dir, "board.yaml")
	require.NoError(t, os.WriteFile(file, []byte("board: taken\nwal: taken\ntitle: Taken\npool: work\nsteps:\n  - "+
		"{id: one, title: One}\n  - {id: two, title: Two}\n"), 0o600))
	quartet("board", "apply", "keeper", file)
	quartet("board", "open", "keeper/taken", "work")
	p := &proc.Process{
		Binary: bin, Args: []string{
			"--address", srv.GRPC, "worker", "--pool", "work", "--id", "w-1", "--handler",
			`test "$QUARTET_STEP_ID" = two || { sleep 600; echo late; }`,
		},
		Log: filepath.Join(dir, "worker"), Ready: func(context.Context) bool { return true },
	}
	require.NoError(t, p.Start(ctx))
	t.Cleanup(func() { _ = p.Kill() })
	step := func(id string) *boardv1.Step {
		return must.Value(c.Boards.QuerySteps(ctx, &boardv1.QueryStepsRequest{
			SessionId: "keeper", BoardId: "taken", StepIds: []string{id}, IncludeTerminalSteps: true,
		}))(t).GetSteps()[0]
	}
	require.Eventually(t, func() bool { return step("one").GetStatus() == boardv1.StepStatus_STEP_STATUS_RUNNING },
		time.Minute, 10*time.Millisecond)
	mine := "I did it"
	must.Value(c.Boards.UpdateStep(ctx, &boardv1.UpdateStepRequest{
		SessionId: "keeper", BoardId: "taken", StepId: "one", Status: completed, ResultSummary: &mine,
	}))(t)
	require.Eventually(t, func() bool { return step("two").GetStatus() == completed }, time.Minute, 10*time.Millisecond)
	require.Equal(t, mine, step("one").GetResultSummary())
}
