package typescript

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

// SPEC A6, A7: a runner in another language does a whole turn over REST, hears
// at once that its run is aborted, and compiles against the API's description.
func TestA6_ARunnerInTypeScript(t *testing.T) {
	proc.Long(t)
	ctx := dev.Within(t)
	require.NoError(t, proc.NodePackages(ctx, "."))
	out, err := exec.CommandContext(ctx, "npm", "run", "--silent", "build").CombinedOutput()
	require.NoError(t, err, "%s", out)
	r := dev.Start(t)
	_, err = r.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, InitialMessage: "speak",
	})
	require.NoError(t, err)

	cmd := exec.CommandContext(ctx, "node", "dist/main.js", r.URL(), "keeper", "2")
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var errs strings.Builder
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(pipe)
	next := func() string {
		require.True(t, lines.Scan(), errs.String())
		return lines.Text()
	}
	require.Equal(t, "asked to: speak", next())
	require.Equal(t, "reported: true", next())
	items, err := r.Work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper"})
	require.NoError(t, err)
	require.Equal(t, "It said: from typescript.", items.GetWorkItems()[0].GetResultSummary())

	_, err = r.Agents.EnqueueMessage(context.Background(), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "wait to be aborted",
	})
	require.NoError(t, err)
	require.Equal(t, "asked to: wait to be aborted", next())
	_, err = r.Agents.AbortRun(ctx, &agentv1.AbortRunRequest{AgentId: "keeper"})
	require.NoError(t, err)
	require.Equal(t, "failed: the turn ended: TURN_END_REASON_OPERATOR_ABORTED", next())
	_, err = io.Copy(io.Discard, pipe)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait(), errs.String())
}
