package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/task"
	taskoutput "quartet/services/task/output"
	"quartet/tests/dev"
)

// floor is a task plane alone, on TCP, which can be started anew.
type floor struct {
	t       *testing.T
	log     framelog.Log
	output  taskoutput.Store
	addr    string
	service *task.Service
	server  *rpc.Server
	*client.Client
}

func newFloor(t *testing.T) *floor {
	f := &floor{t: t, log: journaltest.NewMemLog(), output: taskoutput.NewMemory(taskoutput.Kept), addr: "127.0.0.1:0"}
	f.up()
	t.Cleanup(f.down)
	f.Client = must.Value(client.Dial(f.addr))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

func (f *floor) up() {
	f.service = must.Value(task.New(task.Config{}, task.Deps{
		Deps: plane.Deps{
			Log:     func(string, int) (framelog.Log, error) { return f.log, nil },
			Sources: func(string) ([]journal.Source, error) { return nil, nil },
		},
		Output: f.output,
	}))(f.t)
	require.NoError(f.t, f.service.Start(context.Background()))
	f.server = rpc.NewServer(rpc.Config{
		Auth: rpc.NewKeyring(nil, true), Deadlines: task.Deadlines(), Ready: f.service.Ready,
	})
	f.service.Register(f.server)
	lis := listen(f.t, f.addr)
	f.addr = lis.Addr().String()
	go func() { _ = f.server.Serve(lis) }()
}

func (f *floor) down() {
	if f.service == nil {
		return
	}
	require.NoError(f.t, f.service.Stop(context.Background()))
	f.server.Stop()
	f.service = nil
}

// work runs a worker until the test ends, or stop is called.
func (f *floor) work(handle client.CommandHandler) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- f.RunWorker(ctx, client.WorkerOptions{ID: "mine", Heartbeat: 100 * time.Millisecond}, handle)
	}()
	var err error
	stopped := false
	stop = func() error {
		cancel()
		if !stopped {
			stopped = true
			err = <-done
		}
		return err
	}
	f.t.Cleanup(func() { _ = stop() })
	return stop
}

func (f *floor) exec(ctx context.Context, spec *taskv1.CommandSpec, yield time.Duration) *taskv1.ExecCommandResponse {
	return must.Value(client.Again(ctx, func(ctx context.Context) (*taskv1.ExecCommandResponse, error) {
		return f.Tasks.ExecCommand(ctx, &taskv1.ExecCommandRequest{
			AgentId: "a", RequestId: spec.GetCmd(), Command: spec, YieldTime: durationpb.New(yield),
		})
	}))(f.t)
}

func (f *floor) ended(ctx context.Context, taskID string) *taskv1.Task {
	for offset := int64(0); ; {
		r := must.Value(client.Again(ctx, func(ctx context.Context) (*taskv1.GetTaskOutputResponse, error) {
			return f.Tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{
				AgentId: "a", TaskId: taskID, Offset: offset, Block: true,
			})
		}))(f.t)
		if r.GetTask().GetTerminal() {
			return r.GetTask()
		}
		offset = r.GetNextOffset()
	}
}

// SPEC T4: a worker in Go is a handler; its output and its exit code arrive.
func TestT4_AWorkerIsAHandler(t *testing.T) {
	f := newFloor(t)
	f.work(func(_ context.Context, c *client.Command) error {
		fmt.Fprintf(c.Stdout(), "did %s\n", c.Task.GetCommand().GetCmd())
		switch c.Task.GetCommand().GetCmd() {
		case "three":
			return &client.ExitError{Code: 3}
		case "broken":
			return errors.New("no tool for that")
		case "much":
			// 1 MiB, twice the window
			return must.Err(io.WriteString(c.Stdout(), strings.Repeat("0123456789abcde\n", 256<<10/4)))
		}
		return nil
	})
	ctx := dev.Within(t)
	r := f.exec(ctx, &taskv1.CommandSpec{Cmd: "one"}, 20*time.Second)
	require.Equal(t, taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED, r.GetOutcome())
	require.Equal(t, "did one\n", r.GetOutput())
	require.EqualValues(t, 0, r.GetTask().GetExitCode())
	require.Equal(t, "mine", r.GetTask().GetWorkerId())

	r = f.exec(ctx, &taskv1.CommandSpec{Cmd: "three"}, 20*time.Second)
	require.EqualValues(t, 3, r.GetTask().GetExitCode())
	require.Equal(t, taskv1.TaskState_TASK_STATE_FAILED, r.GetTask().GetState())
	r = f.exec(ctx, &taskv1.CommandSpec{Cmd: "broken"}, 20*time.Second)
	require.Equal(t, "no tool for that", r.GetTask().GetEndMessage())
	r = f.exec(ctx, &taskv1.CommandSpec{Cmd: "much"}, 20*time.Second)
	require.EqualValues(t, len("did much\n")+1<<20, r.GetTask().GetOutputBytes())
}

