package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/storage/datadir"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// TestR9_DataOfFormerVersions opens data directories that servers with the formats of frames up to this one left, each
// with an agent, three items, a command and a key, and goes on in them.
func TestR9_DataOfFormerVersions(t *testing.T) {
	for format, name := range []string{"data-format-0.tar.gz", "data-format-1.tar.gz"} {
		t.Run(name, func(t *testing.T) {
			srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), ""))(t)
			out, err := exec.CommandContext(t.Context(), "tar", "-C", srv.DataDir, "-xzf",
				filepath.Join("testdata", name)).CombinedOutput()
			require.NoError(t, err, string(out))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			t.Cleanup(cancel)
			t.Cleanup(func() { _ = srv.Kill() })
			for round := range 2 {
				require.NoError(t, srv.Start(ctx))
				conn := must.Value(load.Dial(srv.GRPC))(t)
				work := workv1.NewWorkServiceClient(conn)
				list := must.Value(work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
				require.Len(t, list.GetWorkItems(), 3+round)
				agents, err := agentv1.NewAgentServiceClient(conn).ListAgents(ctx, &agentv1.ListAgentsRequest{})
				require.NoError(t, err)
				require.Len(t, agents.GetAgents(), 1)
				item := must.Value(work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
					AgentId: "keeper", Objective: "another",
				}))(t)
				require.Eventually(t, func() bool { // the next segment is made meanwhile
					must.Value(work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
						AgentId: "keeper", WorkItemId: item.GetWorkItem().GetWorkItemId(),
						Objective: new(fmt.Sprint(time.Now())),
					}))(t)
					segments := must.Value(datadir.Segments(datadir.Store(srv.DataDir), "$G", "work"))(t)
					return len(segments) == 2 && segments[0].Shared && segments[1].Segment == 1 && segments[1].Frames
				}, time.Minute, 10*time.Millisecond)
				require.NoError(t, conn.Close())
				require.Empty(t, damageOf(t, ctx, srv))
				require.NoError(t, srv.Interrupt(ctx))
			}
			out, err = exec.CommandContext(ctx, srv.Binary, "verify", "--data-dir", srv.DataDir).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "journals: 7, damaged: 0")
			require.Equal(t, format, firstFormat(t, srv.DataDir))
		})
	}
}

// damageOf returns what /readyz says is damaged.
func damageOf(t *testing.T, ctx context.Context, srv *proc.Quartet) []string {
	t.Helper()
	req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+srv.HTTP+"/readyz", nil))(t)
	resp := must.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	var ready struct{ Damaged []string }
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&ready))
	return ready.Damaged
}

// firstFormat returns the format of the first frame of the journal of work in a data directory, and requires that the
// last one has the newest.
func firstFormat(t *testing.T, dataDir string) int {
	t.Helper()
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: filepath.Join(dataDir, "nats"), Port: natsd.InProcess}))(t)
	defer srv.Stop()
	nc := must.Value(srv.Connect("test"))(t)
	defer nc.Close()
	js := must.Value(jetstream.New(nc))(t)
	shared := must.Value(js.Stream(t.Context(), jetlog.Place{Plane: "work", Shared: true}.Stream()))(t)
	require.Less(t, shared.CachedInfo().State.LastSeq, uint64(framelog.SegmentGap),
		"what is known of the next segment is not missed in the first")
	log := must.Value(jetlog.New(nc, "work", 0))(t)
	var formats []int
	require.NoError(t, log.Scan(t.Context(), 0, func(_ uint64, f framelog.Frame) error {
		formats = append(formats, f.Link.Format)
		return nil
	}))
	require.Contains(t, formats, framelog.Format, "the first segment is closed")
	return formats[0]
}
