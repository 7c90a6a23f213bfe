package children

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/retry"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

const (
	// DefaultMaxChildren is how many children an agent may supervise at a time by default
	// (SPEC A2).
	DefaultMaxChildren = 8
	// labelChars is the length of a child's label, the beginning of its initial message
	// (SPEC A1).
	labelChars = 120
	// handleTimeout bounds how long SpawnAgent waits for the parent's handle, which the
	// task plane makes when it consumes the delegation.
	handleTimeout = 2 * time.Second
)

// ChildFamilies returns the tool families of a private child: no spawning, no boards,
// nothing that widens its authority (SPEC A2).
func ChildFamilies() []agentv1.ToolFamily {
	return []agentv1.ToolFamily{
		agentv1.ToolFamily_TOOL_FAMILY_CORE, agentv1.ToolFamily_TOOL_FAMILY_LOCAL_ENVIRONMENT,
		agentv1.ToolFamily_TOOL_FAMILY_EXTERNAL_TRIGGER,
	}
}

// spawnChild creates a private child of parentID (SPEC A1, A3). The delegation is stored
// first, in the parent's partition, with everything that the child is to be; from then on
// the Supervisor completes the creation, also after a crash or an error of this call.
// To be fast, this call creates a child without a worktree itself; for one with a worktree
// it waits until the Supervisor has created it. Then it waits until the parent's handle
// exists. Both waits are bounded: the response may come before the child or the handle
// exists. It does not wait for the child's work.
func (s *Service) spawnChild(ctx context.Context, req *agentv1.SpawnAgentRequest, parentID string) (
	*agentv1.SpawnAgentResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	focus, err := s.focusOf(ctx, plane.Key{Namespace: actor.Namespace, ID: parentID})
	if err != nil {
		return nil, err
	}
	var at *worktreeSite
	var refused error
	if req.GetWorkspaceMode() == agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE {
		at, refused = s.planWorktree(ctx, plane.Key{Namespace: actor.Namespace, ID: parentID})
	}
	inherited := ""
	if req.GetContext() == agentv1.Context_CONTEXT_FORK && refused == nil {
		inherited, refused = s.projections.InheritedContext(ctx, plane.Key{Namespace: actor.Namespace, ID: parentID},
			focus, req.GetInitialMessage())
	}
	opened, err := plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.DelegationOpened]{
		Method: "SpawnAgent", AgentID: parentID, RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.DelegationOpened], error) {
			d, err := decideDelegate(st, env, req, parentID, focus, s.deps.MaxChildren, childGrant{at, inherited})
			if err == nil && refused != nil { // refused in the rule, so that a repeated request gets its first response
				return journal.Decision[*agentv1.DelegationOpened]{}, refused
			}
			return d, err
		},
		Answer: journal.AnswerOf(func(p *agentv1.DelegationOpened) *agentv1.DelegationOpened {
			return p
		}),
	})
	if err != nil {
		return nil, err
	}
	d := opened.GetDelegation()
	if d.GetWorktree() != nil {
		s.awaitWorktree(ctx, plane.Key{Namespace: actor.Namespace, ID: parentID}, d.GetDelegationId())
	} else if err := s.createChild(ctx, actor.Namespace, opened); err != nil {
		return nil, err
	}
	s.awaitHandle(ctx, actor.Namespace, d)
	return &agentv1.SpawnAgentResponse{
		AgentId: d.GetChildAgentId(), Agent: opened.GetChild(), TaskId: d.GetTaskId(),
		DelegationId: d.GetDelegationId(),
		// As the task plane answers while the child lives, so that a repeated request is answered the same.
		TaskHandle: &taskv1.TaskHandle{
			TaskId: d.GetTaskId(), TaskKind: taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK,
			Status: taskv1.TaskState_TASK_STATE_RUNNING,
		},
	}, nil
}

