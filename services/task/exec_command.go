package task

import (
	"context"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
	"quartet/services/task/model"
	"quartet/services/task/output"
	"quartet/services/task/rules"
)

// ExecCommand implements SPEC T1. A repeated request id finds the task of the
// first request, waits for it again, and answers with how it stands then.
func (s *Service) ExecCommand(ctx context.Context, req *taskv1.ExecCommandRequest) (*taskv1.ExecCommandResponse, error) {
	actor, err := s.agentActor(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	spec, err := rules.CheckExec(req)
	if err != nil {
		return nil, err
	}
	var space Workspace
	if s.deps.Workspace != nil {
		if space, err = s.deps.Workspace(ctx, req.GetAgentId()); err != nil {
			return nil, err
		}
		if spec.GetWorkdir() == "" {
			spec.Workdir = space.Root
		}
	}
	var refused error
	if s.deps.OwnsItem != nil && req.GetWorkItemId() != "" {
		refused = s.deps.OwnsItem(ctx, req.GetAgentId(), req.GetWorkItemId())
	}
	p := s.engine.For(actor.Namespace, req.GetAgentId())
	resp, done, err := journal.Do(ctx, p, journal.Op[*model.State, *taskv1.ExecCommandResponse]{
		Method: taskv1.TaskService_ExecCommand_FullMethodName, Actor: actor,
		AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Recall: rpc.Recalling(ctx), Args: rules.RequestArguments(req),
		Decide: func(st *model.State, env journal.Env) (journal.Decision[*taskv1.ExecCommandResponse], error) {
			if refused != nil { // for the rule to say: a repetition has its first answer
				return journal.Decision[*taskv1.ExecCommandResponse]{}, refused
			}
			return rules.DecideExec(st, env, req, spec, space.Worktree)
		},
		Answer: rules.AnswerExec,
	})
	if done.Replayed {
		rpc.Replayed(ctx)
	}
	if err != nil {
		return nil, err
	}
	if resp.GetOutcome() == taskv1.ExecOutcome_EXEC_OUTCOME_ALREADY_RUNNING {
		return s.execAnswer(ctx, actor.Namespace, resp.GetTask(), resp.GetOutcome(), req)
	}
	yield, _ := rules.DurationIn("yield_time", req.GetYieldTime(), rules.DefaultYield, 0, rules.MaxYield) // checked above
	t, err := s.awaitEnd(ctx, actor.Namespace, resp.GetTask(), s.clk.Now().Add(yield))
	if err != nil {
		return nil, err
	}
	outcome := taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK
	if model.Terminal(t.GetState()) {
		outcome = taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED
	}
	return s.execAnswer(ctx, actor.Namespace, t, outcome, req)
}

// execAnswer adds the end of the output to an outcome.
func (s *Service) execAnswer(ctx context.Context, ns string, t *taskv1.Task, outcome taskv1.ExecOutcome, req *taskv1.ExecCommandRequest) (*taskv1.ExecCommandResponse, error) {
	most := int(req.GetMaxOutput())
	if most == 0 {
		most = rules.DefaultMaxOutput
	}
	resp := &taskv1.ExecCommandResponse{Outcome: outcome, Task: s.present(ns, t)}
	resp.Handle = &taskv1.TaskHandle{TaskId: t.GetTaskId(), TaskKind: t.GetKind(), Status: t.GetState()}
	if t.GetState() == taskv1.TaskState_TASK_STATE_QUEUED {
		return resp, nil // nothing was written yet
	}
	piece, err := s.output.Read(ctx, ns, t.GetTaskId(), output.FromEnd(most), most)
	if err != nil {
		return nil, err
	}
	text := output.EndText(piece, most)
	if outcome != taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED {
		resp.Handle.InitialOutput = text
		return resp, nil
	}
	resp.Output = text
	resp.OutputTruncated = piece.Start > 0 || t.GetOutputTruncated()
	return resp, nil
}

// awaitEnd returns a task once it ended, or until passes, or the service stops,
// whichever is first, as it stands on disk (R4). It sleeps on a signal and
// polls nothing.
func (s *Service) awaitEnd(ctx context.Context, ns string, t *taskv1.Task, until time.Time) (*taskv1.Task, error) {
	watch := s.watches.add(t.GetTaskId())
	defer watch.remove()
	timer := s.clk.TimerAt(until)
	defer timer.Stop()
	for last := false; ; {
		now, err := s.read(ctx, ns, t.GetAgentId(), t.GetTaskId())
		if err != nil || last || model.Terminal(now.GetState()) {
			return now, err
		}
		select {
		case <-watch.c:
		case <-timer.C():
			last = true // one more look: the end may have come with the alarm
		case <-ctx.Done():
			return nil, fault.From(ctx.Err())
		case <-s.quit:
			return now, nil // the task is durable; it can be followed after the restart
		}
	}
}
