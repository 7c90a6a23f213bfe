package task

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/workerstream"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// start is when the clock of a test begins.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// site is the plane over memory, on a clock that the test moves.
type site struct {
	t       *testing.T
	clk     *clock.Fake
	log     framelog.Log
	output  output.Store
	ctx     context.Context //nolint:containedctx // the actor of the test
	service *Service
	network *rpc.Network
	stop    func()
}

func newSite(t *testing.T) *site {
	s := &site{t: t, clk: clock.NewFake(start), log: journaltest.NewMemLog(), output: output.NewMemory(output.Kept)}
	s.ctx = rpc.WithActor(t.Context(), rpc.Actor{Namespace: "acme", Principal: "op", Role: rpc.RoleOperator})
	s.up()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *site) up() {
	s.service = must.Value(New(Config{}, Deps{Output: s.output, Deps: plane.Deps{
		Log:     func(string, int) (framelog.Log, error) { return s.log, nil },
		Sources: func(string) ([]journal.Source, error) { return nil, nil },
		Clock:   s.clk,
	}}))(s.t)
	require.ErrorContains(s.t, s.service.Ready(), "not started")
	require.NoError(s.t, s.service.Start(context.Background()))
	keys := rpc.NewKeyring(nil, false)
	server := rpc.NewServer(rpc.Config{Auth: keys, Deadlines: Deadlines()})
	s.service.Register(server)
	s.network = rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Token: keys.MintService("test")})
	require.NoError(s.t, s.network.Listen("task", server))
	s.stop = func() {
		require.NoError(s.t, s.service.Stop(context.Background()))
		require.NoError(s.t, s.service.Stop(context.Background()))
		server.Stop()
		require.NoError(s.t, s.network.Close())
	}
}

func (s *site) client() taskv1.TaskServiceClient {
	return taskv1.NewTaskServiceClient(must.Value(s.network.Dial("task"))(s.t))
}

// A repeated request gets its first response although its agent was deleted meanwhile; a new one
// is refused.
func TestX2_ARepeatedCommandOfADeletedAgent(t *testing.T) {
	s := newSite(t)
	var err error
	s.service.deps.Workspace = func(context.Context, string) (Workspace, error) { return Workspace{}, err }
	exec := func(requestID string) (*taskv1.ExecCommandResponse, error) {
		return s.client().ExecCommand(s.ctx, &taskv1.ExecCommandRequest{
			AgentId: "keeper", RequestId: requestID, Command: &taskv1.CommandSpec{Cmd: "true"},
			YieldTime: durationpb.New(0),
		})
	}
	first, e := exec("r1")
	require.NoError(t, e)
	err = fault.AgentDeleted.New("agent keeper is deleted")
	again, e := exec("r1")
	require.NoError(t, e)
	require.Equal(t, first.GetTask().GetTaskId(), again.GetTask().GetTaskId())
	_, e = exec("r2")
	require.ErrorIs(t, e, fault.AgentDeleted)
	err = fault.RunStale.New("the run has ended")
	_, e = exec("r1")
	require.ErrorIs(t, e, fault.RunStale)
}

// queue asks for a command and does not wait.
func (s *site) queue(line string) *taskv1.Task {
	s.t.Helper()
	return must.Value(s.client().ExecCommand(s.ctx, &taskv1.ExecCommandRequest{
		AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: line, AcceptsInput: true}, YieldTime: durationpb.New(0),
	}))(s.t).GetTask()
}

func (s *site) get(id string) *taskv1.Task {
	s.t.Helper()
	return must.Value(s.client().GetTask(s.ctx, &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: id}))(s.t).GetTask()
}

// awaitState blocks on the plane's own signal.
func (s *site) awaitState(id string, want taskv1.TaskState) *taskv1.Task {
	s.t.Helper()
	changes := s.service.watches.Subscribe(id)
	defer changes.Close()
	for {
		if got := s.get(id); got.GetState() == want {
			return got
		}
		select {
		case <-changes.C():
		case <-time.After(time.Minute):
			require.FailNow(s.t, "not reached", "%s, is %v", want, s.get(id))
		}
	}
}

func (s *site) types(id string) []string {
	var out []string
	require.NoError(s.t, s.log.Scan(context.Background(), 0, func(_ uint64, f framelog.Frame) error {
		for _, line := range framelog.SplitLines(f.Body) {
			raw := must.Value(journal.ParseLine(line))(s.t)
			if raw.TaskID == id {
				require.Equal(s.t, "acme", raw.Namespace)
				require.Equal(s.t, "keeper", raw.AgentID)
				out = append(out, raw.Type)
			}
		}
		return nil
	}))
	return out
}

