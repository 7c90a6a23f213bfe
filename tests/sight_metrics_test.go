package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/app"
	"quartet/tests/proc"
)

// scrape returns what Prometheus would get.
func scrape(t *testing.T, ctx context.Context, url string) string {
	req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))(t)
	resp := must.Value(http.DefaultClient.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	b := must.Value(io.ReadAll(resp.Body))(t)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", b)
	return string(b)
}

// What is served is what is documented, is well named, tells what happened, and
// names no tenant, agent or secret.
func TestSight_MetricsTellWhatHappened(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr := freeAddr(t)
	s := oneProcessWith(t, func(t *testing.T, cfg app.Config) *app.App {
		cfg.MetricsAddr, cfg.QuotaAgents = addr, 1
		return startApp(t, cfg)
	})
	item, url := waitsForTheWorld(t, ctx, s)
	post(t, ctx, url, "{}")
	tn := s.acquire(t, ctx, "keeper")
	tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}),
		tool(t, "ExecCommand", map[string]any{"cmd": "exit 3", "yield_time": "20s"}))
	s.say(t, ctx, "keeper", "one that waits")
	require.Error(t, must.Err(s.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "toomany",
		Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
	})))

	want := []string{
		`grpc_server_handled_total{grpc_code="OK",grpc_method="DeliverTrigger",grpc_service="quartet.waiting.v1.WaitingService",grpc_type="unary"} 1`,
		`quartet_refusals_total{reason="QUOTA_EXCEEDED"} 1`,
		`quartet_quota_refusals_total{quota="agents"} 1`,
		`quartet_build_info{goversion="go`,
		`quartet_trigger_deliveries_total{outcome="triggered"} 1`,
		`quartet_waits_registered_total{kind="external"} 1`,
		`quartet_waits_open{kind="external",partition="0"} 1`,
		`quartet_messages_queued_total{kind="operator_prompt"} 2`,
		`quartet_messages_queued_total{kind="system_tick"} 1`,
		`quartet_turns_started_total 2`,
		`quartet_turns_ended_total{reason="wait_for",state="completed"} 1`,
		`quartet_turns_running{partition="0"} 1`,
		`quartet_lane_queued_messages{partition="0"} 1`,
		`quartet_agents{control="running",partition="0"} 1`,
		`quartet_tool_calls_total{status="success",tool="ExecCommand"} 1`,
		`quartet_tasks_ended_total{kind="command_task",reason="exited",state="failed"} 1`,
		`quartet_work_items_created_total 1`,
		`quartet_workers_connected{pool="default"} 1`,
		`quartet_worker_places{pool="default"} 4`,
		`quartet_scheduler_decisions_total{action="tick",reason="triggered_blocked",tick="review_triggered"} 1`,
		`quartet_journal_stalled_seconds{plane="work"} 0`,
		`quartet_owners_resident{partition="0",plane="agent"} 1`,
		`quartet_owners_evicted{partition="0",plane="agent"} 0`,
		`quartet_eviction_failed{partition="0",plane="work"} 0`,
		`quartet_removed_events_total{cause="history",plane="work"} 0`,
		`quartet_removal_failures_total{cause="erase",plane="agent"} 0`,
		`quartet_journal_events_total{event_type="trigger_delivered",plane="waiting"} 1`,
		`quartet_journal_appends_total{outcome="ok",plane="agent"}`,
		`quartet_events_published_total{plane="work"}`,
		`go_goroutines `, `process_resident_memory_bytes `,
	}
	text, missing := "", ""
	defer func() {
		if t.Failed() {
			t.Logf("missing: %s of\n%s", missing, text)
		}
	}()
	// Gauges are set every ten seconds.
	require.Eventually(t, func() bool {
		text, missing = scrape(t, ctx, s.http+"/metrics"), ""
		for _, line := range want {
			if !strings.Contains(text, "\n"+line) {
				missing = line
				return false
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond)
	require.NotContains(t, text, "keeper", "no agent")
	require.NotContains(t, text, `"default",namespace`, "no tenant")
	require.NotContains(t, text, item, "no record")
	require.NotContains(t, text, url[strings.LastIndex(url, "/")+1:], "no secret")

	require.Empty(t, must.Value(promlint.New(bytes.NewReader([]byte(text))).Lint())(t))
	doc := must.Value(os.ReadFile(filepath.Join("..", "docs", "metrics.md")))(t)
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(m[1], "go_") || strings.HasPrefix(m[1], "process_") {
			continue
		}
		require.Contains(t, string(doc), "| `"+m[1]+"` |")
	}
	alone := scrape(t, ctx, "http://"+addr+"/metrics")
	require.Contains(t, alone, "quartet_build_info{", "a process without a gateway has a port for it")
}

// TestI11_MetricsWithACredential: where metrics demand a credential, on either port, a key of an
// admin, an operator or an integration reads them, and nobody else.
func TestI11_MetricsWithACredential(t *testing.T) {
	h := newHouse(t, func(cfg *app.Config) { cfg.MetricsAuth, cfg.MetricsAddr = app.AuthRequired, "127.0.0.1:0" })
	own := &house{cfg: h.cfg, app: h.app}
	own.cfg.HTTPAddr = h.app.MetricsAddr()
	want := map[identityv1.Role]int{
		identityv1.Role_ROLE_ADMIN: http.StatusOK, identityv1.Role_ROLE_OPERATOR: http.StatusOK,
		identityv1.Role_ROLE_INTEGRATION: http.StatusOK,
		identityv1.Role_ROLE_RUNNER:      http.StatusForbidden, identityv1.Role_ROLE_WORKER: http.StatusForbidden,
	}
	for _, at := range []*house{h, own} {
		require.Equal(t, http.StatusUnauthorized, at.rest(t, "", "GET", "/metrics", "").status)
		require.Equal(t, http.StatusUnauthorized, at.rest(t, "qk_guess", "GET", "/metrics", "").status)
		for role, status := range want {
			_, key := h.key(t, &identityv1.CreateKeyRequest{Name: fmt.Sprintf("k-%d", role), Role: role})
			got := at.rest(t, key, "GET", "/metrics", "")
			require.Equal(t, status, got.status, role)
			if status == http.StatusOK {
				require.Contains(t, got.body, "quartet_build_info")
			} else {
				require.NotContains(t, got.body, "quartet_build_info")
			}
		}
	}
	open := newHouse(t, func(cfg *app.Config) { cfg.MetricsAddr = "127.0.0.1:0" })
	require.Equal(t, http.StatusOK, open.rest(t, "", "GET", "/metrics", "").status, "on loopback")
	open.cfg.HTTPAddr = open.app.MetricsAddr()
	require.Equal(t, http.StatusOK, open.rest(t, "", "GET", "/metrics", "").status)
}
