package worker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/task"
	taskoutput "quartet/services/task/output"
	"quartet/services/worker"
)

// rig is a task plane behind a network, which can be started anew over the
// same log and output, and workers.
type rig struct {
	t      testing.TB
	ctx    context.Context //nolint:containedctx // the actor of the test
	log    framelog.Log
	output taskoutput.Store
	root   string
	state  string
	cfg    task.Config

	keys    *rpc.Keyring
	server  *rpc.Server
	mu      sync.Mutex // guards network, which workers ask for while it changes
	network *rpc.Network
	service *task.Service
}

func newRig(t testing.TB) *rig {
	return newRigOver(t, journaltest.NewMemLog(), taskoutput.NewMemory(taskoutput.Kept))
}

func newRigOver(t testing.TB, log framelog.Log, output taskoutput.Store) *rig {
	r := &rig{t: t, log: log, output: output, root: t.TempDir(), state: t.TempDir(), keys: rpc.NewKeyring(nil, true)}
	r.root = must.Value(filepath.EvalSymlinks(r.root))(t)
	r.ctx = rpc.WithActor(context.Background(), rpc.Actor{Namespace: "acme", Principal: "op", Role: rpc.RoleOperator})
	r.up()
	t.Cleanup(func() { r.down() })
	return r
}

func (r *rig) up() {
	r.service = must.Value(task.New(r.cfg, task.Deps{
		Deps: plane.Deps{
			Log:     func(string, int) (framelog.Log, error) { return r.log, nil },
			Sources: func(string) ([]journal.Source, error) { return nil, nil },
		},
		Output: r.output,
	}))(r.t)
	require.NoError(r.t, r.service.Start(context.Background()))
	require.NoError(r.t, r.service.Ready())
	r.server = rpc.NewServer(rpc.Config{Auth: r.keys, Deadlines: task.Deadlines(), Ready: r.service.Ready})
	r.service.Register(r.server)
	network := rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Token: r.keys.MintService("test")})
	require.NoError(r.t, network.Listen("task", r.server))
	r.mu.Lock()
	r.network = network
	r.mu.Unlock()
}

func (r *rig) down() {
	if r.service == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(r.t, r.service.Stop(ctx))
	r.server.Stop()
	require.NoError(r.t, r.network.Close())
	r.service = nil
}

// dial returns the connection of now: the network changes with a restart.
func (r *rig) dial() (grpc.ClientConnInterface, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.network.Dial("task")
}

func (r *rig) client() taskv1.TaskServiceClient {
	return taskv1.NewTaskServiceClient(must.Value(r.dial())(r.t))
}

func (r *rig) worker(change func(*worker.Config)) *worker.Worker {
	cfg := worker.Config{
		ID: "local", StateDir: r.state, Roots: []string{r.root}, Dial: r.dial,
		Heartbeat: 200 * time.Millisecond, Grace: 2 * time.Second, Capacity: 8,
	}
	if change != nil {
		change(&cfg)
	}
	w := must.Value(worker.New(cfg))(r.t)
	require.NoError(r.t, w.Start(context.Background()))
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = w.Stop(ctx) // a test may have left commands without a server
	})
	r.eventually(func() bool { return w.Ready() == nil })
	return w
}

func (r *rig) eventually(ok func() bool) {
	r.t.Helper()
	require.Eventually(r.t, ok, time.Minute, 5*time.Millisecond)
}

func (r *rig) exec(req *taskv1.ExecCommandRequest) *taskv1.ExecCommandResponse {
	r.t.Helper()
	if req.AgentId == "" {
		req.AgentId = "keeper"
	}
	return must.Value(r.client().ExecCommand(r.ctx, req))(r.t)
}

// sh runs a shell line to its end.
func (r *rig) sh(line string) *taskv1.ExecCommandResponse {
	r.t.Helper()
	resp := r.exec(&taskv1.ExecCommandRequest{
		Command:   &taskv1.CommandSpec{Cmd: line},
		YieldTime: durationpb.New(45 * time.Second),
	})
	require.Equal(r.t, taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED, resp.GetOutcome())
	return resp
}

// background starts a command and does not wait.
func (r *rig) background(spec *taskv1.CommandSpec) string {
	r.t.Helper()
	resp := r.exec(&taskv1.ExecCommandRequest{Command: spec, YieldTime: durationpb.New(0)})
	require.Equal(r.t, taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK, resp.GetOutcome())
	return resp.GetTask().GetTaskId()
}

func (r *rig) get(id string) *taskv1.Task {
	r.t.Helper()
	return must.Value(r.client().GetTask(r.ctx, &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: id}))(r.t).GetTask()
}

// awaitOutput waits until a task's output holds text, and gives all of it.
func (r *rig) awaitOutput(id, text string) string {
	r.t.Helper()
	all, offset := "", int64(0)
	for !strings.Contains(all, text) {
		resp := must.Value(r.client().GetTaskOutput(r.ctx, &taskv1.GetTaskOutputRequest{
			AgentId: "keeper", TaskId: id, Offset: offset, Block: true,
		}))(r.t)
		require.Equal(r.t, "success", resp.GetRetrievalStatus())
		all, offset = all+resp.GetText(), resp.GetNextOffset()
		if resp.GetText() == "" {
			require.Contains(r.t, all, text, "the task ended: %v", resp.GetTask())
		}
	}
	return all
}

// await follows a task to its end.
func (r *rig) await(id string) *taskv1.Task {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	stream, err := r.client().FollowTaskOutput(ctx, &taskv1.FollowTaskOutputRequest{AgentId: "keeper", TaskId: id})
	require.NoError(r.t, err)
	for {
		m := must.Value(stream.Recv())(r.t)
		if ended := m.GetEnded(); ended != nil {
			return ended
		}
	}
}

// events reads the journal: the event types of a task, in order.
func (r *rig) events(taskID string) []string {
	r.t.Helper()
	var types []string
	require.NoError(r.t, r.log.Scan(context.Background(), 0, func(_ uint64, f framelog.Frame) error {
		for _, line := range framelog.SplitLines(f.Body) {
			raw, err := journal.ParseLine(line)
			if err != nil {
				return err
			}
			if raw.TaskID == taskID {
				types = append(types, raw.Type)
			}
		}
		return nil
	}))
	return types
}

// commands counts the processes with a command line.
func commands(t testing.TB, line string) int {
	return processes(t, "cmdline", func(raw string) bool {
		return strings.TrimSuffix(strings.ReplaceAll(raw, "\x00", " "), " ") == line
	})
}

// alive counts the processes whose environment holds a marker.
func alive(t testing.TB, marker string) int {
	return processes(t, "environ", func(raw string) bool { return strings.Contains(raw, marker) })
}

// processes counts the processes of which a file in /proc matches.
func processes(t testing.TB, file string, matches func(string) bool) int {
	t.Helper()
	entries := must.Value(os.ReadDir("/proc"))(t)
	n := 0
	for _, e := range entries {
		if raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), file)); err == nil && matches(string(raw)) {
			n++
		}
	}
	return n
}
