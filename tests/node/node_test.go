// Package node tests that a client which is not Go does one full loop.
package node

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"quartet/pkg/client"
	"quartet/pkg/must"
	"quartet/tests/proc"
)

// TestAnyClientWorks runs loop.mjs with grpc-js against the real binary, and
// asks the server what it serves by reflection.
func TestAnyClientWorks(t *testing.T) {
	proc.Long(t)
	require.NoError(t, proc.NodePackages(t.Context(), "."))
	bin := must.Value(proc.Build(t.TempDir(), "quartet/cmd/quartet", "quartet"))(t)
	srv := must.Value(proc.NewQuartet(bin, filepath.Join(t.TempDir(), "data"), ""))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, srv.Start(ctx))
	t.Cleanup(func() { _ = srv.Kill() })

	out, err := exec.CommandContext(ctx, "node", "loop.mjs", srv.GRPC, filepath.Join("..", "..", "proto")).
		CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "idle")

	conn := must.Value(grpc.NewClient(srv.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(client.LocalCredential(srv.GRPC))))(t)
	t.Cleanup(func() { _ = conn.Close() })
	stream := must.Value(reflection.NewServerReflectionClient(conn).ServerReflectionInfo(ctx))(t)
	require.NoError(t, stream.Send(&reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_ListServices{},
	}))
	reply := must.Value(stream.Recv())(t)
	var served []string
	for _, s := range reply.GetListServicesResponse().GetService() {
		served = append(served, s.GetName())
	}
	require.Subset(t, served, []string{
		"quartet.agent.v1.AgentService", "quartet.work.v1.WorkService", "quartet.task.v1.TaskService",
		"quartet.waiting.v1.WaitingService", "quartet.scheduler.v1.SchedulerService", "quartet.event.v1.EventService",
	})
}