// hand is a worker that the test speaks for.
type hand struct {
	t      *testing.T
	stream interface {
		Send(*taskv1.ConnectRequest) error
		Recv() (*taskv1.ConnectResponse, error)
	}
	cancel context.CancelFunc
}

func (s *site) connect(worker, boot string, capacity int32, running ...string) *hand {
	s.t.Helper()
	return must.Value(s.tryConnect(s.ctx, worker, boot, capacity, running...))(s.t)
}

func (s *site) tryConnect(ctx context.Context, worker, boot string, capacity int32, running ...string) (*hand, error) {
	conn := must.Value(s.network.Dial("task"))(s.t)
	ctx, cancel := context.WithCancel(
		rpc.WithActor(ctx, rpc.Actor{Namespace: "acme", Principal: worker, Role: rpc.RoleWorker}))
	s.t.Cleanup(cancel)
	stream := must.Value(taskv1.NewWorkerServiceClient(conn).Connect(ctx))(s.t)
	h := &hand{t: s.t, stream: stream, cancel: cancel}
	h.say(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Hello{Hello: &taskv1.WorkerHello{
		WorkerId: worker, BootId: boot, Capacity: capacity, RunningTaskIds: running,
	}}})
	if _, err := stream.Header(); err != nil {
		return nil, err
	}
	if md, _ := stream.Header(); md == nil { // refused before the headers
		_, err := stream.Recv()
		return nil, err
	}
	return h, nil
}

func (h *hand) say(m *taskv1.ConnectRequest) {
	h.t.Helper()
	require.NoError(h.t, h.stream.Send(m))
}

func (h *hand) hear() *taskv1.ConnectResponse {
	h.t.Helper()
	return must.Value(h.stream.Recv())(h.t)
}

func (h *hand) output(id string, offset int64, text string) {
	h.say(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Output{Output: &taskv1.CommandOutput{
		TaskId: id, LeaseGeneration: 1, Chunk: &taskv1.OutputChunk{
			Offset: offset, Stream: taskv1.OutputStream_OUTPUT_STREAM_STDOUT, Data: []byte(text),
		},
	}}})
}

func (h *hand) ended(id string, exit int32) {
	h.say(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Ended{Ended: &taskv1.CommandEnded{
		TaskId: id, LeaseGeneration: 1, Reason: rules.ReasonExited, ExitCode: &exit,
	}}})
}

func (h *hand) beat(ids ...string) {
	h.say(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Heartbeat{
		Heartbeat: &taskv1.WorkerHeartbeat{RunningTaskIds: ids},
	}})
}

func TestT5_EndIsAcknowledgedOnce(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 1)
	task := s.queue("x")
	lease := h.hear().GetLease()
	require.Equal(t, task.GetTaskId(), lease.GetTask().GetTaskId())
	require.EqualValues(t, 1, lease.GetLeaseGeneration())
	require.Equal(t, start.Add(LeaseTerm), lease.GetExpiresAt().AsTime())
	require.Equal(t, []string{"task_queued", "task_started"}, s.types(task.GetTaskId()), "durable before it is sent")

	h.output(task.GetTaskId(), 0, "hello ")
	require.EqualValues(t, 6, h.hear().GetAck().GetOutputBytes())
	h.output(task.GetTaskId(), 0, "hello ") // repeated
	require.EqualValues(t, 6, h.hear().GetAck().GetOutputBytes())
	h.output(task.GetTaskId(), 6, "world")
	require.EqualValues(t, 11, h.hear().GetAck().GetOutputBytes())
	h.ended(task.GetTaskId(), 0)
	ack := h.hear().GetAck()
	require.True(t, ack.GetEnded())
	require.False(t, ack.GetStale())
	require.Equal(t, taskv1.TaskState_TASK_STATE_COMPLETED, s.get(task.GetTaskId()).GetState(),
		"acknowledged means durable")
	require.EqualValues(t, 11, s.get(task.GetTaskId()).GetOutputBytes())

	// The acknowledgement may have been lost: the same end again.
	h.ended(task.GetTaskId(), 1)
	require.True(t, h.hear().GetAck().GetEnded())
	h.output(task.GetTaskId(), 11, "late")
	require.True(t, h.hear().GetAck().GetStale())
	require.Equal(t, []string{"task_queued", "task_started", "task_completed"}, s.types(task.GetTaskId()))
	out := must.Value(s.client().GetTaskOutput(s.ctx, &taskv1.GetTaskOutputRequest{
		AgentId: "keeper", TaskId: task.GetTaskId(),
	}))(t)
	require.Equal(t, "hello world", out.GetText())
}

