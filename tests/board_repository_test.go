package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/client"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/tests/proc"
)

// A board that builds this repository: a step for each package with the imports
// as dependencies, worked by four worker processes. One of them hangs and is
// killed half way; the server is killed too. Every package is built, each once
// (SPEC B10, B11).
func TestB11_ABoardOfThisRepositoryOverKills(t *testing.T) {
	bin := binary(t)
	// Packages that import none of the others are there so that some can be built while one is held.
	packages := proc.Scale([]string{"./pkg/journal/...", "./pkg/retry", "./pkg/yield", "./pkg/life"},
		[]string{"./pkg/..."})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	srv := startServer(t, ctx, filepath.Join(t.TempDir(), "data"), "--step-lease", "2s")
	quartet := func(args ...string) string {
		cmd := exec.CommandContext(ctx, bin, append([]string{"--address", srv.GRPC}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
		return string(out)
	}
	file := filepath.Join(t.TempDir(), "board.yaml")
	made, err := exec.CommandContext(ctx, "go", append([]string{"run", "quartet/examples/package-board", "-C", ".."},
		packages...)...).Output()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, made, 0o600))
	quartet("agent", "spawn", "keeper")
	quartet("board", "apply", "keeper", file)
	quartet("board", "apply", "keeper", file) // twice is once
	quartet("board", "open", "keeper/packages", "go")

	c := must.Value(client.Dial(srv.GRPC))(t)
	t.Cleanup(func() { _ = c.Close() })
	get := func() *boardv1.Board {
		return must.Value(client.Again(ctx, func(ctx context.Context) (*boardv1.GetBoardResponse, error) {
			return c.Boards.GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: "keeper", BoardId: "packages"})
		}))(t).GetBoard()
	}
	worker := func(id, handler string) *proc.Process {
		p := &proc.Process{
			Binary: bin, Args: []string{
				"--address", srv.GRPC, "worker", "--pool", "go", "--id", id, "--unconfined",
				"--handler", handler,
			},
			Log: filepath.Join(t.TempDir(), id), Ready: func(context.Context) bool { return true },
		}
		require.NoError(t, p.Start(ctx))
		t.Cleanup(func() { _ = p.Kill() })
		return p
	}
	hanging := worker("builder-1", "sleep 600")
	held := func() string {
		for _, s := range get().GetSteps() {
			if s.GetClaimedByAgentId() == "builder-1" {
				return s.GetStepId()
			}
		}
		return ""
	}
	require.Eventually(t, func() bool { return held() != "" }, time.Minute, 10*time.Millisecond)
	lost := held()
	for i := 2; i <= 4; i++ {
		worker(fmt.Sprint("builder-", i), `go build "$QUARTET_STEP_TITLE" && echo built`)
	}
	require.Eventually(t, func() bool { return get().GetCounts().GetCompleted() >= 2 }, 5*time.Minute,
		10*time.Millisecond)
	require.Equal(t, lost, held(), "a lease that is kept is kept")
	require.NoError(t, hanging.Kill())
	require.NoError(t, srv.Kill())
	require.NoError(t, srv.Start(ctx))
	require.Eventually(t, func() bool { return get().GetDiagnostics().GetCompleteable() }, 8*time.Minute,
		20*time.Millisecond)
	quartet("board", "complete", "keeper/packages")

	for _, s := range get().GetSteps() {
		require.Equal(t, "built", s.GetResultSummary(), s.GetStepId())
	}
	log := quartet("board", "wal", "read", "keeper", "packages")
	completed, claimed := map[string]int{}, map[string]int{}
	for line := range strings.Lines(log) {
		var ev struct {
			Type string `json:"event_type"`
			Step string `json:"step_id"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &ev))
		switch ev.Type {
		case "task_step_completed":
			completed[ev.Step]++
		case "task_step_claimed":
			claimed[ev.Step]++
		}
	}
	require.Len(t, completed, len(get().GetSteps()))
	for id, n := range completed {
		require.Equal(t, 1, n, id)
	}
	require.GreaterOrEqual(t, claimed[lost], 2, "the step of the worker that was killed")

	copied := filepath.Join(t.TempDir(), "copy.wal.jsonl")
	require.NoError(t, os.WriteFile(copied, []byte(log), 0o600))
	require.Contains(t, quartet("board", "replay", copied), "keeper/packages  completed")
	changed := bytes.Replace([]byte(log), []byte(`"built"`), []byte(`"burnt"`), 1)
	require.NoError(t, os.WriteFile(copied, changed, 0o600))
	out, err := exec.CommandContext(ctx, bin, "board", "wal", "verify", copied).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "its hash is wrong")
}