func validateSpawnChild(req *agentv1.SpawnAgentRequest) error {
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		fault.TextBytes("initial_message", req.GetInitialMessage(), fault.MaxMessageBytes, true),
		fault.NotBlank("initial_message", req.GetInitialMessage()),
	); err != nil {
		return err
	}
	if req.GetAgentId() != "" {
		return fault.Invalid("agent_id", req.GetAgentId(), "must be empty for a private_child: its id is generated")
	}
	switch req.GetWorkspaceMode() {
	case agentv1.WorkspaceMode_WORKSPACE_MODE_UNSPECIFIED, agentv1.WorkspaceMode_WORKSPACE_MODE_INHERIT,
		agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE:
	case agentv1.WorkspaceMode_WORKSPACE_MODE_EXPLICIT_ROOT:
		return fault.Invalid("workspace_mode", req.GetWorkspaceMode().String(),
			"must be inherit or worktree: a spawned agent works where its parent does")
	default:
		return fault.Invalid("workspace_mode", req.GetWorkspaceMode().String(), "must be inherit or worktree")
	}
	switch {
	case req.GetTemplate() != "":
		return fault.Invalid("template", req.GetTemplate(), "must be empty: there are no templates")
	case req.GetWorkspaceRoot() != "":
		return fault.Invalid("workspace_root", req.GetWorkspaceRoot(),
			"must be empty for a private_child: it works where its parent does")
	}
	return nil
}

// focusOf returns the work item in focus, for a delegation that is made outside of a turn. For a
// caller that acts in a run it returns "": decideDelegate takes the item of the turn.
func (s *Service) focusOf(ctx context.Context, k plane.Key) (string, error) {
	if rpc.ActorFrom(ctx).RunID != "" {
		return "", nil // the turn knows its item
	}
	q, err := s.deps.Work.GetWorkQueue(access.AsPlane(ctx, k.Namespace), &workv1.GetWorkQueueRequest{
		AgentId: k.ID, OmitPlans: true,
	})
	return q.GetCurrent().GetWorkItemId(), err
}

// childGrant is what a child gets from its parent's environment.
type childGrant struct {
	site      *worktreeSite // of its worktree; nil: the child works where its parent does
	inherited string        // the view with which a forked child starts
}

// decideDelegate opens a delegation. The ids of the child, its handle and the delegation
// share one number, so each follows from the others.
func decideDelegate(s *state.State, env journal.Env, req *agentv1.SpawnAgentRequest, parentID, focus string, most int,
	g childGrant,
) (journal.Decision[*agentv1.DelegationOpened], error) {
	var d journal.Decision[*agentv1.DelegationOpened]
	p, err := s.Spawner(env.Actor, parentID, agentv1.ToolFamily_TOOL_FAMILY_AGENT_CREATION)
	if err != nil {
		return d, err
	}
	if n := len(p.OpenDelegations()); n >= most {
		return d, fault.ChildLimit.Newf("agent %q supervises %d children, the most it may; wait for one to end, or "+
			"stop one with StopTask", parentID, n).
			With("agent_id", parentID).With("limit", fmt.Sprint(most))
	}
	item := focus
	if p.OpenTurn != nil && env.Actor.RunID != "" {
		item = p.OpenTurn.Record.GetWorkItemId()
	}
	delegationID := env.NewID("dlg_")
	number := strings.TrimPrefix(delegationID, "dlg_")
	now := timestamppb.New(env.Now)
	mode := req.GetContext()
	if mode == agentv1.Context_CONTEXT_UNSPECIFIED {
		mode = agentv1.Context_CONTEXT_FRESH
	}
	rec := &agentv1.Delegation{
		DelegationId: delegationID, ParentAgentId: parentID, ParentWorkItemId: item,
		ChildAgentId: "agt_" + number, TaskId: "tsk_" + number, State: agentv1.DelegationState_DELEGATION_STATE_OPEN,
		Label: label(req.GetInitialMessage()), CreatedAt: now,
	}
	child := &agentv1.Agent{
		AgentId: rec.GetChildAgentId(), DelegationId: delegationID,
		Visibility: agentv1.Visibility_VISIBILITY_PRIVATE, Ownership: agentv1.Ownership_OWNERSHIP_PARENT_SUPERVISED,
		Preset: agentv1.Preset_PRESET_PRIVATE_CHILD, LineageParentAgentId: parentID, SupervisorAgentId: parentID,
		Context: mode, WorkspaceMode: agentv1.WorkspaceMode_WORKSPACE_MODE_INHERIT,
		WorkspaceRoot: p.Record.GetWorkspaceRoot(),
		ToolFamilies:  ChildFamilies(), Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE,
		Control:  agentv1.Control_CONTROL_RUNNING,
		Revision: 1, CreatedAt: now, UpdatedAt: now,
	}
	if g.site != nil {
		g.site.assign(rec, child)
	}
	d.Events = []*journal.Event{
		state.DelegationEvent(rec, &agentv1.DelegationOpened{
			Delegation: rec, Child: child,
			InitialMessage: req.GetInitialMessage(), Inherited: g.inherited,
			MaxAuthority: spawnerAuthority(p, env.Actor),
		}),
	}
	return d, nil
}

