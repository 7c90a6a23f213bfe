package rules

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/workerstream"
	"quartet/services/task/model"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is a state with what a partition's loop does to it: rules run, their
// events are applied and remembered.
type world struct {
	state  *model.State
	paged  *journaltest.CheckedState[*model.State] // gets the same events
	env    journal.Env
	events []*journal.Event
}

func newWorld() *world {
	return &world{state: model.NewState(), paged: journaltest.Checked(model.NewState, 16, nil), env: journal.Env{
		Now: epoch, Actor: journal.Actor{Namespace: "acme", Principal: "op"}, NewID: new(id.Sequence).New,
	}}
}

// run runs a rule as the loop does.
func run[R any](t require.TestingT, w *world, rule func(*model.State, journal.Env) (journal.Decision[R], error)) (
	journal.Decision[R], error,
) {
	before := dump(w.state)
	d, err := rule(w.state, w.env)
	require.Equal(t, before, dump(w.state), "a rule must not write")
	if err != nil {
		require.Empty(t, d.Events)
		return d, err
	}
	for _, ev := range d.Events {
		require.NotEmpty(t, ev.AgentID)
		require.NotEmpty(t, ev.TaskID)
		require.NotEmpty(t, ev.Namespace)
		require.NoError(t, w.state.Apply(ev), "Decide emitted what Apply refuses")
		require.NoError(t, w.paged.Apply(ev))
		w.events = append(w.events, ev)
	}
	w.env.Now = w.env.Now.Add(time.Second)
	return d, nil
}

func (w *world) exec(t require.TestingT, req *taskv1.ExecCommandRequest) (*taskv1.Task, error) {
	if req.AgentId == "" {
		req.AgentId = "keeper"
	}
	spec, err := CheckExec(req)
	if err != nil {
		return nil, err
	}
	d, err := run(t, w, func(s *model.State, env journal.Env) (journal.Decision[*taskv1.ExecCommandResponse], error) {
		return DecideExec(s, env, req, spec, nil)
	})
	require.NoError(t, err)
	if len(d.Events) == 0 {
		return d.Reply.GetTask(), nil
	}
	return must.Value(AnswerExec(d.Events))(t).GetTask(), nil
}

func (w *world) lease(t require.TestingT, slots ...model.WorkerSlot) int {
	return must.Value(run(t, w, func(s *model.State, env journal.Env) (journal.Decision[int], error) {
		return DecideLease(s, env, slots)
	}))(t).Reply
}

func (w *world) end(t require.TestingT, e End) bool {
	d := must.Value(run(t, w, func(s *model.State, env journal.Env) (journal.Decision[bool], error) {
		return DecideEnd(s, env, e)
	}))(t)
	require.Equal(t, d.Reply, len(d.Events) == 1)
	return d.Reply
}

func (w *world) stop(t require.TestingT, agent, taskID string) error {
	_, err := run(t, w, func(s *model.State, env journal.Env) (journal.Decision[*taskv1.StopTaskResponse], error) {
		return DecideStop(s, env, &taskv1.StopTaskRequest{AgentId: agent, TaskId: taskID})
	})
	return err
}

func (w *world) input(t require.TestingT, taskID string, end bool, to Reach) *taskv1.SendTaskInputResponse {
	d, err := run(t, w, func(s *model.State, env journal.Env) (journal.Decision[*taskv1.SendTaskInputResponse], error) {
		return DecideInput(s, env, &taskv1.SendTaskInputRequest{
			AgentId: "keeper", TaskId: taskID, Text: "hi", EndOfInput: end,
		}, to)
	})
	require.NoError(t, err)
	if len(d.Events) == 0 {
		return d.Reply
	}
	return must.Value(AnswerInput(d.Events))(t)
}

func (w *world) task(id string) *taskv1.Task { return w.state.Task(id).Task }

