package task

import (
	"context"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// StopTask asks a task to stop, and a second time kills its command (SPEC T3). It does not
// wait for the end.
func (s *Service) StopTask(ctx context.Context, req *taskv1.StopTaskRequest) (*taskv1.StopTaskResponse, error) {
	actor, err := s.admitWrite(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*model.State, *taskv1.StopTaskResponse]{
		Frees: true, Method: taskv1.TaskService_StopTask_FullMethodName,
		AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *model.State, env journal.Env) (journal.Decision[*taskv1.StopTaskResponse], error) {
			return rules.DecideStop(st, env, req)
		},
		Answer: func(events []*journal.Event) (*taskv1.StopTaskResponse, error) {
			return &taskv1.StopTaskResponse{Task: model.TaskOf(events[0])}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return &taskv1.StopTaskResponse{Task: s.present(actor.Namespace, resp.GetTask())}, nil
}
