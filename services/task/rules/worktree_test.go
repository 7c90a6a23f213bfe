package rules

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

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