// dump writes a state out, stable, for comparison.
func dump(s *model.State) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, r := range allTasks(s) {
		id := r.Task.GetTaskId()
		raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(r.Task)
		add("task %s %s %d %v %t %d %t %d %x", id, r.Namespace, r.Ordinal, r.Worker, r.StopForced, r.InputSeq,
			r.InputEnded, len(r.Inputs), raw)
	}
	for o := range s.Agents() {
		active := taskIDs(s.Active(o))
		slices.Sort(active)
		ids := taskIDs(s.TasksOf(o))
		add("agent %v %v active %v", o, ids, active)
	}
	for ns, q := range s.Queues {
		add("queue %s %v", ns, q.Ids)
	}
	for w, held := range s.Workers {
		ids := make([]string, 0, len(held))
		for id := range held {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		add("worker %v %v", w, ids)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func one(capacity int) model.WorkerSlot {
	return model.WorkerSlot{Worker: model.WorkerKey{Namespace: "acme", ID: "w1"}, BootID: "b1", Capacity: capacity}
}

func code(n int32) *int32 { return &n }

func TestT1_BadRequestsAreRefused(t *testing.T) {
	good := func() *taskv1.ExecCommandRequest {
		return &taskv1.ExecCommandRequest{AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: "true"}}
	}
	must.Value(CheckExec(good()))(t)
	long := strings.Repeat("x", maxCommandBytes+1)
	many := map[string]string{}
	for i := range maxEnvEntries + 1 {
		many[fmt.Sprintf("V%d", i)] = ""
	}
	for name, c := range map[string]struct {
		change func(*taskv1.ExecCommandRequest)
		reason fault.Reason
		says   string
	}{
		"no agent": {func(r *taskv1.ExecCommandRequest) { r.AgentId = "" }, fault.InvalidArgument, "agent_id"},
		"bad agent": {
			func(r *taskv1.ExecCommandRequest) { r.AgentId = "Keeper!" }, fault.InvalidArgument,
			`"Keeper!"`,
		},
		"bad item": {
			func(r *taskv1.ExecCommandRequest) { r.WorkItemId = "a/b" }, fault.InvalidArgument,
			`"a/b"`,
		},
		"long request id": {
			func(r *taskv1.ExecCommandRequest) { r.RequestId = strings.Repeat("r", 129) },
			fault.LimitExceeded, "129",
		},
		"no command": {func(r *taskv1.ExecCommandRequest) { r.Command = nil }, fault.InvalidArgument, "neither"},
		"both": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Argv = []string{"true"} },
			fault.InvalidArgument, "both",
		},
		"blank": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Cmd = " \n" }, fault.InvalidArgument,
			"blank",
		},
		"long cmd": {func(r *taskv1.ExecCommandRequest) { r.Command.Cmd = long }, fault.LimitExceeded, "65537"},
		"NUL in cmd": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Cmd = "a\x00b" }, fault.InvalidArgument,
			"NUL",
		},
		"empty program": {
			func(r *taskv1.ExecCommandRequest) { r.Command = &taskv1.CommandSpec{Argv: []string{""}} },
			fault.InvalidArgument, "program",
		},
		"NUL in argv": {
			func(r *taskv1.ExecCommandRequest) { r.Command = &taskv1.CommandSpec{Argv: []string{"a", "\x00"}} },
			fault.InvalidArgument, "NUL",
		},
		"many args": {
			func(r *taskv1.ExecCommandRequest) { r.Command = &taskv1.CommandSpec{Argv: make([]string, maxArgs+1)} },
			fault.LimitExceeded, "1001",
		},
		"large args": {func(r *taskv1.ExecCommandRequest) {
			r.Command = &taskv1.CommandSpec{Argv: []string{"a", long[1:], long[1:]}}
		}, fault.LimitExceeded, "bytes"},
		"relative workdir": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Workdir = "src" }, fault.InvalidArgument,
			`"src"`,
		},
		"long workdir": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Workdir = "/" + long },
			fault.LimitExceeded, "workdir",
		},
		"env name": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Env = map[string]string{"1A": ""} },
			fault.InvalidArgument, `"1A"`,
		},
		"env name with =": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Env = map[string]string{"A=B": ""} },
			fault.InvalidArgument, `"A=B"`,
		},
		"empty env name": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Env = map[string]string{"": ""} },
			fault.InvalidArgument, "env",
		},
		"reserved env": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Env = map[string]string{"QUARTET_TASK_ID": ""} },
			fault.InvalidArgument, "QUARTET_",
		},
		"NUL in env": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Env = map[string]string{"A": "\x00"} },
			fault.InvalidArgument, "NUL",
		},
		"many variables": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Env = many }, fault.LimitExceeded,
			"257",
		},
		"large env": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Env = map[string]string{"A": long[1:]} },
			fault.LimitExceeded, "env",
		},
		"no time": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Timeout = durationpb.New(0) },
			fault.LimitExceeded, "timeout",
		},
		"long time": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Timeout = durationpb.New(MaxTimeout + 1) },
			fault.LimitExceeded, "24h",
		},
		"negative yield": {
			func(r *taskv1.ExecCommandRequest) { r.YieldTime = durationpb.New(-1) },
			fault.LimitExceeded, "yield_time",
		},
		"long yield": {
			func(r *taskv1.ExecCommandRequest) { r.YieldTime = durationpb.New(46 * time.Second) },
			fault.LimitExceeded, "45s",
		},
		"impossible duration": {
			func(r *taskv1.ExecCommandRequest) { r.YieldTime = &durationpb.Duration{Seconds: 1, Nanos: -1} },
			fault.LimitExceeded, "yield_time",
		},
		"negative output": {func(r *taskv1.ExecCommandRequest) { r.MaxOutput = -1 }, fault.LimitExceeded, "-1"},
		"large output": {
			func(r *taskv1.ExecCommandRequest) { r.MaxOutput = MaxMaxOutput + 1 },
			fault.LimitExceeded, "256001",
		},
		"unknown restart": {
			func(r *taskv1.ExecCommandRequest) { r.Command.RestartPolicy = 9 },
			fault.InvalidArgument, "restart_policy",
		},
		"bad pool": {
			func(r *taskv1.ExecCommandRequest) { r.Command.Pool = "a b" }, fault.InvalidArgument,
			`"a b"`,
		},
		"bad label": {func(r *taskv1.ExecCommandRequest) {
			r.Command.WorkerLabels = map[string]string{
				"A": "x",
			}
		}, fault.InvalidArgument, `"A"`},
		"long label": {func(r *taskv1.ExecCommandRequest) {
			r.Command.WorkerLabels = map[string]string{"a": strings.Repeat("v", workerstream.MaxLabelValueBytes+1)}
		}, fault.LimitExceeded, "129"},
		"many labels": {func(r *taskv1.ExecCommandRequest) {
			r.Command.WorkerLabels = map[string]string{}
			for i := range workerstream.MaxLabels + 1 {
				r.Command.WorkerLabels[fmt.Sprint("l", i)] = "v"
			}
		}, fault.LimitExceeded, "65"},
		"little memory": {func(r *taskv1.ExecCommandRequest) {
			r.Command.Limits = &taskv1.CommandLimits{MemoryBytes: MinMemory - 1}
		}, fault.LimitExceeded, "1048575"},
		"much memory": {func(r *taskv1.ExecCommandRequest) {
			r.Command.Limits = &taskv1.CommandLimits{MemoryBytes: MaxMemory + 1}
		}, fault.LimitExceeded, "memory_bytes"},
		"negative output limit": {func(r *taskv1.ExecCommandRequest) {
			r.Command.Limits = &taskv1.CommandLimits{OutputBytes: -1}
		}, fault.LimitExceeded, "output_bytes"},
		"large output limit": {func(r *taskv1.ExecCommandRequest) {
			r.Command.Limits = &taskv1.CommandLimits{OutputBytes: MaxOutput + 1}
		}, fault.LimitExceeded, "output_bytes"},
		"negative processes": {func(r *taskv1.ExecCommandRequest) {
			r.Command.Limits = &taskv1.CommandLimits{Processes: -1}
		}, fault.LimitExceeded, "processes is -1"},
		"many processes": {func(r *taskv1.ExecCommandRequest) {
			r.Command.Limits = &taskv1.CommandLimits{Processes: MaxProcesses + 1}
		}, fault.LimitExceeded, "100001"},
	} {
		t.Run(name, func(t *testing.T) {
			req := good()
			c.change(req)
			_, err := CheckExec(req)
			require.ErrorIs(t, err, c.reason)
			require.ErrorContains(t, err, c.says)
			require.NotEmpty(t, fault.From(err).Violations())
		})
	}
}

