package tests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/tests/proc"
)

var flood = flag.Int("flood", 1, "how many times larger the flood test is: 1 is 2 s of yes, 100 MB and 300 tasks; 10 "+
	"and more as SPEC T6 has it, at 34 with 10 000 tasks")

// workshop is a real server whose own worker takes nothing, and real workers.
type workshop struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // of the test
	bin  string
	srv  *proc.Quartet
	root string

	tasks  taskv1.TaskServiceClient
	agents agentv1.AgentServiceClient
	events eventv1.EventServiceClient
}

func newWorkshop(t *testing.T, settings ...string) *workshop {
	bin := binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	srv := startServer(t, ctx, filepath.Join(t.TempDir(), "data"),
		append([]string{"--worker-pools", "nobody"}, settings...)...)
	conn := dial(t, srv.GRPC)
	s := &workshop{
		t: t, ctx: ctx, bin: bin, srv: srv, root: t.TempDir(), tasks: taskv1.NewTaskServiceClient(conn),
		agents: agentv1.NewAgentServiceClient(conn), events: eventv1.NewEventServiceClient(conn),
	}
	must.Value(s.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	return s
}

// worker starts a worker process; it is ready when a command of its label ran.
func (s *workshop) worker(id string, more ...string) *proc.Process {
	w := &proc.Process{
		Binary: s.bin, Log: filepath.Join(s.t.TempDir(), "worker.log"),
		Args: append([]string{
			"worker", "--address", s.srv.GRPC, "--root", s.root, "--state-dir",
			filepath.Join(s.root, ".state"), "--id", id, "--label", "id=" + id,
		}, more...),
		Ready: func(ctx context.Context) bool { return s.ran(ctx, id) },
	}
	require.NoError(s.t, w.Start(s.ctx))
	s.t.Cleanup(func() { _ = w.Kill() })
	return w
}

func (s *workshop) ran(ctx context.Context, id string) bool {
	r, err := s.tasks.ExecCommand(ctx, &taskv1.ExecCommandRequest{
		AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: "true", WorkerLabels: map[string]string{"id": id}},
		YieldTime: durationpb.New(20 * time.Second),
	})
	return err == nil && r.GetTask().GetState() == taskv1.TaskState_TASK_STATE_COMPLETED
}

func (s *workshop) exec(yield time.Duration, spec *taskv1.CommandSpec) *taskv1.Task {
	s.t.Helper()
	return must.Value(s.tasks.ExecCommand(s.ctx, &taskv1.ExecCommandRequest{
		AgentId: "keeper", Command: spec, YieldTime: durationpb.New(yield),
	}))(s.t).GetTask()
}

func (s *workshop) get(id string) *taskv1.Task {
	s.t.Helper()
	return must.Value(s.tasks.GetTask(s.ctx, &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: id}))(s.t).GetTask()
}

func (s *workshop) eventually(ok func() bool, format string, args ...any) {
	s.t.Helper()
	require.Eventually(s.t, ok, 3*time.Minute, 20*time.Millisecond, append([]any{format}, args...)...)
}

// running counts the processes with an argument that no other has.
func running(t *testing.T, argument string) int {
	t.Helper()
	entries := must.Value(os.ReadDir("/proc"))(t)
	n := 0
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.HasSuffix(string(raw), "sleep\x00"+argument+"\x00") {
			n++
		}
	}
	return n
}

// TestT4_T6_ALostWorker kills worker processes that run commands which got away
// from their group, session and environment: nothing of them is left, each command
// ends once and in time, or is run again if that was asked for, elsewhere.
func TestT4_T6_ALostWorker(t *testing.T) {
	t.Parallel()
	s := newWorkshop(t, "--command-lease", "15s")
	a := s.worker("a", "--label", "kind=x")
	mark := strconv.Itoa(os.Getpid()) + ".25"
	line := "setsid env -i sleep " + mark + " & (setsid sleep " + mark + " &); sleep " + mark + " & echo on $PWD; wait"
	x := map[string]string{"kind": "x"}
	once := s.exec(0, &taskv1.CommandSpec{Cmd: line, WorkerLabels: x})
	again := s.exec(0, &taskv1.CommandSpec{
		Cmd: "[ -e done ]; first=$?; touch done; echo run; [ $first = 0 ] || exec sleep " + mark, WorkerLabels: x,
		RestartPolicy: taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS,
	})
	s.eventually(func() bool { return running(t, mark) == 4 }, "processes")
	require.NoError(t, a.Kill())
	s.eventually(func() bool { return running(t, mark) == 0 }, "a killed worker leaves nothing, with nobody to start "+
		"it again")
	s.worker("b", "--label", "kind=x")
	// The lease lapses in its term and a second; nobody hears of the worker again.
	s.eventually(func() bool { return s.get(once.GetTaskId()).GetTerminal() && s.get(again.GetTaskId()).GetTerminal() },
		"ends")
	got := s.get(once.GetTaskId())
	require.Equal(t, taskv1.TaskState_TASK_STATE_INTERRUPTED, got.GetState())
	require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_WORKER_LOST, got.GetEndReason())
	require.Less(t, got.GetEndedAt().AsTime().Sub(got.GetStartedAt().AsTime()), time.Minute)
	got = s.get(again.GetTaskId())
	require.Equal(t, taskv1.TaskState_TASK_STATE_COMPLETED, got.GetState())
	require.Equal(t, "b", got.GetWorkerId())
	require.EqualValues(t, 1, got.GetRestarts())
	require.Equal(t, []string{"task_interrupted"}, s.ends(once.GetTaskId()))
	require.Equal(t, []string{"task_completed"}, s.ends(again.GetTaskId()))
	// One message each for the agent (SPEC T5).
	s.eventually(func() bool { return s.results(once.GetTaskId()) == 1 && s.results(again.GetTaskId()) == 1 },
		"messages")
}

