package tests

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
	"quartet/services/app"
	"quartet/tests/proc"
)

// limited returns a tenant that is no namespace of its own: it has keys of another tenant's namespace, each limited to
// one agent of it.
func limited(t *testing.T, h *house, namespace string) *tenant {
	te := &tenant{
		h: h, name: "limited", mark: "qzmarklimitedzq", tokens: map[string]string{},
		conns: map[string]*grpc.ClientConn{}, ids: map[string][]string{},
	}
	for role, number := range map[string]identityv1.Role{
		rpc.RoleOperator: identityv1.Role_ROLE_OPERATOR, rpc.RoleRunner: identityv1.Role_ROLE_RUNNER,
		rpc.RoleIntegration: identityv1.Role_ROLE_INTEGRATION,
	} {
		_, te.tokens[role] = h.key(t, &identityv1.CreateKeyRequest{
			Name: "k-" + te.mark + "-" + role, Namespace: namespace, Role: number, AgentIds: []string{te.own()},
		})
		te.conns[role] = h.conn(t, te.tokens[role])
	}
	spawned := h.rest(t, te.tokens[rpc.RoleOperator], http.MethodPost, "/v1/agents", `{"agentId":"`+te.own()+
		`","preset":"public_named"}`)
	require.Equal(t, http.StatusOK, spawned.status, spawned.body)
	return te
}

// TestI17_NoKeySeesBeyondItsAgents: keys that are limited to one agent ask for all that the other agents of the
// namespace have, by every method over gRPC, every route over REST, and MCP. No answer has a byte of it, and nothing is
// done to the others.
func TestI17_NoKeySeesBeyondItsAgents(t *testing.T) {
	proc.Long(t)
	h := newHouse(t, nil)
	other := newTenant(t, h, "default")
	self := limited(t, h, "default")
	fuzzMethods(t, self, other)
	fuzzRoutes(t, self, other)
	fuzzTools(t, self, other)
	did := 0
	for _, line := range other.facts(t) {
		if strings.Contains(line, self.mark) {
			require.Contains(t, line, `"agentId":"`+self.own()+`"`, "done for an agent that the key is not for")
			did++
		}
	}
	require.Positive(t, did, "what it may do is done")
}

// TestI17_AKeyForSomeAgents does what an unlimited key does for these, by each way, and says what it is limited to.
func TestI17_AKeyForSomeAgents(t *testing.T) {
	t.Run("one process", func(t *testing.T) { aKeyForSomeAgents(t, newHouse(t, nil)) })
	t.Run("forwarded", func(t *testing.T) { // by the process of the gateway, which serves none of the methods
		_, door := twoDoorsWith(t, func(cfg *app.Config) { cfg.BootstrapToken = bootstrap })
		aKeyForSomeAgents(t, door)
	})
}