func TestT1_CommandAsStored(t *testing.T) {
	w := newWorld()
	got := must.Value(w.exec(t, &taskv1.ExecCommandRequest{
		Command: &taskv1.CommandSpec{
			Cmd:     "  go test ./...\n\t| tail " + strings.Repeat("y", 200),
			Workdir: "/a/../b/./c/",
		}, WorkItemId: "wi_1", Blocking: true,
	}))(t)
	require.Equal(t, "/b/c", got.GetCommand().GetWorkdir())
	require.Equal(t, time.Hour, got.GetCommand().GetTimeout().AsDuration())
	require.True(t, strings.HasPrefix(got.GetLabel(), "go test ./... | tail yyy"), got.GetLabel())
	require.Len(t, []rune(got.GetLabel()), labelChars)
	require.True(t, got.GetBlocking())
	require.Equal(t, "wi_1", w.events[0].WorkItemID)
	require.EqualValues(t, 1, got.GetRevision())
}

func TestT1_DuplicateIdentity(t *testing.T) {
	base := func() *taskv1.CommandSpec {
		return &taskv1.CommandSpec{Cmd: "make", Workdir: "/w", Env: map[string]string{"A": "1"}}
	}
	for name, c := range map[string]struct {
		change func(*taskv1.CommandSpec)
		same   bool
	}{
		"equal":          {func(*taskv1.CommandSpec) {}, true},
		"cleaned path":   {func(s *taskv1.CommandSpec) { s.Workdir = "/w/x/.." }, true},
		"another limit":  {func(s *taskv1.CommandSpec) { s.Timeout = durationpb.New(time.Minute) }, true},
		"another line":   {func(s *taskv1.CommandSpec) { s.Cmd = "make all" }, false},
		"argv":           {func(s *taskv1.CommandSpec) { s.Cmd, s.Argv = "", []string{"make"} }, false},
		"another dir":    {func(s *taskv1.CommandSpec) { s.Workdir = "/v" }, false},
		"another value":  {func(s *taskv1.CommandSpec) { s.Env["A"] = "2" }, false},
		"a variable off": {func(s *taskv1.CommandSpec) { s.Env = nil }, false},
		"terminal":       {func(s *taskv1.CommandSpec) { s.Tty = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			first := must.Value(w.exec(t, &taskv1.ExecCommandRequest{Command: base()}))(t)
			spec := base()
			c.change(spec)
			reuse := &taskv1.ExecCommandRequest{
				Command: spec, DuplicatePolicy: taskv1.DuplicatePolicy_DUPLICATE_POLICY_REUSE_RUNNING,
			}
			require.Equal(t, c.same, first.GetTaskId() == must.Value(w.exec(t, reuse))(t).GetTaskId())
			other := must.Value(w.exec(t, &taskv1.ExecCommandRequest{
				AgentId: "other", Command: spec, DuplicatePolicy: reuse.DuplicatePolicy,
			}))(t)
			require.NotEqual(t, first.GetTaskId(), other.GetTaskId(), "another agent's command is another command")
		})
	}
	w := newWorld()
	first, _ := w.exec(t, &taskv1.ExecCommandRequest{Command: base()})
	w.lease(t, one(1))
	require.NoError(t, w.stop(t, "keeper", first.GetTaskId()))
	second, _ := w.exec(t, &taskv1.ExecCommandRequest{
		Command: base(), DuplicatePolicy: taskv1.DuplicatePolicy_DUPLICATE_POLICY_REUSE_RUNNING,
	})
	require.NotEqual(t, first.GetTaskId(), second.GetTaskId(), "what is being stopped is not reused")
}

