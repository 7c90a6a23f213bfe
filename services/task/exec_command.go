package task

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
)

// Limits of ExecCommand (SPEC T1).
const (
	DefaultYield     = 10 * time.Second
	MaxYield         = 45 * time.Second
	DefaultTimeout   = time.Hour
	MaxTimeout       = 24 * time.Hour
	DefaultMaxOutput = 32_000
	MaxMaxOutput     = 256_000

	// Linux takes at most 128 KiB for one argument and cmd becomes one.
	maxCommandBytes = 64 << 10
	maxArgs         = 1000
	maxEnvBytes     = 64 << 10
	maxEnvEntries   = 256
	maxWorkdirBytes = 4096
	labelChars      = 120

	// reservedEnv begins the names by which a worker knows its processes.
	reservedEnv = "QUARTET_"
)

// checkExec validates a request and gives the command as it will be stored:
// clean working directory, timeout filled in.
func checkExec(req *taskv1.ExecCommandRequest) (*taskv1.CommandSpec, error) {
	if err := fault.Name("agent_id", req.GetAgentId()); err != nil {
		return nil, err
	}
	if err := fault.RequestID(req.GetRequestId()); err != nil {
		return nil, err
	}
	if item := req.GetWorkItemId(); item != "" {
		if err := fault.Name("work_item_id", item); err != nil {
			return nil, err
		}
	}
	if _, known := taskv1.DuplicatePolicy_name[int32(req.GetDuplicatePolicy())]; !known {
		return nil, fault.Invalid("duplicate_policy", req.GetDuplicatePolicy().String(), "must be start_new or reuse_running")
	}
	if n := req.GetMaxOutput(); n < 0 || n > MaxMaxOutput {
		return nil, fault.LimitExceeded.Newf("max_output is %d; it must be 0 (default) to %d bytes", n, MaxMaxOutput).
			WithField("max_output", "must be 0 to 256000")
	}
	if _, err := duration("yield_time", req.GetYieldTime(), DefaultYield, 0, MaxYield); err != nil {
		return nil, err
	}
	spec := req.GetCommand()
	timeout, err := duration("command.timeout", spec.GetTimeout(), DefaultTimeout, time.Millisecond, MaxTimeout)
	if err != nil {
		return nil, err
	}
	for _, check := range []func(*taskv1.CommandSpec) error{checkProgram, checkEnv, checkWorkdir, checkPlacement, checkLimits} {
		if err := check(spec); err != nil {
			return nil, err
		}
	}
	spec = proto.CloneOf(spec)
	spec.Timeout = durationpb.New(timeout)
	if spec.GetWorkdir() != "" {
		spec.Workdir = path.Clean(spec.GetWorkdir())
	}
	return spec, nil
}

// duration reads an optional duration; a missing one is def.
func duration(field string, d *durationpb.Duration, def, low, high time.Duration) (time.Duration, error) {
	if d == nil {
		return def, nil
	}
	v := d.AsDuration()
	if d.CheckValid() != nil || v < low || v > high {
		return 0, fault.LimitExceeded.New(field+" is "+v.String()+"; it must be "+low.String()+" to "+high.String(),
			"field", field, "value", v.String(), "limit", high.String()).
			WithField(field, "must be "+low.String()+" to "+high.String())
	}
	return v, nil
}

func checkProgram(spec *taskv1.CommandSpec) error {
	cmd, argv := spec.GetCmd(), spec.GetArgv()
	switch {
	case cmd == "" && len(argv) == 0:
		return fault.InvalidArgument.New("command has neither cmd nor argv; give a shell line in cmd, or a program and its arguments in argv").
			WithField("command", "needs cmd or argv")
	case cmd != "" && len(argv) > 0:
		return fault.InvalidArgument.New("command has both cmd and argv; give one of them").
			WithField("command", "takes one of cmd and argv")
	}
	if err := fault.TextBytes("command.cmd", cmd, maxCommandBytes, false); err != nil {
		return err
	}
	if cmd != "" && strings.TrimSpace(cmd) == "" {
		return fault.Invalid("command.cmd", cmd, "must not be blank")
	}
	if err := fault.Entries("command.argv", len(argv), maxArgs); err != nil {
		return err
	}
	total := 0
	for _, arg := range argv {
		if err := fault.TextBytes("command.argv", arg, maxCommandBytes, false); err != nil {
			return err
		}
		total += len(arg) + 1
	}
	if len(argv) > 0 && argv[0] == "" {
		return fault.Invalid("command.argv[0]", "", "must name a program")
	}
	return fault.Bytes("command.argv", total, maxCommandBytes+maxArgs)
}

