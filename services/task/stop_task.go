package task

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
)

// decideStop: what is queued is cancelled at once, what runs is asked to stop,
// and asked again it is killed (SPEC T3).
func decideStop(s *State, env journal.Env, req *taskv1.StopTaskRequest) (journal.Decision[*taskv1.StopTaskResponse], error) {
	var d journal.Decision[*taskv1.StopTaskResponse]
	ns := env.Actor.Namespace
	r := s.find(ns, req.GetAgentId(), req.GetTaskId())
	if r == nil {
		return d, notFound(req.GetTaskId(), req.GetAgentId())
	}
	state := r.task.GetState()
	if terminal(state) {
		return d, fault.TaskNotRunning.New("task "+req.GetTaskId()+" has ended: "+stateName(state)+"; there is nothing to stop",
			"task_id", req.GetTaskId(), "state", stateName(state))
	}
	if r.forced || isChild(r.task) && state == taskv1.TaskState_TASK_STATE_CANCELLING {
		d.Reply = &taskv1.StopTaskResponse{Task: r.task} // killing it once more changes nothing
		return d, nil
	}
	d.Events = []*journal.Event{stopEvent(env, ns, r, "stopped before it was started")}
	return d, nil
}

// stopEvent is the next step towards the end of a task that has not ended.
// unstarted is what one says of it that no worker had.
func stopEvent(env journal.Env, ns string, r *record, unstarted string) *journal.Event {
	t := next(r.task)
	switch {
	case waits(r.task):
		t.State = taskv1.TaskState_TASK_STATE_CANCELLED
		t.EndReason, t.EndMessage = reasonStopped, unstarted
		t.EndedAt = stamp(env.Now)
		return event(ns, t, &taskv1.TaskCancelled{Task: t})
	case r.task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING:
		return event(ns, t, &taskv1.TaskCancelling{Task: t, Force: true})
	default:
		t.State = taskv1.TaskState_TASK_STATE_CANCELLING
		return event(ns, t, &taskv1.TaskCancelling{Task: t})
	}
}

// StopTask implements SPEC T3. Its answer does not wait for the command to end.
func (s *Service) StopTask(ctx context.Context, req *taskv1.StopTaskRequest) (*taskv1.StopTaskResponse, error) {
	actor, err := s.agentActor(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if err := checkRef(req.GetAgentId(), req.GetTaskId()); err != nil {
		return nil, err
	}
	if err := fault.RequestID(req.GetRequestId()); err != nil {
		return nil, err
	}
	resp, done, err := journal.Do(ctx, s.engine.For(actor.Namespace, req.GetAgentId()), journal.Op[*State, *taskv1.StopTaskResponse]{
		Method: taskv1.TaskService_StopTask_FullMethodName, Actor: actor,
		AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Recall: rpc.Recalling(ctx), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*taskv1.StopTaskResponse], error) {
			return decideStop(st, env, req)
		},
		Answer: func(events []*journal.Event) (*taskv1.StopTaskResponse, error) {
			return &taskv1.StopTaskResponse{Task: taskOf(events[0])}, nil
		},
	})
	if done.Replayed {
		rpc.Replayed(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &taskv1.StopTaskResponse{Task: s.present(actor.Namespace, resp.GetTask())}, nil
}
