package sim

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	taskoutput "quartet/services/task/output"
	"quartet/tests/sim/engine"
)

// executions are what the workers of a run did: what each execution of a command wrote, by task and generation of its
// lease.
type executions struct {
	mu   sync.Mutex
	all  map[string]map[int64]*execution
	once map[string]string // who executed a command that must not be executed again
}

// execution is one execution of a command.
type execution struct {
	base  int64 // where its output begins
	wrote []byte
}

// began notes that a worker executes a command. It returns an error if it must not.
func (e *executions) began(worker string, t *taskv1.Task, base int64) (*execution, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := t.GetTaskId()
	if e.all[id] == nil {
		e.all[id] = map[int64]*execution{}
	}
	switch {
	case e.all[id][t.GetLeaseGeneration()] != nil:
		return nil, fmt.Errorf("command %s is executed twice under lease %d", id, t.GetLeaseGeneration())
	case e.once[id] != "" && t.GetCommand().GetRestartPolicy() != taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS:
		return nil, fmt.Errorf("command %s is executed by %s and was executed by %s", id, worker, e.once[id])
	}
	e.once[id] = worker
	x := &execution{base: base}
	e.all[id][t.GetLeaseGeneration()] = x
	return x, nil
}

func (e *executions) write(x *execution, b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x.wrote = append(x.wrote, b...)
}

// expected returns the output that the executions of a task wrote, up to its end at n.
func (e *executions) expected(taskID string, n int64) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []byte
	for _, gen := range slices.Sorted(maps.Keys(e.all[taskID])) {
		x := e.all[taskID][gen]
		all = append(all[:min(int64(len(all)), x.base)], x.wrote...)
	}
	return all[:min(int64(len(all)), n)]
}

// commandWorker executes commands as far as the task plane sees: it reports the start of each, its output and its end,
// over streams that break, and it loses its commands when its process is started anew.
type commandWorker struct {
	*client
	id     string
	boots  int
	modest bool // it neither leaves nor is started anew
	conn   taskv1.WorkerServiceClient
	did    *executions

	changed chan struct{} // capacity 1: there is something to report

	mu       sync.Mutex
	commands map[string]*command
	newest   map[string]int64 // lease by task
}

// command is a command that a worker executes.
type command struct {
	task    *taskv1.Task
	gen     int64
	ns      string
	x       *execution
	acked   int64 // output up to there is acknowledged
	input   int64
	stopped chan struct{} // closed when it is asked to stop
	killed  chan struct{} // closed when it must end at once
	gone    bool          // nothing of it is reported any more
	ended   *taskv1.CommandEnded
}

func newCommandWorker(w *world, k *known, name string, seed uint64, did *executions) *commandWorker {
	c := newClient(w, k, name, seed)
	return &commandWorker{
		client: c, id: name, conn: taskv1.NewWorkerServiceClient(w.conn(nil, name, "task")), did: did,
		changed: make(chan struct{}, 1),
	}
}

// planned returns random numbers that follow from what a command is, so that they do not depend on the order in which
// goroutines run.
func planned(what ...any) *rand.Rand {
	sum := sha256.Sum256([]byte(fmt.Sprint(what...)))
	return rand.New(rand.NewPCG(binary.BigEndian.Uint64(sum[:8]), 1))
}

