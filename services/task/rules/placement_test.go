package rules

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// queue asks for a command and gives its id.
func (w *world) queue(t require.TestingT, spec *taskv1.CommandSpec) string {
	return must.Value(w.exec(t, &taskv1.ExecCommandRequest{Command: spec}))(t).GetTaskId()
}

func (w *world) why(id string, slots ...model.WorkerSlot) (reason, message string) {
	r := w.state.Items[id]
	return model.ExplainQueued(model.PlacementOf(r.Namespace, r.Task), slots, func(of model.WorkerKey) int {
		return len(w.state.Workers[of])
	})
}

func serving(id string, capacity int, labels map[string]string, pools ...string) model.WorkerSlot {
	return model.WorkerSlot{
		Worker: model.WorkerKey{Namespace: "acme", ID: id}, BootID: "b", Capacity: capacity,
		Labels: labels, Pools: pools,
	}
}

// T4: a command goes to a worker of its pool that has its labels, nobody waits
// behind one that nobody may take, and that one says why it waits.
func TestT4_PoolsAndLabels(t *testing.T) {
	w := newWorld()
	gpu := w.queue(t, &taskv1.CommandSpec{Cmd: "train", WorkerLabels: map[string]string{"gpu": "a100", "os": "linux"}})
	pool := w.queue(t, &taskv1.CommandSpec{Cmd: "deploy", Pool: "prod"})
	plain := w.queue(t, &taskv1.CommandSpec{Cmd: "ls"})

	reason, message := w.why(gpu)
	require.Equal(t, model.QueuedNoWorker, reason)
	require.Contains(t, message, "quartet worker")
	small := serving("small", 1, map[string]string{"os": "linux", "gpu": "t4"})
	reason, message = w.why(gpu, small, model.WorkerSlot{
		Worker:   model.WorkerKey{Namespace: "beta", ID: "theirs"},
		Capacity: 1, Labels: map[string]string{"gpu": "a100", "os": "linux"},
	})
	require.Equal(t, model.QueuedNoMatch, reason)
	require.Equal(t, "needs a worker of pool default with gpu=a100,os=linux; connected: small (pool default, "+
		"gpu=t4,os=linux, 0 of 1 commands)", message)

	require.Equal(t, 1, w.lease(t, small), "only the plain one fits")
	require.Equal(t, "small", w.task(plain).GetWorkerId())
	require.Zero(t, w.lease(t, small, serving("prod", 1, nil, "prod-2")))
	require.Equal(t, 2, w.lease(t, small,
		serving("big", 4, map[string]string{"os": "linux", "gpu": "a100", "more": ""}),
		serving("prod", 1, nil, "staging", "prod")))
	require.Equal(t, "big", w.task(gpu).GetWorkerId())
	require.Equal(t, "prod", w.task(pool).GetWorkerId())
	require.Empty(t, w.state.Queues)

	next := w.queue(t, &taskv1.CommandSpec{Cmd: "deploy", Pool: "prod"})
	reason, message = w.why(next, small, serving("prod", 1, nil, "prod"))
	require.Equal(t, model.QueuedBusy, reason)
	require.Contains(t, message, "prod (pool prod, 1 of 1 commands)")
	reason, _ = w.why(next, serving("prod", 2, nil, "prod"))
	require.Equal(t, model.QueuedSoon, reason)

	reason, message = model.ExplainQueued(model.Placement{Namespace: "acme", PinnedTo: model.WorkerKey{
		Namespace: "acme", ID: "home",
	}}, []model.WorkerSlot{small}, func(model.WorkerKey) int { return 0 })
	require.Equal(t, model.QueuedPinnedAway, reason)
	require.Contains(t, message, "home")
	var many []model.WorkerSlot
	for i := range 9 {
		many = append(many, serving(fmt.Sprint("w", i), 1, nil))
	}
	_, message = w.why(next, many...)
	require.Contains(t, message, "and 4 more")
}

