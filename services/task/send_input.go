package task

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// SendTaskInput writes to the input of a running command, or sends a message to a
// child (SPEC T3).
func (s *Service) SendTaskInput(ctx context.Context, req *taskv1.SendTaskInputRequest) (*taskv1.SendTaskInputResponse,
	error,
) {
	actor, err := s.admitWrite(ctx, req)
	if err != nil {
		return nil, err
	}
	if req.GetText() == "" && !req.GetEndOfInput() {
		return nil, fault.InvalidArgument.New("text is empty; give text, or end_of_input to close the input").
			WithField("text", "is required without end_of_input")
	}
	// Any bytes may be written to a pipe, NUL included, so only the size is checked.
	if err := fault.Bytes("text", len(req.GetText()), fault.MaxFreeTextBytes); err != nil {
		return nil, err
	}
	if req.GetWaitId() != "" {
		if err := fault.ID("wait_id", req.GetWaitId(), "wt_"); err != nil {
			return nil, err
		}
	}
	if t, err := s.read(ctx, actor.Namespace, req.GetAgentId(), req.GetTaskId()); err != nil {
		return nil, err
	} else if model.IsChild(t) {
		return s.inputToChild(ctx, t, actor.Principal, req)
	}
	if req.GetWaitId() != "" {
		return nil, fault.Invalid("wait_id", req.GetWaitId(), "must be empty: the task is a command, and only a "+
			"child asks questions")
	}
	reach := s.workers.Reach(req.GetTaskId())
	return plane.Do(ctx, s.engine, plane.Command[*model.State, *taskv1.SendTaskInputResponse]{
		Method:  taskv1.TaskService_SendTaskInput_FullMethodName,
		AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *model.State, env journal.Env) (journal.Decision[*taskv1.SendTaskInputResponse], error) {
			return rules.DecideInput(st, env, req, reach)
		},
		Answer: rules.AnswerInput,
	})
}