func TestT2_EndStates(t *testing.T) {
	const (
		completed   = taskv1.TaskState_TASK_STATE_COMPLETED
		failed      = taskv1.TaskState_TASK_STATE_FAILED
		cancelled   = taskv1.TaskState_TASK_STATE_CANCELLED
		interrupted = taskv1.TaskState_TASK_STATE_INTERRUPTED
	)
	for _, c := range []struct {
		reason              taskv1.TaskEndReason
		exit                *int32
		running, cancelling taskv1.TaskState
	}{
		{ReasonExited, code(0), completed, completed},
		{ReasonExited, code(1), failed, failed},
		{ReasonExited, nil, failed, failed},
		{ReasonSignalled, nil, failed, cancelled},
		{ReasonTimeout, nil, failed, failed},
		{ReasonStopped, code(0), cancelled, cancelled},
		{ReasonSpawnFailed, nil, failed, failed},
		{ReasonWorkerStopped, nil, interrupted, cancelled},
		{ReasonWorkerLost, nil, interrupted, cancelled},
	} {
		for _, stopped := range []bool{false, true} {
			w := newWorld()
			task, _ := w.exec(t, &taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: "x"}})
			require.Equal(t, 1, w.lease(t, one(1)))
			want := c.running
			if stopped {
				require.NoError(t, w.stop(t, "keeper", task.GetTaskId()))
				want = c.cancelling
			}
			require.True(t, w.end(t, End{
				TaskID: task.GetTaskId(), Generation: 1, Reason: c.reason, ExitCode: c.exit, Tail: "tail",
			}))
			got := w.task(task.GetTaskId())
			require.Equal(t, want, got.GetState(), "%s %t", c.reason, stopped)
			require.Equal(t, c.reason, got.GetEndReason())
			before := len(w.events)
			require.False(t,
				w.end(t, End{TaskID: task.GetTaskId(), Generation: 1, Reason: ReasonExited, ExitCode: code(0)}))
			require.ErrorIs(t, w.stop(t, "keeper", task.GetTaskId()), fault.TaskNotRunning)
			require.Len(t, w.events, before, "late writers leave no trace (X7)")
		}
	}
}

