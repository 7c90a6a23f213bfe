package tests

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/proc"
)

// TestX16_AFullStore fills the store of a server that may use 24 MiB. It says so before, refuses at once when only the
// reserve is left, shows everything, ends and removes, starts again after a kill, and goes on with more room.
func TestX16_AFullStore(t *testing.T) {
	proc.Long(t)
	dir := filepath.Join(t.TempDir(), "data")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	start := func(mib string) (*proc.Quartet, agentv1.AgentServiceClient, workv1.WorkServiceClient) {
		srv := startServer(t, ctx, dir, "--max-store-mib", mib)
		conn := dial(t, srv.GRPC)
		return srv, agentv1.NewAgentServiceClient(conn), workv1.NewWorkServiceClient(conn)
	}
	srv, agents, _ := start("24")
	for _, id := range []string{"big", "small", "other"} { // what one agent may have queued does not fill the store
		must.Value(agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: id, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		}))(t)
	}
	say := func(to string) error {
		return must.Err(agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
			AgentId: to, Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT, Text: strings.Repeat("x", 200_000),
		}))
	}
	stored := 0
	var full error
	pace := time.NewTicker(50 * time.Millisecond) // it is measured once a second
	defer pace.Stop()
	for i := 0; full == nil && i < 200; i++ {
		if stored > 40 {
			<-pace.C
		}
		to := []string{"big", "small", "other", "small", "other", "small", "other", "small"}[i%8]
		if full = say(to); full == nil {
			stored++
		}
		if stored == 40 {
			require.Empty(t, warningOf(ctx, t, srv))
		}
	}
	require.Error(t, full)
	require.ErrorIs(t, fault.From(full), fault.StorageFull)
	require.Equal(t, "none", fault.From(full).Metadata()["outcome"])
	require.Contains(t, full.Error(), "raise max-store-mib")
	require.Eventually(t, func() bool { return strings.Contains(warningOf(ctx, t, srv), " % full") }, time.Minute,
		100*time.Millisecond)
	require.Contains(t, logOf(t, srv), "is filling up")

	shows := func() {
		got := must.Value(agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: "small"}))(t)
		require.Equal(t, "small", got.GetAgent().GetAgentId())
	}
	shows()
	metrics := textOf(ctx, t, "http://"+srv.HTTP+"/metrics")
	require.Contains(t, metrics, `quartet_journal_load_seconds_count{plane="agent"} 1`, "nothing was loaded again")
	require.Contains(t, metrics, `quartet_journal_appends_total{outcome="unknown",plane="agent"} 0`)

	require.NoError(t, srv.Kill())
	srv, agents, _ = start("24")
	full = nil
	for i := 0; full == nil && i < 20; i++ { // what EVENTS had taken may be free
		full = say("small")
	}
	require.Error(t, full)
	require.ErrorIs(t, fault.From(full), fault.StorageFull)
	shows()
	must.Value(agents.StopAgent(ctx, &agentv1.StopAgentRequest{AgentId: "small"}))(t, "what ends something is possible")
	require.NoError(t, srv.Kill())

	_, agents, work := start("64")
	require.NoError(t, say("big"))
	must.Value(work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: "big", Objective: "go on"}))(t)
}

// textOf returns the body of an address.
func textOf(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))(t)
	resp := must.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	return string(must.Value(io.ReadAll(resp.Body))(t))
}

// warningOf returns the warning of /readyz.
func warningOf(ctx context.Context, t *testing.T, srv *proc.Quartet) string {
	t.Helper()
	var answer struct {
		Ready   bool
		Warning string
	}
	require.NoError(t, json.Unmarshal([]byte(textOf(ctx, t, "http://"+srv.HTTP+"/readyz")), &answer))
	require.True(t, answer.Ready)
	return answer.Warning
}
