package task

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/task/model"
	"quartet/services/task/output"
)

// A worker's capacity counts over all partitions, and every agent's commands
// run, wherever they live.
func TestT4_CapacityCountsOverPartitions(t *testing.T) {
	logs := []framelog.Log{journaltest.NewMemLog(), journaltest.NewMemLog(), journaltest.NewMemLog()}
	svc, err := New(Config{Share: journal.WholeShare(3)}, Deps{Output: output.NewMemory(output.Kept), Deps: plane.Deps{
		Log:     func(_ string, n int) (framelog.Log, error) { return logs[n], nil },
		Sources: func(string) ([]journal.Source, error) { return nil, nil },
	}})
	require.NoError(t, err)
	require.NoError(t, svc.Start(context.Background()))
	keys := rpc.NewKeyring(nil, false)
	server := rpc.NewServer(rpc.Config{Auth: keys})
	svc.Register(server)
	s := &site{t: t, service: svc}
	s.network = rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Token: keys.MintService("test")})
	require.NoError(t, s.network.Listen("task", server))
	t.Cleanup(func() {
		require.NoError(t, svc.Stop(context.Background()))
		server.Stop()
		require.NoError(t, s.network.Close())
	})
	s.ctx = rpc.WithActor(t.Context(), rpc.Actor{Namespace: "acme", Principal: "op", Role: rpc.RoleOperator})
	used := map[*journal.Partition[*model.State]]bool{}
	const n = 24
	for i := range n {
		agent := fmt.Sprintf("a%d", i%8)
		used[svc.engine.For("acme", agent)] = true
		_, err := s.client().ExecCommand(s.ctx, &taskv1.ExecCommandRequest{AgentId: agent, Command: &taskv1.CommandSpec{
			Cmd: "x",
		}, YieldTime: durationpb.New(0)})
		require.NoError(t, err)
	}
	require.Greater(t, len(used), 1)
	h := s.connect("w1", "b1", 2)
	open := map[string]bool{}
	for done := 0; done < n; {
		m := h.hear()
		if l := m.GetLease(); l != nil {
			open[l.GetTask().GetTaskId()] = true
			require.LessOrEqual(t, len(open), 2)
		}
		if a := m.GetAck(); a.GetEnded() {
			done++
		}
		for id := range open {
			if len(open) == 2 || done >= n-2 {
				delete(open, id)
				h.ended(id, 0)
				break
			}
		}
	}
}
