package worker_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/confine"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/proctree"
	"quartet/pkg/rpc"
	"quartet/services/task"
	taskoutput "quartet/services/task/output"
	"quartet/services/worker"
)

// envVictim makes this test binary a worker that a test can kill.
const envVictim = "QUARTET_TEST_VICTIM"

// helperArgument makes this test binary the helper of a sandbox.
const helperArgument = "be-a-helper"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == helperArgument {
		if err := confine.Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if spec := os.Getenv(envVictim); spec != "" {
		os.Exit(victim(strings.Split(spec, ",")))
	}
	goleak.VerifyTestMain(m)
}

// victim runs a worker until it is killed.
func victim(spec []string) int {
	conn, err := grpc.NewClient(spec[0], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(rpc.FaultsStream))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w, err := worker.New(worker.Config{
		ID: spec[1], Roots: []string{spec[2]}, StateDir: spec[3],
		Dial: func() (grpc.ClientConnInterface, error) { return conn, nil },
	})
	if err == nil {
		err = w.Start(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

func (r *rig) stop(id string) *taskv1.Task {
	return must.Value(r.client().StopTask(r.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id}))(r.t).GetTask()
}

func TestT5_EndSurvivesARestartOfTheServer(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	gate := filepath.Join(r.root, "gate")
	line := fmt.Sprintf("echo one; while ! test -e %s; do sleep 0.02; done; echo two; touch %s.done", gate, gate)
	id := r.background(&taskv1.CommandSpec{Cmd: line})
	r.awaitOutput(id, "one")
	r.down()
	// It ends while nobody listens.
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	r.eventually(func() bool { return alive(t, "QUARTET_TASK_ID="+id) == 0 })
	require.FileExists(t, gate+".done")
	r.up()
	end := r.await(id)
	require.Equal(t, completed, end.GetState())
	require.Equal(t, "one\ntwo\n", r.awaitOutput(id, "two"))
	require.Equal(t, []string{"task_queued", "task_started", "task_completed"}, r.events(id))
	require.EqualValues(t, 1, end.GetLeaseGeneration())
}

func TestT4_CommandsRunThroughRestarts(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	id := r.background(&taskv1.CommandSpec{Cmd: "i=0; while read -r line; do echo \"$line\"; done", AcceptsInput: true})
	want := ""
	for i := range 4 {
		r.eventually(func() bool {
			return must.Value(r.client().SendTaskInput(r.ctx, &taskv1.SendTaskInputRequest{
				AgentId: "keeper", TaskId: id, Text: fmt.Sprintf("line %d\n", i), RequestId: fmt.Sprint(i),
				EndOfInput: i == 3,
			}))(t).GetAcceptedInput() // refused until the worker is back
		})
		want += fmt.Sprintf("line %d\n", i)
		if i < 3 {
			require.Equal(t, want, r.awaitOutput(id, fmt.Sprintf("line %d\n", i)))
			r.down()
			r.up()
		}
	}
	require.Equal(t, completed, r.await(id).GetState())
	require.Equal(t, want, r.awaitOutput(id, "line 3\n"))
}

func TestT4_KilledWorkerLeavesNothing(t *testing.T) {
	r := newRig(t)
	lis := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(lis) }()
	t.Cleanup(func() {
		r.server.Stop()
		<-served
	})
	const id = "victim-worker"
	cmd := exec.Command(must.Value(os.Executable())(t))
	cmd.Env = append(os.Environ(), envVictim+"="+lis.Addr().String()+","+id+","+r.root+","+r.state)
	cmd.Stderr = os.Stderr
	require.NoError(t, proctree.StartUnmarked(cmd))
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	// keyless callers act in the namespace default
	r.ctx = rpc.WithActor(context.Background(), rpc.Actor{
		Namespace: rpc.DefaultNamespace, Principal: "op", Role: rpc.RoleOperator,
	})
	task := r.background(&taskv1.CommandSpec{Cmd: "sleep 300 & setsid sleep 300 & echo up; wait"})
	r.awaitOutput(task, "up")
	require.NotZero(t, alive(t, "QUARTET_TASK_WORKER="+id+"@"+r.state))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed

	// The next life ends what was left, before it connects; its hello says the rest.
	r.worker(func(c *worker.Config) {
		c.ID = id
		c.Dial = func() (grpc.ClientConnInterface, error) { return r.keylessConn(lis.Addr().String()) }
	})
	require.Zero(t, alive(t, "QUARTET_TASK_WORKER="+id+"@"+r.state))
	end := r.await(task)
	require.Equal(t, interrupted, end.GetState())
	require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_WORKER_LOST, end.GetEndReason())
	require.Equal(t, []string{"task_queued", "task_started", "task_interrupted"}, r.events(task))
	require.Equal(t, completed, r.sh("true").GetTask().GetState(), "and its place is free")
}

