// Package mcp tests that a client of the Model Context Protocol which is
// neither ours nor Go's works with the real binary.
package mcp

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/localtoken"
	"quartet/pkg/must"
	"quartet/tests/proc"
)

// inspect runs the MCP inspector's command line against a server, which is an
// address or a command.
func inspect(ctx context.Context, t *testing.T, server []string, args ...string) map[string]any {
	argv := append([]string{
		filepath.Join("node_modules", "@modelcontextprotocol", "inspector-cli", "build", "cli.js"),
		"--cli",
	}, server...)
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
	bin := must.Value(proc.Build(t.TempDir(), "quartet/cmd/quartet", "quartet"))(t)
	srv := must.Value(proc.NewQuartet(bin, filepath.Join(t.TempDir(), "data"), ""))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	require.NoError(t, srv.Start(ctx))
	t.Cleanup(func() { _ = srv.Kill() })

	token := must.Value(localtoken.Read(srv.HTTP))(t)
	for name, server := range map[string][]string{
		"http": {
			"http://" + srv.HTTP + "/mcp/over-http?create=true", "--transport", "http", "--header",
			"Authorization: Bearer " + token,
		},
		"stdio": {bin, "mcp", "--agent", "over-stdio", "--create", "--address", srv.GRPC},
	} {
		t.Run(name, func(t *testing.T) {
			tools, _ := inspect(ctx, t, server, "--method", "tools/list")["tools"].([]any)
			require.Greater(t, len(tools), 20)

			made := inspect(ctx, t, server, "--method", "tools/call", "--tool-name", "CreateWorkItem", "--tool-arg",
				"objective=Be inspected", "plan=look closely")
			require.NotContains(t, made, "isError")
			item := field(made, "structuredContent", "result", "work_item", "work_item_id")
			require.NotEmpty(t, item)

			resources, _ := inspect(ctx, t, server, "--method", "resources/list")["resources"].([]any)
			require.Len(t, resources, 2, "the briefs and the plan")

			refused := inspect(ctx, t, server, "--method", "tools/call", "--tool-name", "CompleteWorkItem",
				"--tool-arg", "work_item_id=nothing")
			require.Equal(t, true, refused["isError"])
			require.Equal(t, "invalid_argument", field(refused, "structuredContent", "error", "kind"))

			inspect(ctx, t, server, "--method", "tools/call", "--tool-name", "PickWorkItem", "--tool-arg",
				"work_item_id="+item)
			done := inspect(ctx, t, server, "--method", "tools/call", "--tool-name", "CompleteWorkItem", "--tool-arg",
				"work_item_id="+item, "report=Inspected.")
			require.Equal(t, item, field(done, "structuredContent", "promoted_work_item_id"))
		})
	}
}

// session is what client.mjs saw.
type session struct {
	Capabilities struct {
		Resources struct {
			Subscribe   bool `json:"subscribe"`
			ListChanged bool `json:"listChanged"`
		} `json:"resources"`
	} `json:"capabilities"`
	Instructions string   `json:"instructions"`
	Tools        []string `json:"tools"`
	Schemas      int      `json:"schemas"`
	Preview      string   `json:"preview"`
	Listed       int      `json:"listed"`
	Refused      string   `json:"refused"`
	URI          string   `json:"uri"`
	Contents     []struct {
		URI  string  `json:"uri"`
		Text *string `json:"text"`
	} `json:"contents"`
	Updated   []string `json:"updated"`
	Subscribe string   `json:"subscribe"`
	Absent    struct {
		IsError bool   `json:"isError"`
		Text    string `json:"text"`
	} `json:"absent"`
}

// SPEC C5.2, C5.4 to C5.7: the official TypeScript client checks results against output schemas,
// reads an empty plan, is notified of a written one over stdio, and begins before its server.
func TestC5_TheTypeScriptClient(t *testing.T) {
	proc.Long(t)
	require.NoError(t, proc.NodePackages(t.Context(), "."))
	bin := must.Value(proc.Build(t.TempDir(), "quartet/cmd/quartet", "quartet"))(t)
	srv := must.Value(proc.NewQuartet(bin, filepath.Join(t.TempDir(), "data"), ""))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	stdio := func(agent string, more ...string) []string {
		return append([]string{bin, "mcp", "--agent", agent, "--create", "--address", srv.GRPC}, more...)
	}

	// Before the server runs: the first line of the client starts it.
	cmd := exec.CommandContext(ctx, "node", append([]string{"client.mjs"}, stdio("before")...)...)
	out := must.Value(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	d := json.NewDecoder(out)
	var before, after session
	require.NoError(t, d.Decode(&before))
	require.True(t, before.Absent.IsError)
	require.Contains(t, before.Absent.Text, "quartet dev --grpc-addr ")
	require.Contains(t, before.Instructions, "No Quartet server answers at "+srv.GRPC)
	require.NoError(t, srv.Start(ctx))
	t.Cleanup(func() { _ = srv.Kill() })
	require.NoError(t, d.Decode(&after))
	require.NoError(t, cmd.Wait())
	require.Greater(t, len(after.Tools), 20)
	token := must.Value(localtoken.Read(srv.HTTP))(t)

	for name, c := range map[string]struct {
		server []string
		tools  int // 0: all
		stdio  bool
	}{
		"http": {server: []string{"http://" + srv.HTTP + "/mcp/ts-http?create=true"}},
		"http memory": {
			server: []string{"http://" + srv.HTTP + "/mcp/ts-http-memory?create=true&tools=memory"},
			tools:  10,
		},
		"stdio":        {server: stdio("ts-stdio"), stdio: true},
		"stdio memory": {server: stdio("ts-stdio-memory", "--tools", "memory"), tools: 10, stdio: true},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(ctx, "node", append([]string{"client.mjs"}, c.server...)...)
			cmd.Env = append(os.Environ(), "AUTHORIZATION=Bearer "+token)
			var errs strings.Builder
			cmd.Stderr = &errs
			raw := must.Value(cmd.Output())(t, "%s", errs.String())
			var got session
			require.NoError(t, json.Unmarshal(raw, &got), "%s", raw)
			if c.tools > 0 {
				require.Len(t, got.Tools, c.tools)
				require.Zero(t, got.Schemas)
			} else {
				require.Greater(t, len(got.Tools), 20)
				require.Equal(t, len(got.Tools), got.Schemas)
			}
			require.Equal(t, 1, got.Listed)
			require.Empty(t, got.Preview)
			require.Equal(t, "invalid_argument", got.Refused)
			require.Len(t, got.Contents, 1)
			require.NotNil(t, got.Contents[0].Text)
			require.Empty(t, *got.Contents[0].Text)
			require.Equal(t, c.stdio, got.Capabilities.Resources.Subscribe)
			require.True(t, got.Capabilities.Resources.ListChanged)
			if c.stdio {
				require.Equal(t, []string{got.URI}, got.Updated)
			} else {
				require.NotContains(t, got.Subscribe, "accepted")
			}
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
