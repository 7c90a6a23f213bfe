package task

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// aboutTask is a request about one task.
type aboutTask interface {
	GetAgentId() string
	GetTaskId() string
}

// admitRead returns the caller of a request that reads a task, and validates its ids.
func (s *Service) admitRead(ctx context.Context, req aboutTask) (journal.Actor, error) {
	actor, err := admit(ctx, req.GetAgentId())
	return actor, fault.First(err, fault.Name("agent_id", req.GetAgentId()), fault.Name("task_id", req.GetTaskId()))
}

// admitWrite returns the caller of a request that changes a task, and validates its ids.
func (s *Service) admitWrite(ctx context.Context, req interface {
	aboutTask
	GetRequestId() string
},
) (journal.Actor, error) {
	actor, err := admit(ctx, req.GetAgentId())
	return actor, fault.First(err, fault.Name("agent_id", req.GetAgentId()), fault.Name("task_id", req.GetTaskId()),
		fault.RequestID(req.GetRequestId()))
}

// GetTask reads a task without its output (SPEC T3).
func (s *Service) GetTask(ctx context.Context, req *taskv1.GetTaskRequest) (*taskv1.GetTaskResponse, error) {
	actor, err := s.admitRead(ctx, req)
	if err != nil {
		return nil, err
	}
	t, err := s.read(ctx, actor.Namespace, req.GetAgentId(), req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return &taskv1.GetTaskResponse{Task: s.present(actor.Namespace, t)}, nil
}

// read returns a task as it is on disk, without derived fields; NOT_FOUND if the agent has
// none of that id.
func (s *Service) read(ctx context.Context, ns, agent, taskID string) (*taskv1.Task, error) {
	t, _, err := journal.View(ctx, s.engine.For(ns, agent), func(st *model.State) (*taskv1.Task, error) {
		r := st.FindTask(ns, agent, taskID)
		if r == nil {
			return nil, model.NotFound(taskID, agent)
		}
		return r.Task, nil
	})
	return t, err
}

// present returns a task as readers see it: with derived fields, with the amount
// of output that a running command has written so far, and with the reason for
// which a queued command has no worker yet.
func (s *Service) present(ns string, t *taskv1.Task) *taskv1.Task {
	return s.presentAll(ns, []*taskv1.Task{t})[0]
}

// presentAll is present for several tasks of a namespace.
func (s *Service) presentAll(ns string, tasks []*taskv1.Task) []*taskv1.Task {
	out := make([]*taskv1.Task, len(tasks))
	var slots []model.WorkerSlot
	var running map[model.WorkerKey]int
	for i, t := range tasks {
		c := model.WithDerived(t)
		if model.HeldByWorker(t.GetState()) {
			c.OutputBytes = max(c.GetOutputBytes(), s.workers.OutputEnd(t.GetTaskId()))
		}
		if model.AwaitsWorker(t) {
			if running == nil {
				slots, running = s.workers.Slots(), s.workers.CountRunning()
			}
			c.QueueReason, c.QueueMessage = model.ExplainQueued(model.PlacementOf(ns, t), slots,
				func(w model.WorkerKey) int { return running[w] })
		}
		out[i] = c
	}
	return out
}