// ends returns the terminal events of a task.
func (s *workshop) ends(taskID string) (types []string) {
	stream := must.Value(s.events.WatchEvents(s.ctx, &eventv1.WatchEventsRequest{
		FromStart: true, StopAtEnd: true, Planes: []string{"task"},
		EventTypes: []string{"task_completed", "task_failed", "task_cancelled", "task_interrupted"},
	}))(s.t)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return types
		}
		require.NoError(s.t, err)
		if m.GetEvent().GetTaskId() == taskID {
			types = append(types, m.GetEvent().GetEventType())
		}
	}
}

// results counts the messages about a task in its agent's lane.
func (s *workshop) results(taskID string) (n int) {
	r := must.Value(s.agents.ListMessages(s.ctx, &agentv1.ListMessagesRequest{AgentId: "keeper"}))(s.t)
	for _, m := range r.GetMessages() {
		if m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT && strings.Contains(m.String(), taskID) {
			n++
		}
	}
	return n
}

// TestT6_Floods runs what writes without end, much, no text and no lines, what
// leaves a pipe open, and many at once, with real processes: memory and disk are
// bounded, and nobody waits for a child that stays behind.
func TestT6_Floods(t *testing.T) {
	proc.Long(t)
	s := newWorkshop(t)
	w := s.worker("w", "--capacity", "16")
	size := func(mb int) string { return strconv.Itoa(mb * 1_000_000) }
	times := max(*flood, 1)
	long := 45 * time.Second
	for name, c := range map[string]struct {
		line  string
		limit time.Duration
		state taskv1.TaskState
		bytes int64
	}{
		"yes": {"yes", time.Duration(min(2*times, 30)) * time.Second, taskv1.TaskState_TASK_STATE_FAILED, 0},
		"no newline": {
			"head -c " + size(min(100*times, 1000)) + " /dev/zero | tr '\\0' x", 0,
			taskv1.TaskState_TASK_STATE_COMPLETED, int64(min(100*times, 1000)) * 1_000_000,
		},
		"binary": {
			"head -c " + size(50*min(times, 5)) + " /dev/urandom", 0, taskv1.TaskState_TASK_STATE_COMPLETED,
			int64(50*min(times, 5)) * 1_000_000,
		},
		"held pipe": {
			"sleep 3000 & setsid env -i sleep 3000 & echo done", 0, taskv1.TaskState_TASK_STATE_COMPLETED,
			5,
		},
	} {
		spec := &taskv1.CommandSpec{Cmd: c.line}
		if c.limit > 0 {
			spec.Timeout = durationpb.New(c.limit)
		}
		got := s.exec(long, spec)
		require.Equal(t, c.state, got.GetState(), name)
		if c.bytes > 0 {
			require.Equal(t, c.bytes, got.GetOutputBytes(), name)
		}
	}
	n := 300 * times
	var asking sync.WaitGroup
	for lane := range 8 {
		asking.Go(func() {
			for i := lane; i < n; i += 8 {
				_, err := s.tasks.ExecCommand(s.ctx, &taskv1.ExecCommandRequest{
					AgentId: "keeper", RequestId: fmt.Sprint("many-", i), Command: &taskv1.CommandSpec{
						Cmd: fmt.Sprint("echo ", i),
					}, YieldTime: durationpb.New(0),
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	asking.Wait()
	require.Eventually(t, func() bool {
		r, err := s.tasks.ListTasks(s.ctx, &taskv1.ListTasksRequest{AgentId: "keeper", PageSize: 1})
		return err == nil && r.GetTotalActive() == 0
	}, 5*time.Minute, 50*time.Millisecond, "all of them end")

	// What is bounded, with room for a machine that is busy otherwise: some 1.3 GB
	// of output left 86 MB on disk and took 700 MB at the peak, which is as much as
	// collections of memory are put off by.
	disk := int64(0)
	require.NoError(t, filepath.WalkDir(s.srv.DataDir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, gone := d.Info(); gone == nil {
				disk += info.Size()
			}
		}
		return nil // files come and go
	}))
	server, worker := peak(t, s.srv.PID()), peak(t, w.PID())
	t.Logf("peaks: server %d MiB, worker %d MiB; on disk %d MiB", server>>20, worker>>20, disk>>20)
	require.Less(t, disk, int64(200<<20+10_000*n))
	require.Less(t, server, int64(1800<<20))
	require.Less(t, worker, int64(300<<20))
}

// peak returns the most memory that a process ever had.
func peak(t *testing.T, pid int) int64 {
	raw := must.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	_, rest, ok := strings.Cut(string(raw), "VmHWM:")
	require.True(t, ok)
	return must.Value(strconv.ParseInt(strings.Fields(rest)[0], 10, 64))(t) << 10
}
