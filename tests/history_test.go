package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/journal/archive"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/app"
	"quartet/services/cli/admin"
	"quartet/tests/dev"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// removedOfWork returns how many events were removed from the journal of work of a data directory.
func removedOfWork(t *testing.T, data string) (removed int64) {
	t.Helper()
	c, err := archive.Read(t.Context(), archive.NewDirectory(filepath.Join(data, "archive"), "work", 0), "work/0")
	require.NoError(t, err)
	for _, s := range c.Segments {
		removed += s.GetRemovedLines()
	}
	return removed
}

// newestSnapshot returns the last sequence of the stream of the snapshots of work, as quartet verify prints it.
func newestSnapshot(t *testing.T, verified string) uint64 {
	t.Helper()
	var all admin.Verified
	require.NoError(t, json.Unmarshal([]byte(verified), &all))
	i := slices.IndexFunc(all.Streams, func(s admin.VerifiedStream) bool { return s.Name == "quartet-snapshot-work-0" })
	require.NotEqual(t, -1, i)
	return all.Streams[i].Last
}

// TestX10_HistoryOfSomeDays: what is older than history is kept goes from the archive, and nobody loses anything else.
// Open and completed items are whole after a start, what is counted by reading the journals is right, they verify, and
// a backup of them restores.
func TestX10_HistoryOfSomeDays(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	dir := t.TempDir()
	data, bin := filepath.Join(dir, "data"), binary(t)
	cfg := must.Value(dev.Config(data))(t)
	cfg.Publish, cfg.SegmentSize, cfg.SnapshotSize, cfg.HistoryDays, cfg.Day = true, 1, 1, 2, time.Second
	a := must.Value(app.New(cfg, zap.NewNop(), "test"))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.NoError(t, a.Start(ctx))
	stop := func() {
		stopping, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, a.Stop(stopping))
	}
	defer func() {
		if a != nil {
			stop()
		}
	}()
	conn := must.Value(load.Dial(cfg.GRPCAddr))(t)
	work := workv1.NewWorkServiceClient(conn)
	must.Value(agentv1.NewAgentServiceClient(conn).
		SpawnAgent(ctx, &agentv1.SpawnAgentRequest{AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED},
			grpc.WaitForReady(true)))(t)
	create := func(objective string) string {
		resp, err := work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: objective})
		require.NoError(t, err)
		return resp.GetWorkItem().GetWorkItemId()
	}
	open, done := create("an open item"), create("a completed item")
	must.Value(work.CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: done}))(t)
	updates := 0
	update := func() {
		t.Helper()
		updates++
		objective := fmt.Sprintf("an open item, %d %s", updates, strings.Repeat("x", 1800))
		must.Value(work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: open, Objective: &objective,
		}))(t)
	}
	for removed := int64(0); removed < 2000; removed = removedOfWork(t, data) {
		for range 100 {
			update()
		}
	}

	whole := func(conn *grpc.ClientConn) {
		t.Helper()
		work := workv1.NewWorkServiceClient(conn)
		got := must.Value(work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: open},
			grpc.WaitForReady(true)))(t)
		require.Contains(t, got.GetWorkItem().GetObjective(), fmt.Sprintf("an open item, %d ", updates))
		got = must.Value(work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: done}))(t)
		require.Equal(t, "a completed item", got.GetWorkItem().GetObjective())
		past := must.Value(work.ListWorkItemHistory(ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: done,
		}))(t)
		require.True(t, past.GetHistoryRemoved())
		past = must.Value(work.ListWorkItemHistory(ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: open,
		}))(t)
		require.NotEmpty(t, past.GetMutations(), "what is new is there")
		usage := must.Value(identityv1.NewIdentityServiceClient(conn).GetUsage(ctx, &identityv1.GetUsageRequest{}))(t)
		held := map[string]int64{}
		for _, u := range usage.GetQuotas() {
			held[u.GetKind()] = u.GetValue()
		}
		require.EqualValues(t, 1, held["open-items"], "a process that starts counts from the beginning of the journals")
		require.EqualValues(t, 1, held["agents"])
	}
	whole(conn)
	require.NoError(t, conn.Close())
	stop()
	a = nil

	quartet := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	require.Contains(t, quartet("verify", "--data-dir", data), "removed:")
	srv := must.Value(proc.NewQuartet(bin, data, "", "--snapshot-mib", "1"))(t)
	t.Cleanup(func() { _ = srv.Kill() })
	lives := func() {
		t.Helper()
		require.NoError(t, srv.Start(ctx))
		conn := must.Value(load.Dial(srv.GRPC))(t)
		whole(conn)
		require.NoError(t, conn.Close())
	}
	key := must.Value(os.ReadFile(filepath.Join(data, "key")))(t)
	backup := func(name string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		quartet("backup", file, "--address", srv.GRPC)
		return file
	}
	restore := func(file string) {
		t.Helper()
		require.NoError(t, os.Rename(data, file+"-before"))
		quartet("restore", file, "--data-dir", data, "--key-file", filepath.Join(file+"-before", "key"))
		require.NoError(t, os.WriteFile(filepath.Join(data, "key"), key, 0o600))
	}
	lives()
	first := backup("first")
	require.NoError(t, srv.Kill())
	lives()
	require.NoError(t, srv.Interrupt(ctx))
	restore(first)
	before := newestSnapshot(t, quartet("verify", "--data-dir", data, "-o", "json"))
	lives()

	// What was restored goes on: it writes snapshots, and is in a backup before it is archived again.
	conn = must.Value(load.Dial(srv.GRPC))(t)
	work = workv1.NewWorkServiceClient(conn)
	second := backup("second")
	for range 1000 {
		update()
	}
	require.NoError(t, conn.Close())
	require.NoError(t, srv.Interrupt(ctx))
	require.Greater(t, newestSnapshot(t, quartet("verify", "--data-dir", data, "-o", "json")), before)
	lives()
	require.NoError(t, srv.Interrupt(ctx))
	restore(second)
	updates -= 1000
	lives()
	require.NoError(t, srv.Interrupt(ctx))
	quartet("verify", "--data-dir", data)
	// Snapshots cannot be made again from such a journal, so repair leaves them where they are.
	blocks, err := filepath.Glob(filepath.Join(data, "nats", "jetstream", "*", "streams", "quartet-snapshot-work-0",
		"msgs", "*.blk"))
	require.NoError(t, err)
	require.NotEmpty(t, blocks)
	block := must.Value(os.ReadFile(blocks[0]))(t)
	block[len(block)/2] ^= 1
	require.NoError(t, os.WriteFile(blocks[0], block, 0o600))
	out, err := exec.CommandContext(ctx, bin, "repair", "--data-dir", data, "--apply").CombinedOutput()
	require.Contains(t, string(out), "comes back with a restore only", err)
	require.FileExists(t, blocks[0])
}
