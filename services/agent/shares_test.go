package agent

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/runners"
)

func TestD7_WeightsAreBounded(t *testing.T) {
	for _, w := range []int{-1, 0, runners.MaxWeight + 1} {
		_, err := New(Config{Weights: map[string]int{"acme": w}}, Deps{})
		require.Error(t, err)
	}
	r := newRig(t)
	for _, w := range []int{1, runners.MaxWeight} {
		must.Value(New(Config{Weights: map[string]int{"acme": w}}, r.service.deps))(t)
	}
	_, err := New(Config{Weights: map[string]int{"acme": 0}}, r.service.deps)
	require.ErrorContains(t, err, `the weight of namespace "acme" is 0; it must be 1 to 1000`)
}

// A shared runner serves every namespace; the turn is its agent's all the same.
func TestD7_ASharedRunnerServesAll(t *testing.T) {
	r := newRig(t)
	for _, ns := range []string{"acme", "umbrella"} {
		ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: ns, Principal: "olga", Role: rpc.RoleOperator})
		for _, agentID := range []string{"keeper", "other"} {
			must.Value(r.service.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
				AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
			}))(t)
			must.Value(r.service.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: agentID, Text: "x"}))(t)
		}
	}
	shared := rpc.WithActor(t.Context(), rpc.Actor{
		Namespace: "default", Principal: "pool", Role: rpc.RoleInstallationAdmin,
	})
	var got []string
	for i := range 4 {
		req := &agentv1.AcquireTurnRequest{AllNamespaces: true, Wait: durationpb.New(0), RequestId: fmt.Sprint("r", i)}
		resp := must.Value(r.service.AcquireTurn(shared, req))(t)
		got = append(got, resp.GetNamespace()+"/"+resp.GetTurn().GetAgentId())
		require.Equal(t, "token/"+resp.GetNamespace()+"/"+resp.GetTurn().GetAgentId()+"/"+resp.GetTurn().GetRunId(),
			resp.GetRunToken())
		require.Equal(t, "default", resp.GetTurn().GetAcquiredFrom())
		// Asking again answers the same turn (SPEC X2).
		again := must.Value(r.service.AcquireTurn(shared, req))(t)
		require.Equal(t, resp.GetTurn().GetTurnId(), again.GetTurn().GetTurnId())
		require.Equal(t, resp.GetNamespace(), again.GetNamespace())
		req.AllNamespaces = false
		must.Refuse(r.service.AcquireTurn(shared, req))(t, fault.RequestIDReused)
	}
	require.Equal(t, []string{"acme/keeper", "umbrella/keeper", "acme/other", "umbrella/other"}, got)
	resp := must.Value(r.service.AcquireTurn(shared, &agentv1.AcquireTurnRequest{
		AllNamespaces: true,
		Wait:          durationpb.New(0),
	}))(t)
	require.True(t, resp.GetPending())

	for _, role := range []string{rpc.RoleRunner, rpc.RoleAgent} {
		_, err := r.service.AcquireTurn(planetest.As(t.Context(), role), &agentv1.AcquireTurnRequest{
			AllNamespaces: true,
		})
		require.Error(t, err, role)
	}
	must.Refuse(r.service.AcquireTurn(shared, &agentv1.AcquireTurnRequest{
		AllNamespaces: true,
		AgentIds:      []string{"keeper"},
	}))(t, fault.InvalidArgument)
}