// run holds streams until ctx ends, one after the other.
func (w *commandWorker) run(ctx context.Context) {
	ctx = planetest.As(ctx, rpc.RoleWorker)
	for ctx.Err() == nil && w.k.check() == nil {
		if w.boots == 0 || !w.modest && w.rnd.IntN(10) == 0 {
			w.boot()
		}
		patience := time.Duration(5+w.rnd.IntN(90)) * time.Second
		if w.modest {
			patience = time.Hour
		}
		w.session(ctx, patience)
		select {
		case <-time.After(time.Duration(100+w.rnd.IntN(400)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	w.boot() // ends what runs
}

// calm implements worker.
func (w *commandWorker) calm() { w.modest = true }

// boot begins a new process of the worker, which has no commands.
func (w *commandWorker) boot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.commands {
		c.abandon()
	}
	w.boots++
	w.commands, w.newest = map[string]*command{}, map[string]int64{}
}

// abandon ends a command of which nothing is reported any more. The worker's mu must be held.
func (c *command) abandon() {
	if c.gone = true; !closed(c.killed) {
		close(c.killed)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// session holds one stream until it breaks, or the worker leaves it.
func (w *commandWorker) session(ctx context.Context, patience time.Duration) {
	ctx, leave := context.WithTimeout(ctx, patience)
	defer leave()
	stream, err := w.conn.Connect(ctx)
	if err == nil {
		err = stream.Send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Hello{Hello: &taskv1.WorkerHello{
			WorkerId: w.id, BootId: fmt.Sprintf("%s-%d", w.id, w.boots), Capacity: 2, RunningTaskIds: w.holding(),
		}}})
	}
	if err == nil {
		_, err = stream.Header()
	}
	if err != nil {
		w.refused(err)
		return
	}
	w.wake() // of what was not reported in the session before
	received := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			w.receive(m)
		}
	}()
	heartbeat := time.NewTicker(10 * time.Second)
	defer heartbeat.Stop()
	sent := map[*command]*reported{}
	for err == nil {
		// What is ready at the same time is handled in one order, so that a seed has one run.
		beat, over := false, false
		select {
		case <-w.changed:
		case <-heartbeat.C:
			beat = true
		case err = <-received:
			over = true
		case <-ctx.Done():
		}
		if !over && err == nil {
			select {
			case err = <-received:
				over = true
			default:
			}
		}
		if over {
			w.refused(err)
			return
		}
		select {
		case <-heartbeat.C:
			beat = true
		default:
		}
		if err = ctx.Err(); err == nil && beat {
			err = stream.Send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Heartbeat{
				Heartbeat: &taskv1.WorkerHeartbeat{RunningTaskIds: w.holding()},
			}})
		}
		if err == nil {
			err = w.report(stream.Send, sent)
		}
	}
	leave()
	w.refused(<-received)
}

// refused notes a refusal that no worker that keeps to the protocol may get.
func (w *commandWorker) refused(err error) { w.refusedStream("worker "+w.id, err) }

// refusedStream notes why the stream of a worker ended, if that is a refusal.
func (c *client) refusedStream(who string, err error) {
	f := fault.From(err)
	if err == nil || retried(err) || c.w.ctx.Err() != nil || f.Reason() == fault.AlreadyExists {
		return
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || err.Error() == "EOF" {
		return
	}
	c.k.violation("%s: its stream is refused: %w", who, err)
}

// holding returns the tasks that the worker has, in order.
func (w *commandWorker) holding() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.commands))
}

// reported is what a session has sent of a command.
type reported struct {
	ended         bool
	input, offset int64
}

// report sends what was not sent in this session.
func (w *commandWorker) report(send func(*taskv1.ConnectRequest) error, sent map[*command]*reported) error {
	for _, m := range w.due(sent) {
		if err := send(m); err != nil {
			return err
		}
	}
	return nil
}

// due returns the reports that were not sent in a session.
func (w *commandWorker) due(sent map[*command]*reported) (all []*taskv1.ConnectRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(w.commands)) {
		c := w.commands[id]
		if sent[c] == nil {
			sent[c] = &reported{offset: c.acked}
			all = append(all, &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Started{
				Started: &taskv1.CommandStarted{TaskId: id, LeaseGeneration: c.gen},
			}})
		}
		r := sent[c]
		if c.input > r.input {
			r.input = c.input
			all = append(all, &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_InputTaken{
				InputTaken: &taskv1.CommandInputTaken{TaskId: id, LeaseGeneration: c.gen, InputSeq: c.input},
			}})
		}
		if fresh := c.x.wrote[r.offset-c.x.base:]; len(fresh) > 0 {
			all = append(all, &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Output{
				Output: &taskv1.CommandOutput{
					TaskId: id, LeaseGeneration: c.gen, Chunk: &taskv1.OutputChunk{
						Offset: r.offset, Stream: taskv1.OutputStream_OUTPUT_STREAM_STDOUT, Data: bytes.Clone(fresh),
					},
				},
			}})
			r.offset += int64(len(fresh))
		}
		if c.ended != nil && !r.ended {
			r.ended = true
			all = append(all, &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Ended{Ended: c.ended}})
		}
	}
	return all
}

