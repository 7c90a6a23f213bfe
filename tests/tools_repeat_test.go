package tests

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
	"quartet/tests/dev"
)

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
