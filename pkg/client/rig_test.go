package client_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/tests/dev"
)

// attentive is longer than any turn of these tests.
const attentive = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a whole server in this process, which can be started anew over the
// same data and ports.
type rig struct {
	t testing.TB
	*dev.Server
}

func newRig(t testing.TB, opts ...grpc.DialOption) *rig {
	return &rig{t: t, Server: dev.Start(t, client.WithGRPC(opts...))}
}

func (r *rig) spawn(agentID, message string) {
	must.Value(r.Agents.SpawnAgent(context.Background(), &agentv1.SpawnAgentRequest{
		AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, InitialMessage: message,
	}))(r.t)
}

func (r *rig) say(agentID, text string, p agentv1.Priority) string {
	return must.Value(r.Agents.EnqueueMessage(context.Background(), &agentv1.EnqueueMessageRequest{
		AgentId: agentID, Text: text, Priority: p,
	}))(r.t).GetMessageId()
}

func (r *rig) turn(agentID, turnID string) *agentv1.Turn {
	resp, err := r.Agents.GetTurn(context.Background(), &agentv1.GetTurnRequest{AgentId: agentID, TurnId: turnID})
	require.NoError(r.t, err)
	return resp.GetTurn()
}

func (r *rig) message(agentID, messageID string) *agentv1.Message {
	return must.Value(r.Agents.GetMessage(context.Background(), &agentv1.GetMessageRequest{
		AgentId: agentID, MessageId: messageID,
	}))(r.t).GetMessage()
}

func call(t testing.TB, id, name string, args map[string]any) *agentv1.ToolCall {
	return must.Value(client.Call(id, name, args))(t)
}

func listen(t testing.TB, addr string) net.Listener {
	var lis net.Listener
	require.Eventually(t, func() bool {
		var err error
		lis, err = net.Listen("tcp", addr)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	return lis
}
