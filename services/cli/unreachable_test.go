package cli

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/cli/exit"
)

// syncBuffer is a buffer that can be read while a command writes to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (h *syncBuffer) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.Write(p)
}

func (h *syncBuffer) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}

// A command that waits for its server reports that once, and reports when it is connected.
func TestWaitingForAServerIsReported(t *testing.T) {
	l := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	servers := Servers{
		MCP: func(ctx context.Context, conn grpc.ClientConnInterface, _ MCPOptions) error {
			_, err := agentv1.NewAgentServiceClient(conn).GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: "keeper"},
				grpc.WaitForReady(true))
			return err
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs syncBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, servers, []string{"mcp", "--agent", "keeper", "--address", address}, strings.NewReader(""),
			&out, &errs)
	}()
	says := func(what string) func() bool { return func() bool { return strings.Contains(errs.String(), what) } }
	require.Eventually(t, says("quartet dev"), time.Minute, time.Millisecond)
	require.Contains(t, errs.String(), "quartet dev --grpc-addr "+address)

	l = must.Value(net.Listen("tcp", address))(t)
	server := grpc.NewServer()
	agentv1.RegisterAgentServiceServer(server, &planes{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case code := <-ended:
		require.Zero(t, code, errs.String())
	case <-ctx.Done():
		require.FailNow(t, "the command never connected")
	}
	server.Stop()
	require.NoError(t, <-served)
	require.Equal(t, 1, strings.Count(errs.String(), "quartet dev"), errs.String())
	require.Empty(t, out.String(), "stdout belongs to the protocol")
}

// Nothing is reported about a server that is reachable at once.
func TestReachableServerIsNotReported(t *testing.T) {
	r := newHarness(t)
	servers := Servers{
		Run: func(ctx context.Context, conn grpc.ClientConnInterface, _ RunOptions) error {
			_, err := agentv1.NewAgentServiceClient(conn).GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: "keeper"})
			return err
		},
	}
	var out, errs syncBuffer
	code := Run(t.Context(), servers, []string{
		"run", "--agent", "keeper", "--provider", "openai", "--model", "m",
		"--address", r.address,
	}, strings.NewReader(""), &out, &errs)
	require.Zero(t, code)
	require.Empty(t, errs.String())
}

// A command that no server answers names the command that starts one where it looked, if that is on this machine.
func TestAnErrorNamesTheServerToStart(t *testing.T) {
	l := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	var out, errs syncBuffer
	require.Equal(t, exit.Unavailable, Run(t.Context(), Servers{}, []string{"agent", "list", "--address", address},
		strings.NewReader(""), &out, &errs))
	require.Contains(t, errs.String(), "start one with: quartet dev --grpc-addr "+address)

	var elsewhere syncBuffer
	require.Equal(t, exit.Unavailable,
		Run(t.Context(), Servers{}, []string{"agent", "list", "--address", "host.invalid:1"}, strings.NewReader(""),
			&out, &elsewhere))
	require.Contains(t, elsewhere.String(), "check that a server runs")
	require.NotContains(t, elsewhere.String(), "quartet dev", "that would be another server")
}

// A build without servers and workers, as that for Windows, refuses their commands with their flags, and says where
// they are.
func TestABuildWithoutServersSaysSo(t *testing.T) {
	for _, args := range [][]string{
		{"dev", "--data-dir", "/tmp/x", "--open"},
		{"serve", "all", "--nats-url", "nats://127.0.0.1:4222"},
		{"worker", "--root", "."},
		{"restore", "quartet.backup"},
		{"verify"},
		{"repair", "--apply"},
		{"doctor", "-o", "json"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exit.Failed, Run(t.Context(), Servers{ClientsOnly: true}, args, strings.NewReader(""), &out,
			&errs), args)
		require.Contains(t, errs.String(), "quartet "+args[0]+": this build for "+runtime.GOOS+"/"+runtime.GOARCH)
		require.Contains(t, errs.String(), "--address HOST:PORT")
		require.Empty(t, out.String())
	}
}
