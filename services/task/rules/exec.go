package rules

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/services/task/model"
)

// DecideExec queues a command. If the request asks for reuse and the agent has the same command,
// queued or running and not being stopped, it returns that one instead (SPEC T1, see sameCommand).
// It refuses a deleted agent. spec is the command from CheckExec. worktree, if the agent has one,
// names the only worker that may run a new command.
func DecideExec(s *model.State, env journal.Env, req *taskv1.ExecCommandRequest, spec *taskv1.CommandSpec,
	worktree *taskv1.Worktree,
) (journal.Decision[*taskv1.ExecCommandResponse], error) {
	var d journal.Decision[*taskv1.ExecCommandResponse]
	ns, agent := env.Actor.Namespace, req.GetAgentId()
	if s.Deleted[model.Owner{Namespace: ns, ID: agent}] || s.WasErased(ns, agent) {
		return d, fault.AgentDeleted.Newf("agent %q is deleted; no command is started for it", agent).
			With("agent_id", agent)
	}
	if req.GetDuplicatePolicy() == taskv1.DuplicatePolicy_DUPLICATE_POLICY_REUSE_RUNNING {
		if same := runningCommand(s, model.Owner{Namespace: ns, ID: agent}, spec); same != nil {
			d.Reply = &taskv1.ExecCommandResponse{
				Outcome: taskv1.ExecOutcome_EXEC_OUTCOME_ALREADY_RUNNING,
				Task:    same.Task,
			}
			return d, nil
		}
	}
	t := &taskv1.Task{
		TaskId:     env.NewID("tsk_"),
		AgentId:    agent,
		Kind:       taskv1.TaskKind_TASK_KIND_COMMAND_TASK,
		State:      taskv1.TaskState_TASK_STATE_QUEUED,
		Label:      commandLabel(spec),
		WorkItemId: req.GetWorkItemId(),
		Command:    spec,
		Blocking:   req.GetBlocking(),
		Revision:   1,
		CreatedAt:  model.Timestamp(env.Now),

		Traceparent: env.Traceparent,

		PinnedWorkerId:     worktree.GetWorkerId(),
		PinnedSharedWorker: worktree.GetSharedWorker(),
	}
	d.Events = []*journal.Event{model.NewEvent(ns, t, &taskv1.TaskQueued{Task: t})}
	return d, nil
}

// runningCommand returns the oldest active command of an owner that is the same as
// spec and was not asked to stop, or nil.
func runningCommand(s *model.State, o model.Owner, spec *taskv1.CommandSpec) *model.Record {
	var found *model.Record
	for r := range s.Active(o) {
		if r.Task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING || !sameCommand(r.Task.GetCommand(), spec) {
			continue
		}
		if found == nil || r.Ordinal < found.Ordinal {
			found = r
		}
	}
	return found
}

// sameCommand reports whether two commands are the same: they run the same program in
// the same directory, with the same variables and placement, and both or neither on a
// terminal. Limits, timeout, restart policy and whether they accept input do not matter.
func sameCommand(a, b *taskv1.CommandSpec) bool {
	return plane.EqualExcept(a, b, "limits", "timeout", "restart_policy", "accepts_input")
}

// commandLabel describes a command in one line of at most labelChars characters. White space is
// folded, and a longer line ends with "…".
func commandLabel(spec *taskv1.CommandSpec) string {
	line := spec.GetCmd()
	if line == "" {
		line = strings.Join(spec.GetArgv(), " ")
	}
	line = strings.Join(strings.Fields(line), " ")
	if utf8.RuneCountInString(line) <= labelChars {
		return line
	}
	return string([]rune(line)[:labelChars-1]) + "…"
}

// RequestArguments returns the part of a request by which a repeated one is recognized
// (SPEC X2). The yield time is not part of it, since a repeated call may have less
// time left.
func RequestArguments(req *taskv1.ExecCommandRequest) *taskv1.ExecCommandRequest {
	args := proto.CloneOf(req)
	args.YieldTime = nil
	return args
}

// AnswerExec builds the response of ExecCommand from its events: the task as it was queued.
func AnswerExec(events []*journal.Event) (*taskv1.ExecCommandResponse, error) {
	return &taskv1.ExecCommandResponse{Task: model.TaskOf(events[0])}, nil
}