// receive handles one message of the task plane.
func (w *commandWorker) receive(m *taskv1.ConnectResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r := m.GetMessage().(type) {
	case *taskv1.ConnectResponse_Lease:
		w.accept(r.Lease)
	case *taskv1.ConnectResponse_Stop:
		if c := w.commands[r.Stop.GetTaskId()]; c != nil {
			if !closed(c.stopped) {
				close(c.stopped)
			}
			if r.Stop.GetForce() && !closed(c.killed) {
				close(c.killed)
			}
		}
	case *taskv1.ConnectResponse_Input:
		if c := w.commands[r.Input.GetTaskId()]; c != nil && r.Input.GetInputSeq() > c.input {
			c.input = r.Input.GetInputSeq()
			w.wake()
		}
	case *taskv1.ConnectResponse_Ack:
		w.acknowledged(r.Ack)
	}
}

// accept begins a command under a lease that was not seen before.
func (w *commandWorker) accept(l *taskv1.CommandLease) {
	id := l.GetTask().GetTaskId()
	if w.newest[id] >= l.GetLeaseGeneration() {
		return
	}
	w.newest[id] = l.GetLeaseGeneration()
	if c := w.commands[id]; c != nil {
		c.abandon()
	}
	x, err := w.did.began(fmt.Sprintf("%s-%d", w.id, w.boots), l.GetTask(), l.GetOutputOffset())
	if err != nil {
		w.k.violation("%w", err)
		return
	}
	c := &command{
		task: l.GetTask(), gen: l.GetLeaseGeneration(), ns: l.GetNamespace(), x: x, acked: l.GetOutputOffset(),
		stopped: make(chan struct{}), killed: make(chan struct{}),
	}
	w.commands[id] = c
	go w.execute(c)
	w.wake()
}

// execute is the life of a command: it writes some times, and ends, or is ended.
func (w *commandWorker) execute(c *command) {
	plan := planned("command ", c.task.GetTaskId(), c.gen)
	chunks := plan.IntN(5)
	end := &taskv1.CommandEnded{
		TaskId: c.task.GetTaskId(), LeaseGeneration: c.gen,
		Reason: taskv1.TaskEndReason_TASK_END_REASON_EXITED, ExitCode: new(int32),
	}
	for n := range chunks + 1 {
		over := time.NewTimer(time.Duration(plan.Int64N(int64(6 * time.Second))))
		stopped := c.stopped
		select {
		case <-over.C:
		case <-c.killed:
			end.Reason, end.ExitCode = taskv1.TaskEndReason_TASK_END_REASON_STOPPED, nil
		case <-stopped:
			select { // it takes its time
			case <-time.After(time.Duration(plan.Int64N(int64(4 * time.Second)))):
			case <-c.killed:
			}
			end.Reason, end.ExitCode = taskv1.TaskEndReason_TASK_END_REASON_STOPPED, nil
		}
		over.Stop()
		if end.ExitCode == nil {
			break
		}
		if n < chunks {
			w.write(c, []byte(fmt.Sprintf("%s %d line %d of %d\n", c.task.GetTaskId(), c.gen, n, chunks)))
		}
	}
	if end.ExitCode != nil {
		*end.ExitCode = int32(plan.IntN(3) / 2)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	end.OutputBytes = c.x.base + int64(len(c.x.wrote))
	c.ended = end
	w.wake()
}

// write has a command write.
func (w *commandWorker) write(c *command, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !c.gone {
		w.did.write(c.x, b)
		w.wake()
	}
}

// wake has the session look for reports.
func (w *commandWorker) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// acknowledged handles an acknowledgement. What is acknowledged must be stored (SPEC X1).
func (w *commandWorker) acknowledged(a *taskv1.ReportAck) {
	c := w.commands[a.GetTaskId()]
	switch {
	case c == nil, a.GetLeaseGeneration() != 0 && a.GetLeaseGeneration() != c.gen:
	case a.GetStale():
		c.abandon()
		delete(w.commands, a.GetTaskId())
	case a.GetEnded():
		if state := w.w.books.state("task", a.GetTaskId()); state != "over" {
			w.k.violation("the end of command %s is acknowledged, and it is %q", a.GetTaskId(), state)
		}
		c.abandon()
		delete(w.commands, a.GetTaskId())
	default:
		if piece, err := w.w.output.Read(context.Background(), c.ns, a.GetTaskId(), taskoutput.FromEnd(1), 1); err !=
			nil || piece.End < a.GetOutputBytes() {
			w.k.violation("output of command %s is acknowledged up to %d, and is stored up to %d: %w", a.GetTaskId(),
				a.GetOutputBytes(), piece.End, err)
		}
		c.acked = max(c.acked, a.GetOutputBytes())
	}
}

// outputs is the store of output as one process sees it: each call is a crossing.
type outputs struct {
	taskoutput.Store
	seam engine.Store
}

// Append implements output.Store.
func (s *outputs) Append(ctx context.Context, namespace, taskID string, chunk *taskv1.OutputChunk) (end int64,
	err error,
) {
	err = s.seam.Change(ctx, fmt.Sprintf("append %s %d", taskID, chunk.GetOffset()), func() (err error) {
		end, err = s.Store.Append(context.WithoutCancel(ctx), namespace, taskID, chunk)
		return err
	})
	return end, unavailable(err)
}

// unavailable returns the error of the store as that of services/task/output.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fault.New(codes.Unavailable, fault.Storage, "the output cannot be reached").WithCause(err)
}

