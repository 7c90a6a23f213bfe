package rules

import (
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// DecideStop stops a task (SPEC T3): one that waits for a worker is cancelled at once, a
// running one is asked to stop, and a command that was asked before is to be killed. A
// further call, or a second one for a child, changes nothing. It refuses a task that has
// ended with TASK_NOT_RUNNING.
func DecideStop(s *model.State, env journal.Env, req *taskv1.StopTaskRequest) (
	journal.Decision[*taskv1.StopTaskResponse], error,
) {
	var d journal.Decision[*taskv1.StopTaskResponse]
	ns := env.Actor.Namespace
	r := s.FindTask(ns, req.GetAgentId(), req.GetTaskId())
	if r == nil {
		return d, model.NotFound(req.GetTaskId(), req.GetAgentId())
	}
	state := r.Task.GetState()
	if model.Terminal(state) {
		return d, fault.TaskNotRunning.New("task "+req.GetTaskId()+" has ended: "+model.StateName(state)+
			"; there is nothing to stop",
			"task_id", req.GetTaskId(), "state", model.StateName(state))
	}
	if r.StopForced || model.IsChild(r.Task) && state == taskv1.TaskState_TASK_STATE_CANCELLING {
		d.Reply = &taskv1.StopTaskResponse{Task: r.Task} // it is being killed already
		return d, nil
	}
	d.Events = []*journal.Event{stopEvent(env, ns, r, "stopped before it was started")}
	return d, nil
}

// stopEvent returns the event that stops a task that has not ended. unstarted is the
// end message of one that no worker has.
func stopEvent(env journal.Env, ns string, r *model.Record, unstarted string) *journal.Event {
	t := model.NextRevision(r.Task)
	switch {
	case model.AwaitsWorker(r.Task):
		t.State = taskv1.TaskState_TASK_STATE_CANCELLED
		t.EndReason, t.EndMessage = ReasonStopped, unstarted
		t.EndedAt = model.Timestamp(env.Now)
		return model.NewEvent(ns, t, &taskv1.TaskCancelled{Task: t})
	case r.Task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING:
		return model.NewEvent(ns, t, &taskv1.TaskCancelling{Task: t, Force: true})
	default:
		t.State = taskv1.TaskState_TASK_STATE_CANCELLING
		return model.NewEvent(ns, t, &taskv1.TaskCancelling{Task: t})
	}
}
