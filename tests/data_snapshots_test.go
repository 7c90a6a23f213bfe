package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// TestR11_DataWithSnapshots opens a data directory whose journal has segments and snapshots, as they were first
// written: the pages are read, the history behind them is there, and it goes on.
func TestR11_DataWithSnapshots(t *testing.T) {
	srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), ""))(t)
	out, err := exec.CommandContext(t.Context(), "tar", "-C", srv.DataDir, "-xzf",
		filepath.Join("testdata", "data-format-2.tar.gz")).CombinedOutput()
	require.NoError(t, err, string(out))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	t.Cleanup(func() { _ = srv.Kill() })
	for round := range 2 {
		require.NoError(t, srv.Start(ctx))
		conn := must.Value(load.Dial(srv.GRPC))(t)
		work := workv1.NewWorkServiceClient(conn)
		list := must.Value(work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
		require.Len(t, list.GetWorkItems(), 3)
		for _, item := range list.GetWorkItems() {
			id := item.GetWorkItemId()
			d := damageable{t: t, ctx: ctx, work: work}
			require.Equal(t, 141+round, d.revisions(id))
			require.EqualValues(t, 141+round, item.GetRevision())
			must.Value(work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
				AgentId: "keeper", WorkItemId: id, Objective: new("another"),
			}))(t)
		}
		require.NoError(t, conn.Close())
		require.Empty(t, damageOf(t, ctx, srv))
		require.NoError(t, srv.Interrupt(ctx))
	}
	log := must.Value(os.ReadFile(srv.Log))(t)
	require.NotContains(t, string(log), "a snapshot cannot be used")
	require.NotContains(t, string(log), "the newest snapshot is missing")
	out, err = exec.CommandContext(ctx, srv.Binary, "verify", "--data-dir", srv.DataDir).CombinedOutput()
	require.NoError(t, err, string(out))
}