// Read implements output.Store.
func (s *outputs) Read(ctx context.Context, namespace, taskID string, offset int64, limit int) (taskoutput.Piece,
	error,
) {
	if err := s.seam.Look(ctx, fmt.Sprintf("read %s %d", taskID, offset)); err != nil {
		return taskoutput.Piece{}, unavailable(err)
	}
	return s.Store.Read(ctx, namespace, taskID, offset, limit)
}

// commandCalls makes random calls about commands.
type commandCalls struct {
	*client
	tasks taskv1.TaskServiceClient
	mine  []string
}

func newCommandCalls(w *world, k *known, name string, seed uint64) *commandCalls {
	return &commandCalls{
		client: newClient(w, k, name, seed),
		tasks:  taskv1.NewTaskServiceClient(w.conn(nil, name, "task")),
	}
}

// run makes n calls.
func (c *commandCalls) run(n int) {
	for range n {
		if c.w.ctx.Err() != nil || c.k.check() != nil {
			return
		}
		<-time.After(time.Duration(c.rnd.IntN(2000)) * time.Millisecond)
		c.one()
	}
}

func (c *commandCalls) one() {
	a := c.agent()
	ctx := c.as(a)
	task := c.pick(c.mine)
	switch k := c.rnd.IntN(20); {
	case k < 7 || task == "":
		c.exec(ctx, a)
	case k < 10:
		request := c.request()
		_ = c.until(planetest.As(c.w.ctx, rpc.RoleOperator), "StopTask", func(ctx context.Context) error {
			_, err := c.tasks.StopTask(ctx, &taskv1.StopTaskRequest{
				AgentId: c.owner(task), TaskId: task, RequestId: request,
			})
			return err
		})
	case k < 13:
		request := c.request()
		_ = c.until(planetest.As(c.w.ctx, rpc.RoleOperator), "SendTaskInput", func(ctx context.Context) error {
			_, err := c.tasks.SendTaskInput(ctx, &taskv1.SendTaskInputRequest{
				AgentId: c.owner(task), TaskId: task, RequestId: request, Text: "input\n",
			})
			return err
		})
	case k < 17:
		c.output(task)
	default:
		c.repeat()
	}
}