func TestX12_StaleGenerationsAreRefused(t *testing.T) {
	w := newWorld()
	task, _ := w.exec(t, &taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: "x"}})
	require.False(t, w.end(t, End{TaskID: task.GetTaskId(), Reason: ReasonExited}), "it does not run yet")
	w.lease(t, one(1))
	for _, gen := range []int64{0, 2} {
		require.False(t, w.end(t, End{TaskID: task.GetTaskId(), Generation: gen, Reason: ReasonExited}))
	}
	require.False(t, w.end(t, End{TaskID: "tsk_none", Generation: 1, Reason: ReasonExited}))
	require.Equal(t, taskv1.TaskState_TASK_STATE_RUNNING, w.task(task.GetTaskId()).GetState())
}

func TestT4_LeasesGoToTheRightWorker(t *testing.T) {
	w := newWorld()
	var ids []string
	for i := range 6 {
		w.env.Actor.Namespace = []string{"acme", "beta"}[i%2]
		got := must.Value(w.exec(t, &taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: fmt.Sprint(i)}}))(t)
		ids = append(ids, got.GetTaskId())
	}
	require.Zero(t, w.lease(t))
	require.Zero(t, w.lease(t, model.WorkerSlot{Worker: model.WorkerKey{Namespace: "gamma", ID: "w"}, Capacity: 9}))
	// acme's worker takes acme's oldest only.
	require.Equal(t, 1, w.lease(t, model.WorkerSlot{
		Worker: model.WorkerKey{Namespace: "acme", ID: "w"}, BootID: "b", Capacity: 1,
	}))
	require.Equal(t, "w", w.task(ids[0]).GetWorkerId())
	require.Zero(t, w.lease(t, model.WorkerSlot{
		Worker: model.WorkerKey{Namespace: "acme", ID: "w"}, BootID: "b", Capacity: 1,
	}), "it is full")
	// A shared one of the same name is another worker, and takes the oldest of all.
	require.Equal(t, 2, w.lease(t, model.WorkerSlot{
		Worker: model.WorkerKey{Namespace: "", ID: "w"}, BootID: "c", Capacity: 3, HeldElsewhere: 1,
	}))
	require.Equal(t, "c", w.task(ids[1]).GetWorkerBootId())
	require.Equal(t, "c", w.task(ids[2]).GetWorkerBootId())
	require.Len(t, w.state.Workers[model.WorkerKey{Namespace: "", ID: "w"}], 2)
	// Stopped ones are passed over; room is shared out.
	w.env.Actor.Namespace = "beta"
	require.NoError(t, w.stop(t, "keeper", ids[3]))
	require.Equal(t, 2, w.lease(t, model.WorkerSlot{Worker: model.WorkerKey{Namespace: "beta", ID: "x"}, Capacity: 1},
		model.WorkerSlot{Worker: model.WorkerKey{Namespace: "acme", ID: "y"}, Capacity: 9}))
	require.Equal(t, "y", w.task(ids[4]).GetWorkerId())
	require.Equal(t, "x", w.task(ids[5]).GetWorkerId())
	require.Empty(t, w.state.Queues)
}

