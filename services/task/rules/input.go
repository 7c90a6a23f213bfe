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
	RefusedNoInput     = "input_not_accepted" // the command was started without input
	refusedEnded       = "input_ended"        // the input was closed before
	RefusedUnreachable = "worker_unreachable" // no worker has it, or the worker is not connected
	RefusedBacklog     = "input_backlog"      // too much input is unconfirmed, or the child's lane is full
)

// maxUnconfirmed bounds the inputs that the worker has not confirmed. The state keeps
// twice as many, so that all that may have to be sent again are kept.
const maxUnconfirmed = model.KeptInputs / 2

// Reach is what only the Hub knows of the worker that has a command.
type Reach struct {
	Connected      bool
	ConfirmedInput int64 // the last input that the worker wrote to the command
}

// DecideInput accepts input for a command, or says in the reply why not.
func DecideInput(s *model.State, env journal.Env, req *taskv1.SendTaskInputRequest, to Reach) (
	journal.Decision[*taskv1.SendTaskInputResponse], error,
) {
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

// AnswerInput builds the response of SendTaskInput from its events.
func AnswerInput(events []*journal.Event) (*taskv1.SendTaskInputResponse, error) {
	p, _ := events[0].Payload.(*taskv1.TaskInputAccepted)
	return &taskv1.SendTaskInputResponse{
		AcceptedInput: true, InputTarget: p.GetInputTarget(),
		BytesWritten: p.GetBytes(),
	}, nil
}