// owner returns the agent of a task.
func (c *commandCalls) owner(task string) string {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	return c.k.owners[task]
}

// exec starts a command.
func (c *commandCalls) exec(ctx context.Context, a string) {
	req := &taskv1.ExecCommandRequest{
		AgentId: a, YieldTime: durationpb.New(time.Duration(c.rnd.IntN(4)) * time.Second),
		Command: &taskv1.CommandSpec{
			Cmd: "true", Workdir: "/", AcceptsInput: c.rnd.IntN(2) == 0,
			RestartPolicy: taskv1.RestartPolicy(c.rnd.IntN(3)),
		},
	}
	c.k.mu.Lock()
	if item := c.item(a); c.rnd.IntN(2) == 0 {
		req.WorkItemId = item
	}
	c.k.mu.Unlock()
	resp, err := mutate(c.client, ctx, "task", "ExecCommand", func(r *taskv1.ExecCommandResponse) string {
		return r.GetHandle().GetTaskId()
	}, func(ctx context.Context, id string) (*taskv1.ExecCommandResponse, error) {
		one := &taskv1.ExecCommandRequest{
			AgentId: req.GetAgentId(), YieldTime: req.GetYieldTime(),
			Command: req.GetCommand(), WorkItemId: req.GetWorkItemId(), RequestId: id,
		}
		return c.tasks.ExecCommand(ctx, one)
	})
	if err != nil {
		return
	}
	id := resp.GetHandle().GetTaskId()
	c.mine = append(c.mine, id)
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	c.k.owners[id] = a
	c.k.tasks[a] = append(c.k.tasks[a], id)
}

// output reads the output of a task, which must be what its executions wrote, as far as it is stored.
func (c *commandCalls) output(task string) {
	if err := c.checkOutput(task); err != nil && c.w.ctx.Err() == nil {
		c.k.violation("%s: %w", c.name, err)
	}
}

func (c *client) checkOutput(task string) error {
	tasks := taskv1.NewTaskServiceClient(c.w.conn(nil, c.name, "task"))
	c.k.mu.Lock()
	agent := c.k.owners[task]
	c.k.mu.Unlock()
	var got *taskv1.GetTaskOutputResponse
	err := c.until(planetest.As(c.w.ctx, rpc.RoleOperator), "GetTaskOutput", func(ctx context.Context) (err error) {
		got, err = tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{
			AgentId: agent, TaskId: task, MaxBytes: 1 << 19,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the output of task %s is refused: %w", task, err)
	}
	if want := c.w.did.expected(task, int64(len(got.GetText()))); string(want) != got.GetText() {
		return fmt.Errorf("the output of task %s is %q, and its executions wrote %q", task, got.GetText(), want)
	}
	return nil
}

// commandsAtRest checks that no command is left that nobody executes, and that the output of each is what was
// acknowledged.
func (c *client) commandsAtRest() error {
	ctx := planetest.As(c.w.ctx, rpc.RoleOperator)
	tasks := taskv1.NewTaskServiceClient(c.w.conn(nil, c.name, "task"))
	for _, a := range agents {
		all, err := tasks.ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: a, IncludeTerminal: true, PageSize: 500})
		if err != nil {
			return err
		}
		for _, t := range all.GetTasks() {
			if t.GetEndedAt() == nil {
				return fmt.Errorf("task %s of %s is %s when nothing happens any more", t.GetTaskId(), a, t.GetState())
			}
			c.k.mu.Lock()
			c.k.owners[t.GetTaskId()] = cmp.Or(c.k.owners[t.GetTaskId()], a)
			c.k.mu.Unlock()
			if err := c.checkOutput(t.GetTaskId()); err != nil {
				return err
			}
			if n := int64(len(c.w.did.expected(t.GetTaskId(), 1<<40))); t.GetEndReason() ==
				taskv1.TaskEndReason_TASK_END_REASON_EXITED && t.GetOutputBytes() != n {
				return fmt.Errorf("task %s exited and has %d bytes of output; it wrote %d", t.GetTaskId(),
					t.GetOutputBytes(), n)
			}
		}
	}
	return nil
}