// T4: a command goes where its placement allows and to nobody else, and none
// waits while somebody could have it, whatever the commands and the workers.
func TestT4_PlacementsAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		pools := []string{"", "default", "a", "b"}
		label := func(name string) map[string]string {
			switch rapid.SampledFrom([]string{"", "", "x=1", "x=2", "both"}).Draw(t, name) {
			case "x=1":
				return map[string]string{"x": "1"}
			case "x=2":
				return map[string]string{"x": "2"}
			case "both":
				return map[string]string{"x": "1", "y": "1"}
			}
			return nil
		}
		for range rapid.IntRange(1, 20).Draw(t, "commands") {
			w.queue(t, &taskv1.CommandSpec{
				Cmd: "x", Pool: rapid.SampledFrom(pools).Draw(t, "pool"), WorkerLabels: label("asked"),
			})
		}
		var slots []model.WorkerSlot
		for i := range rapid.IntRange(1, 4).Draw(t, "workers") {
			of := rapid.SliceOfNDistinct(rapid.SampledFrom(pools[1:]), 0, 2, func(s string) string { return s }).
				Draw(t, "pools")
			slots = append(slots, serving(fmt.Sprint("w", i), rapid.IntRange(0, 5).Draw(t, "capacity"), label("has"),
				of...))
		}
		w.lease(t, slots...)
		for _, r := range w.state.Items {
			spec := r.Task.GetCommand()
			for _, s := range slots {
				pool := spec.GetPool()
				if pool == "" {
					pool = "default"
				}
				may := len(s.Pools) == 0 && pool == "default"
				for _, have := range s.Pools {
					may = may || have == pool
				}
				for k, v := range spec.GetWorkerLabels() {
					may = may && s.Labels[k] == v
				}
				full := len(w.state.Workers[s.Worker]) == s.Capacity
				if r.Task.GetWorkerId() == s.Worker.ID {
					require.True(t, may)
				}
				if model.AwaitsWorker(r.Task) {
					require.True(t, !may || full, "%v waits while %v has room", spec, s)
				}
			}
		}
		for _, s := range slots {
			require.LessOrEqual(t, len(w.state.Workers[s.Worker]), s.Capacity)
		}
	})
}

// T4: only a command whose caller asked for it is run again when its worker is
// lost, a bounded number of times, by whom it may, and as the oldest of all.
func TestT4_OnWorkerLoss(t *testing.T) {
	w := newWorld()
	again := &taskv1.CommandSpec{
		Cmd: "index", RestartPolicy: taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS, AcceptsInput: true,
	}
	id := w.queue(t, again)
	lost := func(reason taskv1.TaskEndReason) End {
		return End{
			TaskID: id, Generation: w.task(id).GetLeaseGeneration(), Reason: reason,
			Message: "worker w1 did not report", Bytes: 10 * w.task(id).GetLeaseGeneration(),
		}
	}
	for i := range MaxRestarts {
		later := w.queue(t, &taskv1.CommandSpec{Cmd: "other"})
		require.Equal(t, 1, w.lease(t, one(1)))
		require.True(t, w.input(t, id, true, Reach{Connected: true}).GetAcceptedInput())
		reason := []taskv1.TaskEndReason{ReasonWorkerLost, ReasonWorkerStopped}[i%2]
		old := lost(reason)
		require.True(t, w.end(t, old))
		require.False(t, w.end(t, old), "once")
		got := w.task(id)
		require.Equal(t, taskv1.TaskState_TASK_STATE_RUNNING, got.GetState(), "T2: it does not go back")
		require.Empty(t, got.GetWorkerId())
		require.EqualValues(t, i+1, got.GetRestarts())
		require.Equal(t, old.Bytes, got.GetOutputBytes(), "the next one writes behind")
		require.False(t, model.WithDerived(got).GetAcceptsInputNow())
		require.Equal(t, RefusedUnreachable, w.input(t, id, false, Reach{Connected: true}).GetReason())
		p, ok := w.events[len(w.events)-1].Payload.(*taskv1.TaskRestarting)
		require.True(t, ok)
		require.Equal(t, reason, p.GetReason())
		why, _ := w.why(id, one(1))
		require.Equal(t, model.QueuedSoon, why)
		require.NoError(t, w.stop(t, "keeper", later))
		requireIndexes(t, w.state)
	}
	require.Equal(t, 1, w.lease(t, one(1)))
	require.True(t, w.end(t, lost(ReasonWorkerLost)))
	got := w.task(id)
	require.Equal(t, taskv1.TaskState_TASK_STATE_INTERRUPTED, got.GetState())
	require.Contains(t, got.GetEndMessage(), "run again 5 times")

	// Whoever else ended it, it stays ended.
	for _, c := range []struct {
		spec   *taskv1.CommandSpec
		stop   bool
		reason taskv1.TaskEndReason
		want   taskv1.TaskState
	}{
		{&taskv1.CommandSpec{Cmd: "x"}, false, ReasonWorkerLost, taskv1.TaskState_TASK_STATE_INTERRUPTED},
		{
			&taskv1.CommandSpec{Cmd: "x", RestartPolicy: taskv1.RestartPolicy_RESTART_POLICY_NEVER}, false,
			ReasonWorkerLost, taskv1.TaskState_TASK_STATE_INTERRUPTED,
		},
		{again, true, ReasonWorkerLost, taskv1.TaskState_TASK_STATE_CANCELLED},
		{again, false, ReasonMemoryLimit, taskv1.TaskState_TASK_STATE_FAILED},
		{again, false, ReasonTimeout, taskv1.TaskState_TASK_STATE_FAILED},
		{again, false, ReasonSignalled, taskv1.TaskState_TASK_STATE_FAILED},
	} {
		id = w.queue(t, proto.CloneOf(c.spec))
		require.Equal(t, 1, w.lease(t, one(1)))
		if c.stop {
			require.NoError(t, w.stop(t, "keeper", id))
		}
		require.True(t, w.end(t, lost(c.reason)))
		require.Equal(t, c.want, w.task(id).GetState())
	}

	// One that waits to be run again can be stopped, at once.
	id = w.queue(t, again)
	require.Equal(t, 1, w.lease(t, one(1)))
	require.True(t, w.end(t, lost(ReasonWorkerLost)))
	require.NoError(t, w.stop(t, "keeper", id))
	require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLED, w.task(id).GetState())
	require.Zero(t, w.lease(t, one(1)))
	require.False(t, w.end(t, End{TaskID: id, Generation: 1, Reason: ReasonExited, ExitCode: code(0)}),
		"a late worker (X7)")
}