// SPEC T3: input reaches the handler, and a stop ends its context.
func TestT3_InputAndStop(t *testing.T) {
	f := newFloor(t)
	f.work(func(ctx context.Context, c *client.Command) error {
		if c.Task.GetCommand().GetAcceptsInput() {
			lines := bufio.NewScanner(c.Stdin())
			for lines.Scan() {
				fmt.Fprintf(c.Stdout(), "acked %s\n", lines.Text())
			}
			return lines.Err()
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	ctx := dev.Within(t)
	taskID := f.exec(ctx, &taskv1.CommandSpec{Cmd: "listen", AcceptsInput: true}, 0).GetHandle().GetTaskId()
	require.Eventually(t, func() bool {
		r, err := f.Tasks.SendTaskInput(ctx, &taskv1.SendTaskInputRequest{
			AgentId: "a", TaskId: taskID, RequestId: "in", Text: "hello\n", EndOfInput: true,
		})
		return err == nil && r.GetAcceptedInput()
	}, time.Minute, 5*time.Millisecond)
	require.Equal(t, taskv1.TaskState_TASK_STATE_COMPLETED, f.ended(ctx, taskID).GetState())
	out := must.Value(f.Tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{AgentId: "a", TaskId: taskID}))(t)
	require.Equal(t, "acked hello\n", out.GetText())

	taskID = f.exec(ctx, &taskv1.CommandSpec{Cmd: "forever"}, 0).GetHandle().GetTaskId()
	must.Value(f.Tasks.StopTask(ctx, &taskv1.StopTaskRequest{AgentId: "a", TaskId: taskID}))(t)
	require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLED, f.ended(ctx, taskID).GetState())

	taskID = f.exec(ctx, &taskv1.CommandSpec{Cmd: "slow", Timeout: durationpb.New(10 * time.Millisecond)}, 0).
		GetHandle().GetTaskId()
	require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_TIMEOUT, f.ended(ctx, taskID).GetEndReason())
}

// SPEC T4, T5: a handler goes on through a restart of the task plane, and what
// it did meanwhile arrives once; a worker that ends says that it was
// interrupted.
func TestT4_AWorkerOutlivesARestart(t *testing.T) {
	f := newFloor(t)
	goOn := make(chan struct{})
	stop := f.work(func(ctx context.Context, c *client.Command) error {
		fmt.Fprint(c.Stdout(), "before ")
		select {
		case <-goOn:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		fmt.Fprint(c.Stdout(), "after\n")
		return nil
	})
	ctx := dev.Within(t)
	taskID := f.exec(ctx, &taskv1.CommandSpec{Cmd: "long"}, 0).GetHandle().GetTaskId()
	must.Value(f.Tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{AgentId: "a", TaskId: taskID, Block: true}))(t)
	f.down()
	close(goOn)
	f.up()
	require.Equal(t, taskv1.TaskState_TASK_STATE_COMPLETED, f.ended(ctx, taskID).GetState())
	out := must.Value(f.Tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{AgentId: "a", TaskId: taskID}))(t)
	require.Equal(t, "before after\n", out.GetText())

	goOn = make(chan struct{})
	taskID = f.exec(ctx, &taskv1.CommandSpec{Cmd: "cut short"}, 0).GetHandle().GetTaskId()
	must.Value(f.Tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{AgentId: "a", TaskId: taskID, Block: true}))(t)
	require.NoError(t, stop())
	require.Equal(t, taskv1.TaskState_TASK_STATE_INTERRUPTED, f.ended(ctx, taskID).GetState())
}

// SPEC X12: of two processes with one name the older one must end.
func TestX12_ANewerWorkerTakesOver(t *testing.T) {
	f := newFloor(t)
	started := make(chan struct{}, 1)
	run := func(ctx context.Context, c *client.Command) error {
		started <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	first := make(chan error, 1)
	go func() { first <- f.RunWorker(context.Background(), client.WorkerOptions{ID: "mine"}, run) }()
	taskID := f.exec(dev.Within(t), &taskv1.CommandSpec{Cmd: "mine"}, 0).GetHandle().GetTaskId()
	<-started
	other := must.Value(client.Dial(f.addr, client.WithGRPC(grpc.WithUserAgent("second"))))(t)
	defer other.Close()
	ctx, cancel := context.WithCancel(dev.Within(t))
	second := make(chan error, 1)
	go func() { second <- other.RunWorker(ctx, client.WorkerOptions{ID: "mine"}, run) }()
	require.ErrorIs(t, <-first, fault.AlreadyExists)
	require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_WORKER_LOST, f.ended(dev.Within(t), taskID).GetEndReason())
	cancel()
	require.NoError(t, <-second)
}