func aKeyForSomeAgents(t *testing.T, h *house) {
	for _, agent := range []string{"one", "two", "three"} {
		require.Equal(t, http.StatusOK, h.rest(t, bootstrap, http.MethodPost, "/v1/agents", `{"agentId":"`+agent+
			`","preset":"public_named"}`).status)
	}
	_, operator := h.key(t, &identityv1.CreateKeyRequest{
		Name: "ci", Role: identityv1.Role_ROLE_OPERATOR, AgentIds: []string{"two", "one"},
	})
	conn := h.conn(t, operator)
	agents := agentv1.NewAgentServiceClient(conn)
	who := must.Value(identityv1.NewIdentityServiceClient(conn).WhoAmI(soon(t), &identityv1.WhoAmIRequest{}))(t)
	require.Equal(t, []string{"one", "two"}, who.GetAgentIds())
	for _, agent := range []string{"one", "two"} {
		must.Value(agents.EnqueueMessage(soon(t), &agentv1.EnqueueMessageRequest{AgentId: agent, Text: "hello"}))(t)
		require.Equal(t, http.StatusOK, h.rest(t, operator, http.MethodGet, "/v1/agents/"+agent+"/work-items", "").
			status)
		require.Contains(t, h.rest(t, operator, http.MethodPost, "/mcp/"+agent,
			`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).body, "CreateWorkItem")
		got := h.rest(t, operator, http.MethodGet, "/v1/events?from_start=true&stop_at_end=true&agent_id="+agent, "")
		require.Equal(t, http.StatusOK, got.status)
		require.Contains(t, got.body, `"agentId":"`+agent+`"`)
	}
	_, err := agents.EnqueueMessage(soon(t), &agentv1.EnqueueMessageRequest{AgentId: "three", Text: "hello"})
	require.ErrorIs(t, err, fault.PermissionDenied)
	require.Equal(t, "three", fault.From(err).Metadata()["agent_id"])
	for _, path := range []string{
		"/v1/agents", "/v1/agents/three", "/v1/agents/three/work-items", "/v1/events",
		"/v1/events?agent_id=three", "/v1/sessions/three/boards",
	} {
		got := h.rest(t, operator, http.MethodGet, path, "")
		require.Equal(t, http.StatusForbidden, got.status, "%s: %s", path, got.body)
		require.Contains(t, got.body, "limited to agents one, two", path)
	}
	events := must.Value(eventv1.NewEventServiceClient(conn).WatchEvents(soon(t), &eventv1.WatchEventsRequest{
		FromStart: true,
	}))(t)
	_, err = events.Recv()
	require.ErrorIs(t, err, fault.PermissionDenied)

	_, runner := h.key(t, &identityv1.CreateKeyRequest{
		Name: "r", Role: identityv1.Role_ROLE_RUNNER, AgentIds: []string{"one"},
	})
	runners := agentv1.NewAgentServiceClient(h.conn(t, runner))
	for _, ids := range [][]string{nil, {"two"}, {"one", "two"}} {
		_, err = runners.AcquireTurn(soon(t), &agentv1.AcquireTurnRequest{AgentIds: ids})
		require.ErrorIs(t, err, fault.PermissionDenied, "%v", ids)
	}
	turn := must.Value(runners.AcquireTurn(soon(t), &agentv1.AcquireTurnRequest{AgentIds: []string{"one"}}))(t)
	require.Equal(t, "one", turn.GetTurn().GetAgentId())
}

// TestI17_AKeyForSomeTools calls these and nothing else.
func TestI17_AKeyForSomeTools(t *testing.T) {
	h := newHouse(t, nil)
	require.Equal(t, http.StatusOK, h.rest(t, bootstrap, http.MethodPost, "/v1/agents",
		`{"agentId":"one","preset":"public_named"}`).status)
	for _, req := range []*identityv1.CreateKeyRequest{
		{Name: "a", Role: identityv1.Role_ROLE_AGENT, AgentId: "one", Tools: []string{"ListWorkItems"}},
		{Name: "o", Role: identityv1.Role_ROLE_OPERATOR, AgentIds: []string{"one"}, Tools: []string{"ListWorkItems"}},
	} {
		_, secret := h.key(t, req)
		tools := h.rest(t, secret, http.MethodGet, "/v1/agents/one/tools", "")
		require.Equal(t, http.StatusOK, tools.status, tools.body)
		require.Equal(t, 1, strings.Count(tools.body, `"name":`), tools.body)
		require.Contains(t, h.rest(t, secret, http.MethodGet, "/v1/whoami", "").body, `"tools":["ListWorkItems"]`)
		require.Equal(t, http.StatusOK, h.rest(t, secret, http.MethodPost, "/v1/agents/one/tools/ListWorkItems:call",
			`{"arguments":{}}`).status)
		for path, body := range map[string]string{
			"/v1/agents/one/tools/CreateWorkItem:call": `{"arguments":{"objective":"x"}}`,
			"/v1/agents/one/work-items":                `{"objective":"x"}`,
			"/v1/agents/one/tasks:exec":                `{"command":{"cmd":"true"}}`,
			"/v1/agents/one/messages":                  `{"text":"x"}`,
		} {
			got := h.rest(t, secret, http.MethodPost, path, body)
			require.Equal(t, http.StatusForbidden, got.status, "%s: %s", path, got.body)
		}
		call := func(tool string) string {
			return h.rest(t, secret, http.MethodPost, "/mcp/one",
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+
					`","arguments":{"objective":"x"}}}`).body
		}
		require.Contains(t, call("CreateWorkItem"), "limited to tools")
		require.NotContains(t, call("ListWorkItems"), "limited to tools")
	}
}
