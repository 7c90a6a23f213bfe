package tests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// TestR11_SnapshotsOfFormat2 opens a data directory whose snapshots have format 2, in which ended tasks, waits and
// messages were not packed: they are the same afterwards, as is one more of each, and a snapshot of the newest format
// has them as well.
func TestR11_SnapshotsOfFormat2(t *testing.T) {
	srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), "", "--snapshot-mib", "1",
		"--embedded-worker", "off"))(t)
	out, err := exec.CommandContext(t.Context(), "tar", "-C", srv.DataDir, "-xzf",
		filepath.Join("testdata", "data-snapshot-2.tar.gz")).CombinedOutput()
	require.NoError(t, err, string(out))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	t.Cleanup(func() { _ = srv.Kill() })
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
		made, err := waiting.CreateWait(ctx, &waitingv1.CreateWaitRequest{AgentId: "keeper", Condition: "another"})
		require.NoError(t, err)
		must.Value(waiting.CancelWait(ctx, &waitingv1.CancelWaitRequest{AgentId: "keeper", WaitId: made.GetWait().
			GetWaitId()}))(t)

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
		_, err = tasks.StopTask(ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: begun.GetTask().GetTaskId()})
		require.NoError(t, err)

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
	log := must.Value(os.ReadFile(srv.Log))(t)
	require.NotContains(t, string(log), "a snapshot cannot be used")
	require.NotContains(t, string(log), "the newest snapshot is missing")
}