func TestX12_SilentWorkerIsLost(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 2)
	a, b := s.queue("a").GetTaskId(), s.queue("b").GetTaskId()
	require.NotNil(t, h.hear().GetLease())
	require.NotNil(t, h.hear().GetLease())
	h.output(b, 0, "so far")
	require.NotNil(t, h.hear().GetAck())
	s.clk.Advance(20 * time.Second)
	// A heartbeat keeps what it names; what it does not name is said again.
	h.beat(a)
	again := h.hear().GetLease()
	require.Equal(t, b, again.GetTask().GetTaskId())
	require.EqualValues(t, 1, again.GetLeaseGeneration())
	s.clk.Advance(LeaseTerm - 20*time.Second)
	lost := s.awaitState(b, taskv1.TaskState_TASK_STATE_INTERRUPTED)
	require.Equal(t, rules.ReasonWorkerLost, lost.GetEndReason())
	require.EqualValues(t, 6, lost.GetOutputBytes())
	stale := h.hear().GetAck()
	require.Equal(t, b, stale.GetTaskId())
	require.True(t, stale.GetStale(), "the worker must end it")
	require.Equal(t, taskv1.TaskState_TASK_STATE_RUNNING, s.get(a).GetState())
	h.cancel()
	s.clk.Advance(20 * time.Second)
	s.awaitState(a, taskv1.TaskState_TASK_STATE_INTERRUPTED)
	require.Equal(t, []string{"task_queued", "task_started", "task_interrupted"}, s.types(a),
		"heartbeats write no line")
}

func TestX12_RestartGivesAFullTerm(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 1)
	id := s.queue("a").GetTaskId()
	require.NotNil(t, h.hear().GetLease())
	s.clk.Advance(29 * time.Second)
	s.stop()
	s.clk.Advance(time.Hour)
	s.up()
	s.clk.Advance(29 * time.Second)
	require.Equal(t, taskv1.TaskState_TASK_STATE_RUNNING, s.get(id).GetState())
	h = s.connect("w1", "b1", 1, id)
	h.ended(id, 0)
	require.True(t, h.hear().GetAck().GetEnded())
	require.Equal(t, taskv1.TaskState_TASK_STATE_COMPLETED, s.get(id).GetState())
}

func TestX12_RestartWithoutItsWorker(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 1)
	id := s.queue("a").GetTaskId()
	require.NotNil(t, h.hear().GetLease())
	s.stop()
	s.up()
	s.clk.Advance(LeaseTerm)
	s.awaitState(id, taskv1.TaskState_TASK_STATE_INTERRUPTED)
	// It comes back too late and hears that nothing of it counts any more.
	h = s.connect("w1", "b1", 1, id)
	require.True(t, h.hear().GetAck().GetStale())
	h.ended(id, 0)
	require.True(t, h.hear().GetAck().GetStale())
	require.Equal(t, []string{"task_queued", "task_started", "task_interrupted"}, s.types(id))
}

func TestT4_AnotherLifeInterruptsAtOnce(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 2)
	a, b := s.queue("a").GetTaskId(), s.queue("b").GetTaskId()
	require.NotNil(t, h.hear().GetLease())
	require.NotNil(t, h.hear().GetLease())
	next := s.connect("w1", "b2", 1, b) // it found b's end on disk, say
	require.Equal(t, taskv1.TaskState_TASK_STATE_INTERRUPTED, s.get(a).GetState())
	require.Equal(t, taskv1.TaskState_TASK_STATE_RUNNING, s.get(b).GetState())
	require.True(t, next.hear().GetAck().GetStale(), "whoever has a, must end it")
	next.ended(b, 0)
	require.Equal(t, b, next.hear().GetAck().GetTaskId())
	require.Equal(t, []string{"task_queued", "task_started", "task_interrupted"}, s.types(a))
	// The older life hears that it was replaced, and may not come back.
	_, err := h.stream.Recv()
	for err == nil {
		_, err = h.stream.Recv()
	}
	require.NotErrorIs(t, err, io.EOF)
	must.Refuse(s.tryConnect(s.ctx, "w1", "b1", 1))(t, fault.AlreadyExists)
	// The newer one is not disturbed by that.
	c := s.queue("c").GetTaskId()
	require.Equal(t, c, next.hear().GetLease().GetTask().GetTaskId())
}

