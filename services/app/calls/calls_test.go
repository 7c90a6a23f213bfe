package calls

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
)

// countedFacts is an agent plane that counts how often its facts are read.
type countedFacts struct {
	agentv1.UnimplementedAgentServiceServer
	reads int
}

func (c *countedFacts) GetFacts(_ context.Context, req *agentv1.GetFactsRequest) (*agentv1.GetFactsResponse, error) {
	c.reads++
	return &agentv1.GetFactsResponse{Facts: []*agentv1.AgentFacts{{Agent: &agentv1.Agent{
		AgentId: req.GetAgentId(), Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE, WorkspaceRoot: "/srv",
		CurrentRunId: "run_1",
	}}}}, nil
}

// The fence and the handler of one ExecCommand read the agent's facts once together, and
// a run that no longer holds the agent is still refused.
func TestExecCommandReadsFactsOnce(t *testing.T) {
	keys := rpc.NewKeyring(nil, false)
	network := rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Token: keys.MintService("test")})
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	facts := &countedFacts{}
	server := rpc.NewServer(rpc.Config{Auth: keys})
	agentv1.RegisterAgentServiceServer(server, facts)
	t.Cleanup(server.Stop)
	require.NoError(t, network.Listen("agent", server))
	c := Planes{Network: network}
	exec := func(runID string) (string, error) {
		actor := rpc.Actor{
			Namespace: "acme", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper", RunID: runID,
		}
		ctx := rpc.WithActor(t.Context(), actor)
		if err := c.Fence(ctx, taskv1.TaskService_ExecCommand_FullMethodName, actor); err != nil {
			return "", err
		}
		space, err := c.Workspace(ctx, "keeper")
		return space.Root, err
	}
	root := must.Value(exec("run_1"))(t)
	require.Equal(t, "/srv", root)
	require.Equal(t, 1, facts.reads)
	must.Refuse(exec("run_0"))(t, fault.RunStale)
	require.Equal(t, 2, facts.reads)
	root = must.Value(exec(""))(t)
	require.Equal(t, "/srv", root)
}