// The bounds of what a command may ask for, at them.
func TestT7_LimitsAtTheirBounds(t *testing.T) {
	for _, l := range []*taskv1.CommandLimits{
		nil,
		{},
		{MemoryBytes: MinMemory},
		{MemoryBytes: MaxMemory},
		{OutputBytes: 1},
		{OutputBytes: MaxOutput},
		{Processes: 1},
		{Processes: MaxProcesses},
	} {
		must.Value(CheckExec(&taskv1.ExecCommandRequest{AgentId: "keeper", Command: &taskv1.CommandSpec{
			Cmd: "x", Limits: l,
		}}))(t)
	}
}

func pinnedTo(worker string, shared bool) *taskv1.Worktree {
	return &taskv1.Worktree{WorkerId: worker, SharedWorker: shared, Path: "/srv/.quartet-worktrees/tsk_1"}
}

// T4: a command goes to the worker that holds its agent's worktree and to no
// other, however much room others have; what waits for a worker that is away
// holds up nobody behind it.
func TestT4_CommandsArePinnedToTheirWorktree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		names := []string{"a", "b", "away"}
		want := map[string]model.WorkerKey{}
		n := rapid.IntRange(1, 20).Draw(t, "commands")
		for i := range n {
			var wt *taskv1.Worktree
			pin := rapid.SampledFrom([]string{"", "", "a", "b", "away"}).Draw(t, "pin")
			shared := rapid.Bool().Draw(t, "shared")
			if pin != "" {
				wt = pinnedTo(pin, shared)
			}
			req := &taskv1.ExecCommandRequest{AgentId: fmt.Sprint("agent", i), Command: &taskv1.CommandSpec{
				Cmd: "true",
			}}
			d, err := run(t, w, func(s *model.State, env journal.Env) (journal.Decision[*taskv1.ExecCommandResponse],
				error,
			) {
				return DecideExec(s, env, req, req.GetCommand(), wt)
			})
			require.NoError(t, err)
			if pin != "" {
				want[model.TaskOf(d.Events[0]).GetTaskId()] = model.WorkerOf("acme", pin, shared)
			}
		}
		slots := []model.WorkerSlot{
			{Worker: model.WorkerKey{Namespace: "acme", ID: names[0]}, BootID: "1", Capacity: rapid.IntRange(0, 8).
				Draw(t, "capacity of a")},
			{Worker: model.WorkerKey{Namespace: "", ID: names[1]}, BootID: "1", Capacity: rapid.IntRange(0, 8).
				Draw(t, "capacity of b")},
		}
		d, err := run(t, w, func(s *model.State, env journal.Env) (journal.Decision[int], error) {
			return DecideLease(s, env, slots)
		})
		require.NoError(t, err)
		taken := map[model.WorkerKey]int{}
		for _, ev := range d.Events {
			r := w.state.Items[ev.TaskID]
			taken[r.Worker]++
			if pin, pinned := want[ev.TaskID]; pinned {
				require.Equal(t, pin, r.Worker)
			}
		}
		for _, s := range slots { // no room is left while somebody could have it
			require.LessOrEqual(t, taken[s.Worker], s.Capacity)
			if taken[s.Worker] == s.Capacity {
				continue
			}
			for id, r := range w.state.Items {
				if r.Task.GetState() == taskv1.TaskState_TASK_STATE_QUEUED {
					pin, pinned := want[id]
					require.True(t, pinned && pin != s.Worker, "%s waits while %v has room", id, s.Worker)
				}
			}
		}
	})
}
