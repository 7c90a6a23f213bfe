package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
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
			srv, ctx := serverWith(t, name)
			for round := range 2 {
				require.NoError(t, srv.Start(ctx))
				conn := must.Value(load.Dial(srv.GRPC))(t)
				work := workv1.NewWorkServiceClient(conn)
				list := must.Value(work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
				require.Len(t, list.GetWorkItems(), 3+round)
				agents := agentv1.NewAgentServiceClient(conn)
				listed := must.Value(agents.ListAgents(ctx, &agentv1.ListAgentsRequest{}))(t)
				require.Len(t, listed.GetAgents(), 1)
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
			out, err := exec.CommandContext(ctx, srv.Binary, "verify", "--data-dir", srv.DataDir).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "journals: 7, damaged: 0")
			require.Equal(t, format, firstFormat(t, srv.DataDir))
		})
	}
}

// serverWith returns a server, not started, of a data directory in testdata.
func serverWith(t *testing.T, archive string, flags ...string) (*proc.Quartet, context.Context) {
	srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), "", flags...))(t)
	out, err := exec.CommandContext(t.Context(), "tar", "-C", srv.DataDir, "-xzf",
		filepath.Join("testdata", archive)).CombinedOutput()
	require.NoError(t, err, string(out))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	t.Cleanup(func() { _ = srv.Kill() })
	return srv, ctx
}

func usesSnapshots(t *testing.T, srv *proc.Quartet) {
	log := must.Value(os.ReadFile(srv.Log))(t)
	require.NotContains(t, string(log), "a snapshot cannot be used")
	require.NotContains(t, string(log), "the newest snapshot is missing")
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

// TestR11_SnapshotsOfFormat2 opens a data directory whose snapshots have format 2, in which ended tasks, waits and
// messages were not packed: they are the same afterwards, as is one more of each, and a snapshot of the newest format
// has them as well.
func TestR11_SnapshotsOfFormat2(t *testing.T) {
	srv, ctx := serverWith(t, "data-snapshot-2.tar.gz", "--snapshot-mib", "1", "--embedded-worker", "off")
	for round := range 2 {
		require.NoError(t, srv.Start(ctx))
		conn := must.Value(load.Dial(srv.GRPC))(t)
		work, waiting, agents, tasks := workv1.NewWorkServiceClient(conn), waitingv1.NewWaitingServiceClient(conn),
			agentv1.NewAgentServiceClient(conn), taskv1.NewTaskServiceClient(conn)

		items := must.Value(work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
			AgentId: "keeper", PageSize: 500, Filter: workv1.WorkItemFilter_WORK_ITEM_FILTER_COMPLETED,
		}))(t)
		require.Len(t, items.GetWorkItems(), 90)

		waits := must.Value(waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{
			AgentId: "keeper", PageSize: 500, IncludeEnded: true,
		}))(t)
		require.Len(t, waits.GetWaits(), 41+round)
		for i, w := range waits.GetWaits()[:40] {
			require.Contains(t, w.GetCondition(), fmt.Sprintf("wait %d, this is said often", i))
			require.Equal(t, waitingv1.WaitStatus_WAIT_STATUS_CANCELLED, w.GetStatus())
			got, err := waiting.GetWait(ctx, &waitingv1.GetWaitRequest{AgentId: "keeper", WaitId: w.GetWaitId()})
			require.NoError(t, err)
			require.Equal(t, w.GetCondition(), got.GetWait().GetCondition())
		}
		made := must.Value(waiting.CreateWait(ctx, &waitingv1.CreateWaitRequest{
			AgentId: "keeper", Condition: "another",
		}))(t)
		must.Value(waiting.CancelWait(ctx, &waitingv1.CancelWaitRequest{
			AgentId: "keeper", WaitId: made.GetWait().GetWaitId(),
		}))(t)

		list := must.Value(tasks.ListTasks(ctx, &taskv1.ListTasksRequest{
			AgentId: "keeper", PageSize: 100, IncludeTerminal: true,
		}))(t)
		require.Len(t, list.GetTasks(), 41+round)
		for i, task := range list.GetTasks()[1+round:] {
			got, err := tasks.GetTask(ctx, &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: task.GetTaskId()})
			require.NoError(t, err)
			require.Contains(t, got.GetTask().GetCommand().GetCmd(), fmt.Sprintf("task %d, this is said often", 39-i))
			require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLED, got.GetTask().GetState())
			of := must.Value(tasks.ListTasks(ctx, &taskv1.ListTasksRequest{
				AgentId: "keeper", IncludeTerminal: true, WorkItemId: task.GetWorkItemId(),
			}))(t)
			require.Len(t, of.GetTasks(), 1)
		}
		begun := must.Value(tasks.ExecCommand(ctx, &taskv1.ExecCommandRequest{
			AgentId: "keeper", YieldTime: durationpb.New(0),
			Command: &taskv1.CommandSpec{Cmd: "true", Pool: "nobody"},
		}))(t)
		must.Value(tasks.StopTask(ctx, &taskv1.StopTaskRequest{
			AgentId: "keeper", TaskId: begun.GetTask().GetTaskId(),
		}))(t)

		messages := must.Value(agents.ListMessages(ctx, &agentv1.ListMessagesRequest{
			AgentId: "keeper", PageSize: 500, State: agentv1.MessageState_MESSAGE_STATE_PROCESSED,
		}))(t)
		require.Len(t, messages.GetMessages(), 38)
		for _, m := range messages.GetMessages() {
			got := must.Value(agents.GetMessage(ctx, &agentv1.GetMessageRequest{
				AgentId: "keeper", MessageId: m.GetMessageId(),
			}))(t)
			require.Equal(t, m.GetText(), got.GetMessage().GetText())
		}
		require.NoError(t, conn.Close())
		require.Empty(t, damageOf(t, ctx, srv))
		require.NoError(t, srv.Interrupt(ctx))
	}
	usesSnapshots(t, srv)
}

// TestR11_DataWithSnapshots opens a data directory whose journal has segments and snapshots, as they were first
// written: the pages are read, the history behind them is there, and it goes on.
func TestR11_DataWithSnapshots(t *testing.T) {
	srv, ctx := serverWith(t, "data-format-2.tar.gz")
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
	usesSnapshots(t, srv)
	out, err := exec.CommandContext(ctx, srv.Binary, "verify", "--data-dir", srv.DataDir).CombinedOutput()
	require.NoError(t, err, string(out))
}
