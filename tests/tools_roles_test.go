package tests

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
	"quartet/tests/dev"
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

// SPEC X2: a tool call under a request id that was used is answered as it was
// then, and says so; with another report it is refused, by the caller's own id.
func TestX2_ARepeatedToolCallSaysSo(t *testing.T) {
	r := dev.Start(t)
	require.NoError(t, spawnNamed(dev.Within(t), r.Client, "keeper"))
	use := func(requestID, text, name string, args map[string]any) (*agentv1.CallToolResponse, bool, error) {
		in, err := structpb.NewStruct(args)
		require.NoError(t, err)
		var header metadata.MD
		resp, err := r.Agents.CallTool(dev.Within(t), &agentv1.CallToolRequest{
			AgentId: "keeper", RequestId: requestID, RoundText: text, Name: name, Arguments: in,
		}, grpc.Header(&header))
		return resp, rpc.WasReplayed(header), err
	}
	first, replayed, err := use("once", "", "CreateWorkItem", map[string]any{"objective": "ship"})
	require.NoError(t, err)
	require.False(t, replayed)
	again, replayed, err := use("once", "", "CreateWorkItem", map[string]any{"objective": "ship"})
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, itemOf(first.GetResult()), itemOf(again.GetResult()))
	other, replayed, err := use("once", "", "CreateWorkItem", map[string]any{"objective": "sink"})
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, "request_id_reused", other.GetResult().GetError().GetKind())

	itemID := itemOf(first.GetResult())
	_, _, err = use("", "", "PickWorkItem", map[string]any{"work_item_id": itemID})
	require.NoError(t, err)
	for range 2 {
		done, _, err := use("done", "It is shipped.", "CompleteWorkItem", map[string]any{"work_item_id": itemID})
		require.NoError(t, err)
		require.Equal(t, itemID, done.GetPromotedWorkItemId())
	}
	_, _, err = use("done", "It sank.", "CompleteWorkItem", map[string]any{"work_item_id": itemID})
	require.ErrorIs(t, err, fault.RequestIDReused)
	require.ErrorContains(t, err, "request_id done")
}