func (r *rig) keylessConn(addr string) (grpc.ClientConnInterface, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(rpc.FaultsStream))
	if err == nil {
		r.t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

func TestT4_StoppedWorkerInterrupts(t *testing.T) {
	r := newRig(t)
	w := r.worker(nil)
	a := r.background(&taskv1.CommandSpec{Cmd: "sleep 300 & echo up; wait"})
	b := r.background(&taskv1.CommandSpec{Cmd: "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done"})
	r.awaitOutput(a, "up")
	r.awaitOutput(b, "up")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, w.Stop(ctx))
	require.NoError(t, w.Stop(ctx))
	for _, id := range []string{a, b} {
		got := r.get(id)
		require.Equal(t, interrupted, got.GetState())
		require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_WORKER_STOPPED, got.GetEndReason())
		require.Zero(t, alive(t, "QUARTET_TASK_ID="+id))
	}
	r.awaitOutput(b, "bye")
}

func TestX7_ExitAndStopRace(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	seen := map[taskv1.TaskState]int{}
	for i := range 40 {
		// The output arrives a batch after it was written, or with the end.
		id := r.background(&taskv1.CommandSpec{Cmd: fmt.Sprintf("echo up; sleep 0.0%d", 3+i%4)})
		r.awaitOutput(id, "up")
		_, err := r.client().StopTask(r.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id})
		if err != nil {
			require.ErrorContains(t, err, "TASK_NOT_RUNNING")
		}
		end := r.await(id)
		seen[end.GetState()]++
		last, terminals := "", 0
		for _, kind := range r.events(id) {
			last = kind
			if kind == "task_completed" || kind == "task_failed" || kind == "task_cancelled" ||
				kind == "task_interrupted" {
				terminals++
			}
		}
		require.Equal(t, 1, terminals)
		require.Contains(t, []taskv1.TaskState{completed, cancelled}, end.GetState())
		require.Equal(t, "task_"+strings.ToLower(strings.TrimPrefix(end.GetState().String(), "TASK_STATE_")), last)
	}
	t.Log(seen)
}

func TestT1_Outcomes(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	gate := filepath.Join(r.root, "gate")
	spec := &taskv1.CommandSpec{Cmd: "echo up; while ! test -e " + gate + "; do sleep 0.02; done; echo end"}
	first := &taskv1.ExecCommandRequest{
		AgentId: "keeper", Command: spec, RequestId: "r1", YieldTime: durationpb.New(0), WorkItemId: "wi_a",
		DuplicatePolicy: taskv1.DuplicatePolicy_DUPLICATE_POLICY_REUSE_RUNNING,
	}
	promoted := r.exec(first)
	require.Equal(t, taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK, promoted.GetOutcome())
	id := promoted.GetHandle().GetTaskId()
	r.awaitOutput(id, "up")

	// The same request again: the same task, as it stands now.
	again := r.exec(first)
	require.Equal(t, taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK, again.GetOutcome())
	require.Equal(t, id, again.GetTask().GetTaskId())
	require.Equal(t, running, again.GetHandle().GetStatus())
	require.Equal(t, "up\n", again.GetHandle().GetInitialOutput())

	// The same command in another request.
	same := r.exec(&taskv1.ExecCommandRequest{
		Command: spec, DuplicatePolicy: taskv1.DuplicatePolicy_DUPLICATE_POLICY_REUSE_RUNNING,
	})
	require.Equal(t, taskv1.ExecOutcome_EXEC_OUTCOME_ALREADY_RUNNING, same.GetOutcome())
	require.Equal(t, id, same.GetHandle().GetTaskId())
	other := r.background(spec)
	require.NotEqual(t, id, other, "start_new is the default")

	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.Equal(t, completed, r.await(id).GetState())
	late := r.exec(first)
	require.Equal(t, taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED, late.GetOutcome())
	require.Equal(t, id, late.GetTask().GetTaskId())
	require.Equal(t, "up\nend\n", late.GetOutput())
	require.Equal(t, "wi_a", late.GetTask().GetWorkItemId())
	r.await(other)

	// The end of a long output, whole characters only.
	long := r.exec(&taskv1.ExecCommandRequest{
		Command: &taskv1.CommandSpec{Cmd: "for i in $(seq 1 100); do printf 中; done"}, MaxOutput: 10,
	})
	require.Equal(t, "中中中", long.GetOutput())
	require.True(t, long.GetOutputTruncated())
}

