package rpc

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

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

func (l *lane) EnqueueMessage(_ context.Context, req *agentv1.EnqueueMessageRequest) (*agentv1.EnqueueMessageResponse,
	error,
) {
	l.ids <- req.GetRequestId()
	return &agentv1.EnqueueMessageResponse{}, l.err
}

// stuck is an instance that does not respond to its first calls.
type stuck struct {
	lane
	first chan struct{} // a call that takes a value from it is not responded to
}

// EnqueueMessage implements agentv1.AgentServiceServer.
func (s *stuck) EnqueueMessage(ctx context.Context, req *agentv1.EnqueueMessageRequest) (
	*agentv1.EnqueueMessageResponse, error,
) {
	select {
	case <-s.first:
		deadline, _ := ctx.Deadline()
		s.ids <- fmt.Sprint(req.GetRequestId(), " ", time.Until(deadline) > directTerm)
		<-ctx.Done()
		return nil, ctx.Err()
	default:
		return s.lane.EnqueueMessage(ctx, req)
	}
}

// slow is an instance that takes longer than directTerm for each call.
type slow struct{ lane }

// EnqueueMessage implements agentv1.AgentServiceServer.
func (s *slow) EnqueueMessage(ctx context.Context, req *agentv1.EnqueueMessageRequest) (*agentv1.EnqueueMessageResponse,
	error,
) {
	select {
	case <-time.After(directTerm * 3 / 2):
		return s.lane.EnqueueMessage(ctx, req)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A call that takes longer than directTerm at each instance ends all the same.
func TestACallThatTakesItsTimeEnds(t *testing.T) {
	t.Parallel()
	service := &slow{lane{ids: make(chan string, 1)}}
	conn := splitService(t, service)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := agentv1.NewAgentServiceClient(conn).EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: "keeper"})
	require.NoError(t, err)
	require.Len(t, service.ids, 1)
}

// splitService returns a connection to a service that is known to have partitions.
func splitService(t *testing.T, service agentv1.AgentServiceServer) *Conn {
	t.Helper()
	keys := NewKeyring(nil, false)
	server := NewServer(Config{Auth: keys})
	agentv1.RegisterAgentServiceServer(server, service)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	n := NewNetwork(NetworkConfig{Service: "test", Token: keys.MintService("test"), Addresses: map[string]string{
		"agent": lis.Addr().String(),
	}})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	conn, err := n.Dial("agent")
	require.NoError(t, err)
	conn.affinity.remember(owner{agent: "another"}, lis.Addr().String())
	return conn
}

// A call of a service with partitions is repeated, under one request id, if an instance does not respond, also where
// none is known to hold the agent. The instance does not learn of that, so that it does not answer that it ran out of
// time.
func TestACallThatIsNotRespondedToIsRepeated(t *testing.T) {
	t.Parallel()
	service := &stuck{lane: lane{ids: make(chan string, 3)}, first: make(chan struct{}, 2)}
	conn := splitService(t, service)
	service.first <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := agentv1.NewAgentServiceClient(conn).EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{AgentId: "keeper"})
	require.NoError(t, err)
	first, second := <-service.ids, <-service.ids
	require.Equal(t, second+" true", first)
	require.NotEmpty(t, second)
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
	n := NewNetwork(NetworkConfig{Service: "test", Token: keys.MintService("test"), Addresses: map[string]string{
		"agent": now,
	}})
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	conn, err := n.Dial("agent")
	require.NoError(t, err)
	conn.affinity.remember(owner{agent: "keeper"}, before)
	_, err = agentv1.NewAgentServiceClient(conn).EnqueueMessage(t.Context(), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper",
	})
	require.NoError(t, err)
	first, second := <-ids, <-ids
	require.NotEmpty(t, first)
	require.Equal(t, first, second)
}
