// Package mcp tests that a client of the Model Context Protocol which is
// neither ours nor Go's works with the real binary.
package mcp

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/tests/proc"
)

// inspect runs the MCP inspector's command line against a server, which is an
// address or a command.
func inspect(ctx context.Context, t *testing.T, server []string, args ...string) map[string]any {
	argv := append([]string{filepath.Join("node_modules", "@modelcontextprotocol", "inspector-cli", "build", "cli.js"), "--cli"}, server...)
	out, err := exec.CommandContext(ctx, "node", append(argv, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	var answer map[string]any
	require.NoError(t, json.Unmarshal(out, &answer), "%s", out)
	return answer
}

// SPEC C5: tools, calls and resources over both transports.
func TestC5_AnIndependentClient(t *testing.T) {
	proc.Long(t)
	require.NoError(t, proc.NodePackages(t.Context(), "."))
	bin, err := proc.Build(t.TempDir(), "quartet/cmd/quartet", "quartet")
	require.NoError(t, err)
	srv, err := proc.NewQuartet(bin, filepath.Join(t.TempDir(), "data"), "")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, srv.Start(ctx))
	t.Cleanup(func() { _ = srv.Kill() })

	for name, server := range map[string][]string{
		"http":  {"http://" + srv.HTTP + "/mcp/over-http?create=true", "--transport", "http"},
		"stdio": {bin, "mcp", "--agent", "over-stdio", "--create", "--address", srv.GRPC},
	} {
		t.Run(name, func(t *testing.T) {
			tools, _ := inspect(ctx, t, server, "--method", "tools/list")["tools"].([]any)
			require.Greater(t, len(tools), 20)

			made := inspect(ctx, t, server, "--method", "tools/call", "--tool-name", "CreateWorkItem", "--tool-arg", "objective=Be inspected", "plan=look closely")
			require.NotContains(t, made, "isError")
			item := field(made, "structuredContent", "result", "work_item", "work_item_id")
			require.NotEmpty(t, item)

			resources, _ := inspect(ctx, t, server, "--method", "resources/list")["resources"].([]any)
			require.Len(t, resources, 2, "the briefs and the plan")

			refused := inspect(ctx, t, server, "--method", "tools/call", "--tool-name", "CompleteWorkItem", "--tool-arg", "work_item_id=nothing")
			require.Equal(t, true, refused["isError"])
			require.Equal(t, "invalid_argument", field(refused, "structuredContent", "error", "kind"))

			inspect(ctx, t, server, "--method", "tools/call", "--tool-name", "PickWorkItem", "--tool-arg", "work_item_id="+item)
			done := inspect(ctx, t, server, "--method", "tools/call", "--tool-name", "CompleteWorkItem", "--tool-arg", "work_item_id="+item, "report=Inspected.")
			require.Equal(t, item, field(done, "structuredContent", "promoted_work_item_id"))
		})
	}
}

func field(v any, path ...string) string {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	s, _ := v.(string)
	return s
}
