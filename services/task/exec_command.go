package task

import (
	"context"
	"errors"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// ExecCommand queues a command and waits until it ends, the yield time is over or the service
// stops (SPEC T1). A repeated request finds the task of the first one, waits for it again, and
// returns it as it is then. A request with the duplicate policy REUSE_RUNNING that finds the same
// command, queued or running, returns its task without waiting.
func (s *Service) ExecCommand(ctx context.Context, req *taskv1.ExecCommandRequest) (*taskv1.ExecCommandResponse,
	error,
) {
	actor, err := admit(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	spec, err := rules.CheckExec(req)
	if err != nil {
		return nil, err
	}
	var space Workspace
	var refused error // the rule returns it, so that a repeated request gets its first response
	if s.deps.Workspace != nil {
		space, err = s.deps.Workspace(ctx, req.GetAgentId())
		switch {
		case errors.Is(err, fault.AgentDeleted):
			refused = err
		case err != nil: // also RUN_STALE: the credential of an ended run is good for nothing
			return nil, err
		}
		if spec.GetWorkdir() == "" {
			spec.Workdir = space.Root
		}
	}
	if refused == nil && s.deps.OwnsItem != nil && req.GetWorkItemId() != "" {
		refused = s.deps.OwnsItem(ctx, req.GetAgentId(), req.GetWorkItemId())
	}
	resp, err := plane.Do(ctx, s.engine, plane.Command[*model.State, *taskv1.ExecCommandResponse]{
		Method:  taskv1.TaskService_ExecCommand_FullMethodName,
		AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: rules.RequestArguments(req),
		Decide: func(st *model.State, env journal.Env) (journal.Decision[*taskv1.ExecCommandResponse], error) {
			if refused != nil {
				return journal.Decision[*taskv1.ExecCommandResponse]{}, refused
			}
			return rules.DecideExec(st, env, req, spec, space.Worktree)
		},
		Answer: rules.AnswerExec,
	})
	if err != nil {
		return nil, err
	}
	resp, err = s.await(ctx, actor.Namespace, resp, req)
	return resp, plane.Stored(err)
}

// await waits for the end of a command that was stored, at most the yield time of the request, and returns the
// response. For a command that was running already it returns the response at once.
func (s *Service) await(ctx context.Context, ns string, stored *taskv1.ExecCommandResponse,
	req *taskv1.ExecCommandRequest,
) (*taskv1.ExecCommandResponse, error) {
	if stored.GetOutcome() == taskv1.ExecOutcome_EXEC_OUTCOME_ALREADY_RUNNING {
		return s.execResponse(ctx, ns, stored.GetTask(), stored.GetOutcome(), req)
	}
	// CheckExec has checked it
	yield, _ := rules.DurationIn("yield_time", req.GetYieldTime(), rules.DefaultYield, 0, rules.MaxYield)
	t, err := s.awaitEnd(ctx, ns, stored.GetTask(), s.clk.Now().Add(yield))
	if err != nil {
		return nil, err
	}
	outcome := taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK
	if model.Terminal(t.GetState()) {
		outcome = taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED
	}
	return s.execResponse(ctx, ns, t, outcome, req)
}

// execResponse returns the response of ExecCommand with an outcome, the task t and the end of
// its output.
func (s *Service) execResponse(ctx context.Context, ns string, t *taskv1.Task, outcome taskv1.ExecOutcome,
	req *taskv1.ExecCommandRequest,
) (*taskv1.ExecCommandResponse, error) {
	limit := int(req.GetMaxOutput())
	if limit == 0 {
		limit = rules.DefaultMaxOutput
	}
	resp := &taskv1.ExecCommandResponse{Outcome: outcome, Task: s.present(ns, t)}
	resp.Handle = &taskv1.TaskHandle{TaskId: t.GetTaskId(), TaskKind: t.GetKind(), Status: t.GetState()}
	if t.GetState() == taskv1.TaskState_TASK_STATE_QUEUED {
		return resp, nil // there is no output yet
	}
	piece, err := s.output.Read(ctx, ns, t.GetTaskId(), output.FromEnd(limit), limit)
	if err != nil {
		return nil, err
	}
	text := output.EndText(piece, limit)
	if outcome != taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED {
		resp.Handle.InitialOutput = text
		return resp, nil
	}
	resp.Output = text
	resp.OutputTruncated = piece.Start > 0 || t.GetOutputTruncated()
	return resp, nil
}

// awaitEnd waits until a task ended, the time until is reached, or the service stops, and
// returns the task as it is on disk then, without derived fields. If ctx ends first, it returns an error.
func (s *Service) awaitEnd(ctx context.Context, ns string, t *taskv1.Task, until time.Time) (*taskv1.Task, error) {
	changes := s.watches.Subscribe(t.GetTaskId())
	defer changes.Close()
	timer := s.clk.TimerAt(until)
	defer timer.Stop()
	for over := false; ; {
		over = over || !s.clk.Now().Before(until) // then the task is read once more: it may have ended just now
		now, err := s.read(ctx, ns, t.GetAgentId(), t.GetTaskId())
		if err != nil || over || model.Terminal(now.GetState()) {
			return now, err
		}
		select {
		case <-changes.C():
		case <-timer.C():
			over = true
		case <-ctx.Done():
			return nil, fault.From(ctx.Err())
		case <-s.watches.Stopped():
			return now, nil // the task is durable, and can be read after the restart
		}
	}
}
