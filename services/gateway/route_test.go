package gateway

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// X13: every line of the REST map is found by the pattern that the mux matched, whatever its
// RPC answers. An address whose handler has no route would answer 500.
func TestX13_EveryLineOfTheRESTMapHasARoute(t *testing.T) {
	r := newRig(t)
	table, err := newRouteTable(nil)
	require.NoError(t, err)
	require.Greater(t, len(table), 80)
	for _, key := range slices.Sorted(maps.Keys(table)) {
		rt := table[key]
		if rt.waits || rt.method == agentv1.AgentService_AcquireTurn_FullMethodName {
			continue // they do not answer soon
		}
		httpMethod, _, _ := strings.Cut(key, " ")
		path := rt.pattern
		for strings.Contains(path, "{") {
			before, rest, _ := strings.Cut(path, "{")
			_, after, _ := strings.Cut(rest, "}")
			path = before + "x" + after
		}
		body := ""
		if rt.body {
			body = "{}"
		}
		a := r.do(httpMethod, path, body)
		require.NotEqual(t, http.StatusInternalServerError, a.status, "%s %s: %s", httpMethod, path, a.body)
		require.NotContains(t, string(a.body), "no such address", "%s %s", httpMethod, path)
	}
}

// Long polls and streams are known by their RPC, not by how their path is spelled.
func TestWhichRoutesWait(t *testing.T) {
	table, err := newRouteTable(func(method string) bool {
		return method == taskv1.TaskService_ExecCommand_FullMethodName
	})
	require.NoError(t, err)
	require.True(t, table["POST /v1/agents/{agent_id=*}/tasks:exec"].waits, "as it was told")
	require.True(t, table["GET /v1/agents/{agent_id=*}/turns/{turn_id=*}:watch"].waits, "a stream")
	require.False(t, table["GET /v1/agents/{agent_id=*}/tasks"].waits)
	require.True(t, table["PATCH /v1/agents/{agent_id=*}/work-items/{work_item_id=*}"].body)
	require.False(t, table["DELETE /v1/agents/{agent_id=*}"].body)
}