func checkEnv(spec *taskv1.CommandSpec) error {
	env := spec.GetEnv()
	if err := fault.Entries("command.env", len(env), maxEnvEntries); err != nil {
		return err
	}
	total := 0
	// In order, so that the same request always gets the same refusal.
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envName(name) {
			return fault.Invalid("command.env", name, "must be named [A-Za-z_][A-Za-z0-9_]{0,127}")
		}
		if strings.HasPrefix(name, reservedEnv) {
			return fault.Invalid("command.env", name, "must not begin with "+reservedEnv+", which workers use to know their processes")
		}
		if err := fault.TextBytes("command.env", env[name], maxEnvBytes, false); err != nil {
			return err
		}
		total += len(name) + len(env[name]) + 2
	}
	return fault.Bytes("command.env", total, maxEnvBytes)
}

func envName(s string) bool {
	if s == "" || len(s) > fault.MaxNameChars {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func checkWorkdir(spec *taskv1.CommandSpec) error {
	dir := spec.GetWorkdir()
	if dir == "" {
		return nil
	}
	if err := fault.TextBytes("command.workdir", dir, maxWorkdirBytes, false); err != nil {
		return err
	}
	if !path.IsAbs(dir) {
		return fault.Invalid("command.workdir", dir, "must be an absolute path")
	}
	return nil
}

// decideExec queues a command, or finds the same one running (T1). spec is
// what checkExec made of the request; worktree, if the agent has one, says which
// worker runs it.
func decideExec(s *State, env journal.Env, req *taskv1.ExecCommandRequest, spec *taskv1.CommandSpec, worktree *taskv1.Worktree) (journal.Decision[*taskv1.ExecCommandResponse], error) {
	var d journal.Decision[*taskv1.ExecCommandResponse]
	ns, agent := env.Actor.Namespace, req.GetAgentId()
	if s.deleted[owner{ns, agent}] {
		return d, fault.AgentDeleted.Newf("agent %q is deleted; no command is started for it", agent).With("agent_id", agent)
	}
	if req.GetDuplicatePolicy() == taskv1.DuplicatePolicy_DUPLICATE_POLICY_REUSE_RUNNING {
		if same := runningCommand(s, owner{ns, agent}, spec); same != nil {
			d.Reply = &taskv1.ExecCommandResponse{
				Outcome: taskv1.ExecOutcome_EXEC_OUTCOME_ALREADY_RUNNING,
				Task:    same.task,
			}
			return d, nil
		}
	}
	t := &taskv1.Task{
		TaskId:     env.NewID("tsk_"),
		AgentId:    agent,
		Kind:       taskv1.TaskKind_TASK_KIND_COMMAND_TASK,
		State:      taskv1.TaskState_TASK_STATE_QUEUED,
		Label:      label(spec),
		WorkItemId: req.GetWorkItemId(),
		Command:    spec,
		Blocking:   req.GetBlocking(),
		Revision:   1,
		CreatedAt:  stamp(env.Now),

		Traceparent: env.Traceparent,

		PinnedWorkerId:     worktree.GetWorkerId(),
		PinnedSharedWorker: worktree.GetSharedWorker(),
	}
	d.Events = []*journal.Event{event(ns, t, &taskv1.TaskQueued{Task: t})}
	return d, nil
}

// runningCommand finds the oldest command of an owner that does the same and was not
// asked to stop.
func runningCommand(s *State, o owner, spec *taskv1.CommandSpec) *record {
	of := s.agents[o]
	if of == nil {
		return nil
	}
	var found *record
	for id := range of.active {
		r := s.tasks[id]
		if r.task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING || !sameCommand(r.task.GetCommand(), spec) {
			continue
		}
		if found == nil || r.ordinal < found.ordinal {
			found = r
		}
	}
	return found
}

// sameCommand is the identity of a command: what runs, where, with which
// variables, and whether on a terminal. What it may use does not count.
func sameCommand(a, b *taskv1.CommandSpec) bool {
	return a.GetCmd() == b.GetCmd() && slices.Equal(a.GetArgv(), b.GetArgv()) &&
		a.GetWorkdir() == b.GetWorkdir() && a.GetTty() == b.GetTty() && maps.Equal(a.GetEnv(), b.GetEnv()) &&
		a.GetPool() == b.GetPool() && maps.Equal(a.GetWorkerLabels(), b.GetWorkerLabels())
}

// label is one line for people.
func label(spec *taskv1.CommandSpec) string {
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

// arguments are what makes one request another (SPEC X2). How long the caller
// waits is none of it: a call that is repeated has less time left in its round.
func arguments(req *taskv1.ExecCommandRequest) *taskv1.ExecCommandRequest {
	args := proto.CloneOf(req)
	args.YieldTime = nil
	return args
}

func answerExec(events []*journal.Event) (*taskv1.ExecCommandResponse, error) {
	return &taskv1.ExecCommandResponse{Task: taskOf(events[0])}, nil
}

// ExecCommand implements SPEC T1. A repeated request id finds the task of the
// first request, waits for it again, and answers with how it stands then.
func (s *Service) ExecCommand(ctx context.Context, req *taskv1.ExecCommandRequest) (*taskv1.ExecCommandResponse, error) {
	actor, err := s.agentActor(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	spec, err := checkExec(req)
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
	resp, done, err := journal.Do(ctx, p, journal.Op[*State, *taskv1.ExecCommandResponse]{
		Method: taskv1.TaskService_ExecCommand_FullMethodName, Actor: actor,
		AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Recall: rpc.Recalling(ctx), Args: arguments(req),
		Decide: func(st *State, env journal.Env) (journal.Decision[*taskv1.ExecCommandResponse], error) {
			if refused != nil { // for the rule to say: a repetition has its first answer
				return journal.Decision[*taskv1.ExecCommandResponse]{}, refused
			}
			return decideExec(st, env, req, spec, space.Worktree)
		},
		Answer: answerExec,
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
	yield, _ := duration("yield_time", req.GetYieldTime(), DefaultYield, 0, MaxYield) // checked above
	t, err := s.awaitEnd(ctx, actor.Namespace, resp.GetTask(), s.clk.Now().Add(yield))
	if err != nil {
		return nil, err
	}
	outcome := taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK
	if terminal(t.GetState()) {
		outcome = taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED
	}
	return s.execAnswer(ctx, actor.Namespace, t, outcome, req)
}

// execAnswer adds the end of the output to an outcome.
func (s *Service) execAnswer(ctx context.Context, ns string, t *taskv1.Task, outcome taskv1.ExecOutcome, req *taskv1.ExecCommandRequest) (*taskv1.ExecCommandResponse, error) {
	most := int(req.GetMaxOutput())
	if most == 0 {
		most = DefaultMaxOutput
	}
	resp := &taskv1.ExecCommandResponse{Outcome: outcome, Task: s.present(ns, t)}
	resp.Handle = &taskv1.TaskHandle{TaskId: t.GetTaskId(), TaskKind: t.GetKind(), Status: t.GetState()}
	if t.GetState() == taskv1.TaskState_TASK_STATE_QUEUED {
		return resp, nil // nothing was written yet
	}
	piece, err := s.output.Read(ctx, ns, t.GetTaskId(), FromEnd(most), most)
	if err != nil {
		return nil, err
	}
	text := endText(piece, most)
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
		if err != nil || last || terminal(now.GetState()) {
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