// spawnerAuthority returns the most authority that an initial message may have (SPEC A14.4). In a run
// that is the least authority among the turn's messages. Outside of a run an agent's message is a
// runtime instruction at most; for any other caller the result is UNSPECIFIED, which limits nothing.
func spawnerAuthority(p *state.Agent, actor journal.Actor) agentv1.Authority {
	switch {
	case actor.RunID != "":
		return p.SenderAuthority(actor.RunID)
	case actor.Role == rpc.RoleAgent:
		return agentv1.Authority_AUTHORITY_RUNTIME_INSTRUCTION
	}
	return agentv1.Authority_AUTHORITY_UNSPECIFIED
}

// label returns a message on one line, cut at labelChars.
func label(text string) string {
	line := strings.Join(strings.Fields(text), " ")
	if utf8.RuneCountInString(line) <= labelChars {
		return line
	}
	return string([]rune(line)[:labelChars-1]) + "…"
}

// createChild makes the child of a delegation unless it exists or was erased. Its initial message
// carries nothing of the parent's but the text.
func (s *Service) createChild(ctx context.Context, namespace string, opened *agentv1.DelegationOpened) error {
	child := opened.GetChild()
	if wt := opened.GetDelegation().GetWorktree(); wt != nil {
		child = proto.CloneOf(child)
		child.Worktree = wt
	}
	_, err := plane.Do(ctx, s.engine, plane.Command[*state.State, struct{}]{
		Method: "RaiseChild", AgentID: child.GetAgentId(), Actor: plane.System(namespace),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[struct{}], error) {
			var d journal.Decision[struct{}]
			if st.Lookup(plane.Key{Namespace: namespace, ID: child.GetAgentId()}) != nil ||
				st.WasErased(namespace, child.GetAgentId()) {
				return d, nil
			}
			m := lane.NewMessage(env, &agentv1.Message{
				MessageId: id.Derived("msg_", namespace, child.GetAgentId(), child.GetDelegationId()),
				AgentId:   child.GetAgentId(),
				Kind:      agentv1.MessageKind_MESSAGE_KIND_DELEGATION, Origin: agentv1.Origin_ORIGIN_PARENT,
				Text: opened.GetInitialMessage(), CausationId: child.GetDelegationId(),
				Authority: opened.GetMaxAuthority(),
			})
			d.Events = []*journal.Event{
				state.AgentEvent(child, &agentv1.AgentSpawned{Agent: child, Inherited: opened.GetInherited()}),
				lane.Event(m, &agentv1.MessageQueued{Message: m}),
			}
			return d, nil
		},
	})
	return err
}

// awaitHandle waits until the task plane has made the parent's handle. If the task plane
// is down the handle is made later; the response names it in either case.
func (s *Service) awaitHandle(ctx context.Context, namespace string, d *agentv1.Delegation) {
	ctx, cancel := context.WithTimeout(access.AsPlane(ctx, namespace), handleTimeout)
	defer cancel()
	conn, err := s.deps.Conn("task")
	if err != nil {
		return
	}
	for pacer := retry.New(time.Millisecond, 20*time.Millisecond); ; {
		_, err := taskv1.NewTaskServiceClient(conn).GetTask(ctx, &taskv1.GetTaskRequest{
			AgentId: d.GetParentAgentId(),
			TaskId:  d.GetTaskId(),
		})
		if err == nil || fault.From(err).Code() != codes.NotFound {
			return
		}
		if pacer.Wait(ctx) != nil {
			return
		}
	}
}
