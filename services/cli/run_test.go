package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/services/cli/exit"
)

// The flags of `quartet run` and `quartet mcp` reach the runner and the MCP server,
// and those that are missing are named.
func TestRunAndMCP(t *testing.T) {
	var ran RunOptions
	var served MCPOptions
	servers := Servers{
		Run: func(_ context.Context, _ grpc.ClientConnInterface, o RunOptions) error {
			ran = o
			return nil
		},
		MCP: func(_ context.Context, _ grpc.ClientConnInterface, o MCPOptions) error {
			served = o
			_, err := io.Copy(o.Out, o.In)
			return err
		},
	}
	run := func(s Servers, args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := Run(t.Context(), s, args, strings.NewReader("from the client"), &out, &errs)
		return code, out.String(), errs.String()
	}
	system := filepath.Join(t.TempDir(), "system.txt")
	require.NoError(t, os.WriteFile(system, []byte("Be brief."), 0o600))

	code, _, errs := run(servers, "run", "--agent", "a,b", "--agent", "c", "--provider", "openai", "--model", "m",
		"--base-url", "http://127.0.0.1:1/v1",
		"--max-tokens", "10", "--max-rounds", "20", "--max-turns", "30", "--concurrency", "2", "--workspace", "/srv",
		"--system", system, "--summaries", "-o", "json")
	require.Zero(t, code, errs)
	ran.Out = nil
	require.Equal(t, RunOptions{
		AgentIDs: []string{"a", "b", "c"}, Provider: "openai", Model: "m", BaseURL: "http://127.0.0.1:1/v1",
		Workspace: "/srv", System: "Be brief.",
		MaxTokens: 10, MaxRounds: 20, MaxTurns: 30, Concurrency: 2, Summaries: true, JSON: true,
	}, ran)
	code, _, _ = run(servers, "run", "--agent", "a", "--provider", "anthropic", "--model", "m", "--once")
	require.Zero(t, code)
	require.Equal(t, 1, ran.MaxTurns)
	require.False(t, ran.JSON)

	code, out, _ := run(servers, "mcp", "--agent", "keeper", "--create")
	require.Zero(t, code)
	require.Equal(t, "from the client", out, "stdin and stdout belong to the client")
	require.Equal(t, "keeper", served.AgentID)
	require.True(t, served.Create)

	for missing, args := range map[string][]string{
		"--agent is missing":    {"run", "--provider", "openai", "--model", "m"},
		"--provider is missing": {"run", "--agent", "a", "--model", "m"},
		"--model is missing":    {"run", "--agent", "a", "--provider", "openai"},
		"--system": {
			"run", "--agent", "a", "--provider", "openai", "--model", "m", "--system",
			system + ".none",
		},
		"--agent AGENT is missing": {"mcp"},
		"takes no arguments":       {"mcp", "keeper"},
	} {
		code, _, errs := run(servers, args...)
		require.Equal(t, exit.Usage, code, missing)
		require.Contains(t, errs, missing)
	}
	code, _, errs = run(Servers{}, "mcp", "--agent", "keeper")
	require.Equal(t, exit.Failed, code)
	require.Contains(t, errs, "no MCP server")
	code, _, errs = run(Servers{}, "run", "--agent", "a", "--provider", "openai", "--model", "m")
	require.Equal(t, exit.Failed, code)
	require.Contains(t, errs, "no runner")
}

func TestWorkerFlagsAreChecked(t *testing.T) {
	r := newHarness(t)
	for args, want := range map[string]string{
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
		require.Contains(t, got.err, want)
	}
}