func TestT3_InputRefusals(t *testing.T) {
	w := newWorld()
	task, _ := w.exec(t, &taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: "cat", AcceptsInput: true}})
	here := Reach{Connected: true}
	require.Equal(t, RefusedNotRunning, w.input(t, task.GetTaskId(), false, here).GetReason())
	w.lease(t, one(1))
	require.Equal(t, RefusedUnreachable, w.input(t, task.GetTaskId(), false, Reach{}).GetReason())
	for range maxUnconfirmed {
		require.True(t, w.input(t, task.GetTaskId(), false, here).GetAcceptedInput())
	}
	require.Equal(t, RefusedBacklog, w.input(t, task.GetTaskId(), false, here).GetReason())
	for i := range 2 * model.KeptInputs {
		require.True(t, w.input(t, task.GetTaskId(), false, Reach{true, int64(i + 1)}).GetAcceptedInput())
	}
	require.Len(t, w.state.Items[task.GetTaskId()].Inputs, model.KeptInputs)
	last := w.state.Items[task.GetTaskId()].InputSeq
	require.True(t, w.input(t, task.GetTaskId(), true, Reach{true, last}).GetAcceptedInput())
	require.Equal(t, refusedEnded, w.input(t, task.GetTaskId(), false, Reach{true, last + 1}).GetReason())
	plain, _ := w.exec(t, &taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: "true"}})
	w.lease(t, one(2))
	require.Equal(t, RefusedNoInput, w.input(t, plain.GetTaskId(), false, here).GetReason())
}

func TestX9_ListPages(t *testing.T) {
	w := newWorld()
	for i := range 7 {
		must.Value(w.exec(t, &taskv1.ExecCommandRequest{
			Command:    &taskv1.CommandSpec{Cmd: fmt.Sprint(i)},
			WorkItemId: []string{"", "wi_1"}[i%2],
		}))(t)
	}
	_, _ = w.exec(t, &taskv1.ExecCommandRequest{AgentId: "other", Command: &taskv1.CommandSpec{Cmd: "x"}})
	for i := 1; i <= 3; i++ {
		require.NoError(t, w.stop(t, "keeper", allTasks(w.state)[i].Task.GetTaskId()))
	}
	names := func(l model.Page) string {
		var out []string
		for _, x := range l.Tasks {
			out = append(out, x.GetLabel())
		}
		return strings.Join(out, "")
	}
	all := func(req *taskv1.ListTasksRequest, size int) (string, []int) {
		var out string
		var sizes []int
		for before := int64(1 << 62); ; {
			l := w.state.ListPage(model.Owner{Namespace: "acme", ID: "keeper"}, req, before, size)
			require.Equal(t, 4, l.Active)
			out += names(l)
			sizes = append(sizes, len(l.Tasks))
			if !l.More {
				return out, sizes
			}
			before = l.Last
		}
	}
	for size := 1; size <= 8; size++ {
		got, sizes := all(&taskv1.ListTasksRequest{}, size)
		require.Equal(t, "6540", got)
		require.LessOrEqual(t, slices.Max(sizes), size)
		got, _ = all(&taskv1.ListTasksRequest{IncludeTerminal: true}, size)
		require.Equal(t, "6543210", got)
		got, _ = all(&taskv1.ListTasksRequest{WorkItemId: "wi_1"}, size)
		require.Equal(t, "5", got)
		got, _ = all(&taskv1.ListTasksRequest{WorkItemId: "wi_1", IncludeTerminal: true}, size)
		require.Equal(t, "531", got)
	}
	require.Empty(t, w.state.ListPage(model.Owner{Namespace: "beta", ID: "keeper"}, &taskv1.ListTasksRequest{}, 1<<62,
		5).Tasks)
}

