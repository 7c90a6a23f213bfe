package task

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
)

// Why SendTaskInput refuses. A refusal is a normal answer (SPEC T3) and is not
// remembered under the request id, so that the same call may succeed later.
const (
	refusedNotRunning  = "task_not_running"
	refusedNoInput     = "input_not_accepted"
	refusedEnded       = "input_ended"
	refusedUnreachable = "worker_unreachable"
	refusedBacklog     = "input_backlog"
)

// maxUnconfirmed bounds input that the worker has not confirmed. State keeps
// twice as many, so none that may have to be sent again is gone.
const maxUnconfirmed = keptInputs / 2

// reach is what the service knows of a task's worker, and the rule does not.
type reach struct {
	connected bool
	confirmed int64 // the last input that the worker handed to the command
}

func decideInput(s *State, env journal.Env, req *taskv1.SendTaskInputRequest, to reach) (journal.Decision[*taskv1.SendTaskInputResponse], error) {
	var d journal.Decision[*taskv1.SendTaskInputResponse]
	ns := env.Actor.Namespace
	r := s.find(ns, req.GetAgentId(), req.GetTaskId())
	if r == nil {
		return d, notFound(req.GetTaskId(), req.GetAgentId())
	}
	spec := r.task.GetCommand()
	target := "stdin"
	if spec.GetTty() {
		target = "tty"
	}
	var refusal string
	switch {
	case r.task.GetState() != taskv1.TaskState_TASK_STATE_RUNNING:
		refusal = refusedNotRunning
	case !spec.GetTty() && !spec.GetAcceptsInput():
		refusal = refusedNoInput
	case r.inputEnd:
		refusal = refusedEnded
	case waits(r.task), !to.connected:
		refusal = refusedUnreachable
	case r.inputSeq-to.confirmed >= maxUnconfirmed:
		refusal = refusedBacklog
	}
	if refusal != "" {
		d.Reply = &taskv1.SendTaskInputResponse{InputTarget: target, Reason: refusal}
		return d, nil
	}
	d.Events = []*journal.Event{event(ns, r.task, &taskv1.TaskInputAccepted{
		TaskId: req.GetTaskId(), Bytes: int64(len(req.GetText())), Data: []byte(req.GetText()),
		InputSeq: r.inputSeq + 1, InputTarget: target, EndOfInput: req.GetEndOfInput(),
	})}
	return d, nil
}

func answerInput(events []*journal.Event) (*taskv1.SendTaskInputResponse, error) {
	p, _ := events[0].Payload.(*taskv1.TaskInputAccepted)
	return &taskv1.SendTaskInputResponse{AcceptedInput: true, InputTarget: p.GetInputTarget(), BytesWritten: p.GetBytes()}, nil
}

// SendTaskInput writes to a running command (SPEC T3).
func (s *Service) SendTaskInput(ctx context.Context, req *taskv1.SendTaskInputRequest) (*taskv1.SendTaskInputResponse, error) {
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
	if req.GetText() == "" && !req.GetEndOfInput() {
		return nil, fault.InvalidArgument.New("text is empty; give text, or end_of_input to close the input").
			WithField("text", "is required without end_of_input")
	}
	// NUL is fine on a pipe, so only the size counts.
	if err := fault.Bytes("text", len(req.GetText()), fault.MaxFreeTextBytes); err != nil {
		return nil, err
	}
	if t, err := s.read(ctx, actor.Namespace, req.GetAgentId(), req.GetTaskId()); err != nil {
		return nil, err
	} else if isChild(t) {
		return s.inputToChild(ctx, t, actor.Principal, req)
	}
	to := s.reachOf(req.GetTaskId())
	resp, done, err := journal.Do(ctx, s.engine.For(actor.Namespace, req.GetAgentId()), journal.Op[*State, *taskv1.SendTaskInputResponse]{
		Method: taskv1.TaskService_SendTaskInput_FullMethodName, Actor: actor,
		AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*taskv1.SendTaskInputResponse], error) {
			return decideInput(st, env, req, to)
		},
		Answer: answerInput,
	})
	if done.Replayed {
		rpc.Replayed(ctx)
	}
	return resp, err
}