func TestT4_LostLeaseIsRepeatedNotRerun(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 1)
	id := s.queue("a").GetTaskId()
	require.NotNil(t, h.hear().GetLease())
	// The stream broke before the worker read it; it comes back without the command.
	h = s.connect("w1", "b1", 1)
	again := h.hear().GetLease()
	require.Equal(t, id, again.GetTask().GetTaskId())
	require.EqualValues(t, 1, again.GetLeaseGeneration())
	// To be stopped before it ever ran: the next hello settles it.
	must.Value(s.client().StopTask(s.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id}))(t)
	require.Equal(t, id, h.hear().GetStop().GetTaskId())
	s.connect("w1", "b1", 1)
	require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLED, s.get(id).GetState())
	require.Equal(t, []string{"task_queued", "task_started", "task_cancelling", "task_cancelled"}, s.types(id))
}

func TestT3_StopWaitsForItsWorker(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 2)
	a, b := s.queue("a").GetTaskId(), s.queue("b").GetTaskId()
	require.NotNil(t, h.hear().GetLease())
	require.NotNil(t, h.hear().GetLease())
	h.cancel()
	s.awaitGone(model.WorkerKey{Namespace: "acme", ID: "w1"})
	stop := func(id string) *taskv1.Task {
		resp := must.Value(s.client().StopTask(s.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id}))(t)
		return resp.GetTask()
	}
	require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLING, stop(a).GetState())
	stop(b)
	require.EqualValues(t, 4, stop(b).GetRevision())
	require.EqualValues(t, 4, stop(b).GetRevision(), "a third stop changes nothing")
	h = s.connect("w1", "b1", 2, a, b)
	forced := map[string]bool{}
	for range 2 {
		m := h.hear().GetStop()
		forced[m.GetTaskId()] = m.GetForce()
	}
	require.Equal(t, map[string]bool{a: false, b: true}, forced)
	h.cancel()
	s.awaitGone(model.WorkerKey{Namespace: "acme", ID: "w1"})
	s.clk.Advance(LeaseTerm)
	got := s.awaitState(a, taskv1.TaskState_TASK_STATE_CANCELLED)
	require.Equal(t, rules.ReasonWorkerLost, got.GetEndReason())

	queued := s.queue("never")
	require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLED, stop(queued.GetTaskId()).GetState())
	require.Equal(t, []string{"task_queued", "task_cancelled"}, s.types(queued.GetTaskId()))
}

// awaitGone waits until a worker's stream has ended.
func (s *site) awaitGone(w model.WorkerKey) {
	require.Eventually(s.t, func() bool {
		return !slices.ContainsFunc(s.service.workers.Slots(), func(slot model.WorkerSlot) bool {
			return slot.Worker == w
		})
	}, time.Minute, time.Millisecond)
}

func TestT3_InputReachesItsWorkerOnce(t *testing.T) {
	s := newSite(t)
	h := s.connect("w1", "b1", 1)
	id := s.queue("cat").GetTaskId()
	require.NotNil(t, h.hear().GetLease())
	send := func(text string) *taskv1.SendTaskInputResponse {
		return must.Value(s.client().SendTaskInput(s.ctx, &taskv1.SendTaskInputRequest{
			AgentId: "keeper", TaskId: id, Text: text, RequestId: "in-" + text,
		}))(t)
	}
	require.True(t, send("a").GetAcceptedInput())
	require.True(t, send("a").GetAcceptedInput(), "repeated: the first answer")
	require.True(t, send("b").GetAcceptedInput())
	for i, want := range []string{"a", "b"} {
		in := h.hear().GetInput()
		require.Equal(t, want, string(in.GetData()))
		require.EqualValues(t, i+1, in.GetInputSeq())
	}
	h.say(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_InputTaken{
		InputTaken: &taskv1.CommandInputTaken{TaskId: id, LeaseGeneration: 1, InputSeq: 1},
	}})
	h.output(id, 0, "x") // handled after it
	require.NotNil(t, h.hear().GetAck())
	h.beat(id)
	require.EqualValues(t, 2, h.hear().GetInput().GetInputSeq(), "only what is not confirmed is repeated")
	h.cancel()
	s.awaitGone(model.WorkerKey{Namespace: "acme", ID: "w1"})
	require.Equal(t, rules.RefusedUnreachable, send("c").GetReason())
	s.connect("w1", "b1", 1, id)
	require.True(t, send("c").GetAcceptedInput(), "refusals are not remembered")
}