// Random histories: states only move forward, terminals stay, every prefix
// replays to the live state, and the indexes agree with the tasks (T2, R7).
func TestT2_RandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		var ids []string
		phases := map[string]int{}
		pick := func() string {
			if len(ids) == 0 {
				return "tsk_none"
			}
			return rapid.SampledFrom(ids).Draw(t, "task")
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "op") {
			case 0, 1:
				w.env.Actor.Namespace = rapid.SampledFrom([]string{"acme", "beta"}).Draw(t, "ns")
				got := must.Value(w.exec(t, &taskv1.ExecCommandRequest{
					AgentId:    rapid.SampledFrom([]string{"a", "keeper"}).Draw(t, "agent"),
					WorkItemId: rapid.SampledFrom([]string{"", "wi_1"}).Draw(t, "item"),
					Command: &taskv1.CommandSpec{
						Cmd: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "cmd"), AcceptsInput: true,
						Pool:          rapid.SampledFrom([]string{"", "gpu"}).Draw(t, "pool"),
						RestartPolicy: taskv1.RestartPolicy(rapid.IntRange(0, 2).Draw(t, "restart")),
					},
					DuplicatePolicy: taskv1.DuplicatePolicy(rapid.IntRange(0, 2).Draw(t, "policy")),
				}))(t)
				if !slices.Contains(ids, got.GetTaskId()) {
					ids = append(ids, got.GetTaskId())
				}
			case 2:
				ns := rapid.SampledFrom([]string{"", "acme", "beta"}).Draw(t, "worker ns")
				w.lease(t, model.WorkerSlot{
					Worker: model.WorkerKey{Namespace: ns, ID: "w"}, BootID: "b",
					Capacity: rapid.IntRange(0, 4).Draw(t, "capacity"),
					Pools:    rapid.SampledFrom([][]string{nil, {"gpu"}, {"gpu", "default"}}).Draw(t, "pools"),
				})
			case 3:
				_ = w.stop(t, "keeper", pick()) // a refusal is fine
			case 4:
				w.end(t, End{
					TaskID: pick(), Generation: rapid.Int64Range(0, 4).Draw(t, "gen"), ExitCode: code(0),
					Reason: rapid.SampledFrom([]taskv1.TaskEndReason{
						ReasonExited, ReasonStopped, ReasonWorkerLost,
						ReasonWorkerLost, ReasonWorkerStopped, ReasonMemoryLimit, ReasonTimeout,
					}).Draw(t, "reason"),
				})
			case 5:
				if id := pick(); w.state.FindTask(w.env.Actor.Namespace, "keeper", id) != nil {
					w.input(t, id, rapid.Bool().Draw(t, "eof"), Reach{Connected: rapid.Bool().Draw(t, "connected")})
				}
			case 6:
				w.env.Actor.Namespace = rapid.SampledFrom([]string{"acme", "beta"}).Draw(t, "ns")
			}
			for _, id := range ids {
				p := model.Phase(w.task(id).GetState())
				require.GreaterOrEqual(t, p, phases[id])
				phases[id] = p
			}
			requireIndexes(t, w.state)
		}
		replayed := model.NewState()
		terminals := map[string]int{}
		for _, ev := range w.events {
			require.NoError(t, replayed.Apply(throughTheWire(t, ev)))
			if model.Terminal(model.TaskOf(ev).GetState()) {
				terminals[ev.TaskID]++
			}
			requireIndexes(t, replayed)
		}
		require.Equal(t, dump(w.state), dump(replayed))
		require.NoError(t, w.paged.Check())
		for id, n := range terminals {
			require.Equal(t, 1, n, id)
		}
	})
}

// throughTheWire returns an event as a replay sees it.
func throughTheWire(t require.TestingT, ev *journal.Event) *journal.Event {
	raw := must.Value(proto.Marshal(ev.Payload))(t)
	c := *ev
	c.Payload = ev.Payload.ProtoReflect().New().Interface()
	require.NoError(t, proto.Unmarshal(raw, c.Payload))
	return &c
}

// taskIDs returns the ids of tasks, in their order.
func taskIDs(all iter.Seq[*model.Record]) (ids []string) {
	for r := range all {
		ids = append(ids, r.Task.GetTaskId())
	}
	return ids
}

// allTasks returns all tasks of a state, oldest first.
func allTasks(s *model.State) (all []*model.Record) {
	for o := range s.Agents() {
		all = slices.AppendSeq(all, s.TasksOf(o))
	}
	slices.SortFunc(all, func(a, b *model.Record) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return all
}

func requireIndexes(t require.TestingT, s *model.State) {
	held := 0
	for _, r := range allTasks(s) {
		id, state := r.Task.GetTaskId(), r.Task.GetState()
		require.Equal(t, r.Task, s.Task(id).Task)
		o := model.Owner{Namespace: r.Namespace, ID: r.Task.GetAgentId()}
		require.Equal(t, !model.Terminal(state), slices.Contains(taskIDs(s.Active(o)), id))
		if model.AwaitsWorker(r.Task) {
			require.Contains(t, s.Queues[model.PlacementOf(r.Namespace, r.Task).Key()].Ids, id)
		}
		_, bound := s.Workers[r.Worker][id]
		require.Equal(t, model.HeldByWorker(state) && !model.AwaitsWorker(r.Task), bound)
		if bound {
			held++
		} else {
			require.Empty(t, r.Inputs)
		}
	}
	for w, ids := range s.Workers {
		require.NotEmpty(t, ids, w)
		held -= len(ids)
	}
	require.Zero(t, held)
}