// The same over the real broker: journal, output and all.
func TestOverNATS(t *testing.T) {
	nc := natsdtest.Connect(t)
	must.Value(jetlog.Ensure(t.Context(), nc, task.Plane, 1, 1))(t)
	log := must.Value(jetlog.New(nc, task.Plane, 0))(t)
	r := newRigOver(t, log, must.Value(taskoutput.OpenStream(t.Context(), nc, 1, 0, nil))(t))
	r.worker(nil)

	resp := r.sh("echo hello; echo err >&2; exit 2")
	require.Equal(t, failed, resp.GetTask().GetState())
	require.Contains(t, resp.GetOutput(), "hello\n")
	id := r.background(&taskv1.CommandSpec{Cmd: "echo up; read -r x; echo $x; seq 1 20000", AcceptsInput: true})
	r.awaitOutput(id, "up")
	r.down()
	r.up()
	r.eventually(func() bool {
		return must.Value(r.client().SendTaskInput(r.ctx, &taskv1.SendTaskInputRequest{
			AgentId: "keeper", TaskId: id, Text: "hi\n", RequestId: "i",
		}))(t).GetAcceptedInput()
	})
	require.Equal(t, completed, r.await(id).GetState())
	all := r.awaitOutput(id, "\n20000\n")
	require.True(t, strings.HasPrefix(all, "up\nhi\n1\n2\n3\n"), all[:min(20, len(all))])
	require.Len(t, all, len("up\nhi\n")+9*2+90*3+900*4+9000*5+10001*6)

	flood := r.background(&taskv1.CommandSpec{Cmd: "yes"})
	r.eventually(func() bool { return r.get(flood).GetOutputBytes() > 1<<20 })
	r.stop(flood)
	require.Equal(t, cancelled, r.await(flood).GetState())
}

// Many commands, each writing as it goes, while the server comes and goes:
// every one ends once, with every byte it wrote.
func TestT5_NothingIsLostOrDoneTwiceOverRestarts(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	const n = 24
	var ids []string
	for i := range n {
		// The mark file counts runs: a command that ran twice has two lines.
		ids = append(ids, r.background(&taskv1.CommandSpec{Cmd: fmt.Sprintf(
			"echo run >> %s/mark%d; for i in $(seq 1 30); do echo %d-$i; sleep 0.01; done; exit %d", r.root, i, i,
			i%2)}))
		if i%8 == 7 {
			r.down()
			r.up()
		}
	}
	for i, id := range ids {
		if i%7 == 0 {
			r.down()
			r.up()
		}
		end := r.await(id)
		require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_EXITED, end.GetEndReason(), end)
		require.EqualValues(t, i%2, end.GetExitCode())
		var want strings.Builder
		for k := 1; k <= 30; k++ {
			fmt.Fprintf(&want, "%d-%d\n", i, k)
		}
		require.Equal(t, want.String(), r.awaitOutput(id, fmt.Sprintf("%d-30\n", i)))
		require.EqualValues(t, want.Len(), end.GetOutputBytes())
		require.Len(t, r.events(id), 3)
		require.Equal(t, "run\n", string(must.Value(os.ReadFile(fmt.Sprintf("%s/mark%d", r.root, i)))(t)))
	}
}
