package rpc

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// lane is an instance that records the ids of requests.
type lane struct {
	agentv1.UnimplementedAgentServiceServer
	err error
	ids chan string
}

func (l *lane) EnqueueMessage(_ context.Context, req *agentv1.EnqueueMessageRequest) (*agentv1.EnqueueMessageResponse, error) {
	l.ids <- req.GetRequestId()
	return &agentv1.EnqueueMessageResponse{}, l.err
}

// A call that is repeated at another instance has one request id there and here, also in a network
// without NewID, because the first instance may have executed it.
func TestARepeatedCallHasARequestID(t *testing.T) {
	keys := NewKeyring(nil, false)
	ids := make(chan string, 2)
	serve := func(err error) string {
		server := NewServer(Config{Auth: keys})
		agentv1.RegisterAgentServiceServer(server, &lane{err: err, ids: ids})
		lis, lerr := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, lerr)
		served := make(chan error, 1)
		go func() { served <- server.Serve(lis) }()
		t.Cleanup(func() {
			server.Stop()
			require.NoError(t, <-served)
		})
		return lis.Addr().String()
	}
	before, now := serve(status.Error(codes.Unavailable, "gone")), serve(nil)
	n := NewNetwork(NetworkConfig{Service: "test", Token: keys.MintService("test"), Addresses: map[string]string{"agent": now}})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	conn, err := n.Dial("agent")
	require.NoError(t, err)
	conn.affinity.learn(owner{agent: "keeper"}, before)
	_, err = agentv1.NewAgentServiceClient(conn).EnqueueMessage(t.Context(), &agentv1.EnqueueMessageRequest{AgentId: "keeper"})
	require.NoError(t, err)
	first, second := <-ids, <-ids
	require.NotEmpty(t, first)
	require.Equal(t, first, second)
}
