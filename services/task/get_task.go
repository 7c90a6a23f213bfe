package task

import (
	"context"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

func notFound(taskID, agent string) error {
	return fault.NotFound.New("agent "+agent+" has no task "+taskID+"; ListTasks with include_terminal shows what it has",
		"task_id", taskID, "agent_id", agent)
}

// checkRef validates the coordinates of a task.
func checkRef(agent, taskID string) error {
	if err := fault.Name("agent_id", agent); err != nil {
		return err
	}
	return fault.Name("task_id", taskID)
}

// GetTask reads a task's lifecycle, never its output (SPEC T3).
func (s *Service) GetTask(ctx context.Context, req *taskv1.GetTaskRequest) (*taskv1.GetTaskResponse, error) {
	actor, err := s.reader(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if err := checkRef(req.GetAgentId(), req.GetTaskId()); err != nil {
		return nil, err
	}
	t, err := s.read(ctx, actor.Namespace, req.GetAgentId(), req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return &taskv1.GetTaskResponse{Task: s.present(actor.Namespace, t)}, nil
}

// read gives a task as it is on disk, without derived fields.
func (s *Service) read(ctx context.Context, ns, agent, taskID string) (*taskv1.Task, error) {
	t, _, err := journal.View(ctx, s.engine.For(ns, agent), func(st *State) (*taskv1.Task, error) {
		r := st.find(ns, agent, taskID)
		if r == nil {
			return nil, notFound(taskID, agent)
		}
		return r.task, nil
	})
	return t, err
}

// shown gives a task as a reader sees it, with its derived fields (SPEC X6).
func shown(t *taskv1.Task) *taskv1.Task {
	c := proto.CloneOf(t)
	c.Terminal = terminal(t.GetState())
	c.AcceptsInputNow = t.GetState() == taskv1.TaskState_TASK_STATE_RUNNING &&
		!waits(t) && (isChild(t) || t.GetCommand().GetAcceptsInput() || t.GetCommand().GetTty())
	return c
}

// present is shown, with the output that a live task has written so far, and why
// one that waits for a worker does.
func (s *Service) present(ns string, t *taskv1.Task) *taskv1.Task {
	return s.presentAll(ns, []*taskv1.Task{t})[0]
}

func (s *Service) presentAll(ns string, tasks []*taskv1.Task) []*taskv1.Task {
	out := make([]*taskv1.Task, len(tasks))
	var slots []slot
	var running map[workerKey]int
	for i, t := range tasks {
		c := shown(t)
		if live(t.GetState()) {
			c.OutputBytes = max(c.GetOutputBytes(), s.lives.outputEnd(t.GetTaskId()))
		}
		if waits(t) {
			if running == nil {
				slots, running = s.floor.slots(), s.lives.running()
			}
			c.QueueReason, c.QueueMessage = whyQueued(placementOf(ns, t), slots, func(w workerKey) int { return running[w] })
		}
		out[i] = c
	}
	return out
}