func TestT1_YieldEndsOnTime(t *testing.T) {
	s := newSite(t)
	type result struct {
		resp *taskv1.ExecCommandResponse
		err  error
	}
	done := make(chan result, 1)
	go func() {
		resp, err := s.client().ExecCommand(s.ctx, &taskv1.ExecCommandRequest{
			AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: "x"},
		})
		done <- result{resp, err}
	}()
	s.clk.AwaitTimers(1)
	s.clk.Advance(rules.DefaultYield)
	r := <-done
	require.NoError(t, r.err)
	require.Equal(t, taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK, r.resp.GetOutcome())
	require.Equal(t, taskv1.TaskState_TASK_STATE_QUEUED, r.resp.GetHandle().GetStatus())
}

func TestT3_BlockedReadTimesOut(t *testing.T) {
	s := newSite(t)
	id := s.queue("x").GetTaskId()
	got := must.Value(s.client().GetTaskOutput(s.ctx, &taskv1.GetTaskOutputRequest{AgentId: "keeper", TaskId: id}))(t)
	require.Equal(t, retrievalNotReady, got.GetRetrievalStatus())
	done := make(chan *taskv1.GetTaskOutputResponse, 1)
	go func() {
		got, err := s.client().GetTaskOutput(s.ctx, &taskv1.GetTaskOutputRequest{
			AgentId: "keeper", TaskId: id, Block: true,
		})
		if err == nil {
			done <- got
		}
		close(done)
	}()
	s.clk.AwaitTimers(1)
	s.clk.Advance(DefaultBlock)
	require.Equal(t, retrievalTimeout, (<-done).GetRetrievalStatus())
}

func TestX15_WhoMay(t *testing.T) {
	s := newSite(t)
	id := s.queue("x").GetTaskId()
	as := func(role, agent string) context.Context {
		return rpc.WithActor(t.Context(), rpc.Actor{Namespace: "acme", Principal: "p", Role: role, AgentID: agent})
	}
	get := func(ctx context.Context) error {
		return must.Err(s.client().GetTask(ctx, &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: id}))
	}
	exec := func(ctx context.Context) error {
		return must.Err(s.client().ExecCommand(ctx, &taskv1.ExecCommandRequest{
			AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: "x"}, YieldTime: durationpb.New(0),
		}))
	}
	require.NoError(t, get(as(rpc.RoleAgent, "keeper")))
	require.NoError(t, exec(as(rpc.RoleAgent, "keeper")))
	require.NoError(t, get(as(rpc.RoleRunner, "")))
	require.ErrorIs(t, get(as(rpc.RoleAgent, "other")), fault.PermissionDenied)
	require.ErrorIs(t, exec(as(rpc.RoleAgent, "other")), fault.PermissionDenied)
	other := rpc.WithActor(t.Context(), rpc.Actor{Namespace: "beta", Principal: "p", Role: rpc.RoleOperator})
	require.ErrorIs(t, get(other), fault.NotFound, "nothing crosses a namespace")

	conn := must.Value(s.network.Dial("task"))(t)
	for _, h := range []*taskv1.WorkerHello{
		nil,
		{},
		{WorkerId: "W!", BootId: "b"},
		{WorkerId: "w"},
		{WorkerId: "w", BootId: "b", Capacity: -1},
		{WorkerId: "w", BootId: "b", Capacity: workerstream.MaxCapacity +
			1},
	} {
		stream := must.Value(taskv1.NewWorkerServiceClient(conn).Connect(as(rpc.RoleWorker, "")))(t)
		m := &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Hello{Hello: h}}
		if h == nil {
			m = &taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Heartbeat{Heartbeat: &taskv1.WorkerHeartbeat{}}}
		}
		require.NoError(t, stream.Send(m))
		require.Error(t, must.Err(stream.Recv()), "%v", h)
	}
}

func TestX2_RequestIDReused(t *testing.T) {
	s := newSite(t)
	var header metadata.MD
	exec := func(line string) (*taskv1.ExecCommandResponse, error) {
		return s.client().ExecCommand(s.ctx, &taskv1.ExecCommandRequest{
			AgentId: "keeper", RequestId: "r", Command: &taskv1.CommandSpec{Cmd: line}, YieldTime: durationpb.New(0),
		}, grpc.Header(&header))
	}
	first := must.Value(exec("a"))(t)
	require.False(t, rpc.WasReplayed(header))
	s.stop()
	s.up()
	second := must.Value(exec("a"))(t)
	require.Equal(t, first.GetTask().GetTaskId(), second.GetTask().GetTaskId(), "also across a restart")
	require.True(t, rpc.WasReplayed(header))
	must.Refuse(exec("b"))(t, fault.RequestIDReused)
}
