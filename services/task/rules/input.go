package rules

import (
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/services/task/model"
)

// Reasons for which SendTaskInput does not accept input. That is a normal response
// (SPEC T3), which is not remembered under the request id, so that the same call may
// succeed later.
const (
	RefusedNotRunning  = "task_not_running"
	RefusedNoInput     = "input_not_accepted"
	refusedEnded       = "input_ended"
	RefusedUnreachable = "worker_unreachable"
	RefusedBacklog     = "input_backlog"
)

// maxUnconfirmed bounds the inputs that the worker has not confirmed. The state keeps
// twice as many, so that all that may have to be sent again are kept.
const maxUnconfirmed = model.KeptInputs / 2

// Reach is what the state does not have of a task's worker.
type Reach struct {
	Connected      bool
	ConfirmedInput int64 // the last input that the worker wrote to the command
}

// DecideInput accepts input for a command, or says in the reply why not.
func DecideInput(s *model.State, env journal.Env, req *taskv1.SendTaskInputRequest, to Reach) (journal.Decision[*taskv1.SendTaskInputResponse], error) {
	var d journal.Decision[*taskv1.SendTaskInputResponse]
	ns := env.Actor.Namespace
	r := s.FindTask(ns, req.GetAgentId(), req.GetTaskId())
	if r == nil {
		return d, model.NotFound(req.GetTaskId(), req.GetAgentId())
	}
	spec := r.Task.GetCommand()
	target := "stdin"
	if spec.GetTty() {
		target = "tty"
	}
	var refusal string
	switch {
	case r.Task.GetState() != taskv1.TaskState_TASK_STATE_RUNNING:
		refusal = RefusedNotRunning
	case !spec.GetTty() && !spec.GetAcceptsInput():
		refusal = RefusedNoInput
	case r.InputEnded:
		refusal = refusedEnded
	case model.AwaitsWorker(r.Task), !to.Connected:
		refusal = RefusedUnreachable
	case r.InputSeq-to.ConfirmedInput >= maxUnconfirmed:
		refusal = RefusedBacklog
	}
	if refusal != "" {
		d.Reply = &taskv1.SendTaskInputResponse{InputTarget: target, Reason: refusal}
		return d, nil
	}
	d.Events = []*journal.Event{model.NewEvent(ns, r.Task, &taskv1.TaskInputAccepted{
		TaskId: req.GetTaskId(), Bytes: int64(len(req.GetText())), Data: []byte(req.GetText()),
		InputSeq: r.InputSeq + 1, InputTarget: target, EndOfInput: req.GetEndOfInput(),
	})}
	return d, nil
}

// AnswerInput builds the response from the events.
func AnswerInput(events []*journal.Event) (*taskv1.SendTaskInputResponse, error) {
	p, _ := events[0].Payload.(*taskv1.TaskInputAccepted)
	return &taskv1.SendTaskInputResponse{AcceptedInput: true, InputTarget: p.GetInputTarget(), BytesWritten: p.GetBytes()}, nil
}
