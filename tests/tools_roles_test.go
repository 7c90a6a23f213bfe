package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

// SPEC C4, X15: who lists tools is told of those that its role has, and a call of
// another one is refused in the tool's words. An operator never picks.
func TestC4_ToolsGoByRole(t *testing.T) {
	h := newHouse(t, nil)
	admin := agentv1.NewAgentServiceClient(h.conn(t, bootstrap))
	must.Value(admin.SpawnAgent(soon(t), &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	listed := func(c agentv1.AgentServiceClient) map[string]bool {
		resp := must.Value(c.ListTools(soon(t), &agentv1.ListToolsRequest{AgentId: "keeper"}))(t)
		names := map[string]bool{}
		for _, tool := range resp.GetTools() {
			names[tool.GetName()] = true
		}
		return names
	}
	all := listed(admin)
	_, secret := h.key(t, &identityv1.CreateKeyRequest{
		Name: "person", Role: identityv1.Role_ROLE_OPERATOR, Namespace: rpc.DefaultNamespace,
	})
	operator := agentv1.NewAgentServiceClient(h.conn(t, secret))
	few := listed(operator)
	for _, name := range []string{"CreateWorkItem", "CompleteWorkItem", "TaskStop", "board_cancel"} {
		require.True(t, few[name], name)
	}
	for _, name := range []string{"PickWorkItem", "board_create", "board_update_step", "board_dispatch_worker"} {
		require.True(t, all[name], name)
		require.False(t, few[name], name)
	}
	for name := range all {
		resp := must.Value(operator.CallTool(soon(t), &agentv1.CallToolRequest{AgentId: "keeper", Name: name}))(t)
		require.Equal(t, !few[name], resp.GetResult().GetError().GetKind() == "tool_not_available", "%s: %v", name,
			resp.GetResult())
		require.NotEqual(t, "permission_denied", resp.GetResult().GetError().GetKind(),
			"what is listed is not refused for the role: %v", resp.GetResult())
	}
	agent := agentv1.NewAgentServiceClient(
		h.conn(t, h.minted(t, rpc.Actor{
			Namespace: rpc.DefaultNamespace, Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper",
		})))
	require.Equal(t, all, listed(agent))
	_, secret = h.key(t, &identityv1.CreateKeyRequest{
		Name: "thinker", Role: identityv1.Role_ROLE_RUNNER, Namespace: rpc.DefaultNamespace,
	})
	require.Equal(t, all, listed(agentv1.NewAgentServiceClient(h.conn(t, secret))),
		"a runner acts as the agent in its turns")
}
