package children

import (
	"cmp"
	"context"
	"path/filepath"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

// SpawnAgent creates an agent (SPEC A1), for an operator or for an agent whose profile
// allows it. A public agent records the agent that spawned it and is otherwise
// independent; a private child is supervised by its parent.
func (s *Service) SpawnAgent(ctx context.Context, req *agentv1.SpawnAgentRequest) (*agentv1.SpawnAgentResponse, error) {
	actor := rpc.ActorFrom(ctx)
	switch req.GetPreset() {
	case agentv1.Preset_PRESET_UNSPECIFIED, agentv1.Preset_PRESET_PRIVATE_CHILD:
		parentID := cmp.Or(req.GetParentAgentId(), actor.AgentID)
		if err := fault.First(validateSpawnChild(req), fault.Name("parent_agent_id", parentID),
			rpc.CheckAgent(actor, parentID)); err != nil {
			return nil, err
		}
		return s.spawnChild(ctx, req, parentID)
	case agentv1.Preset_PRESET_PUBLIC_NAMED:
	default:
		return nil, fault.Invalid("preset", req.GetPreset().String(), "must be private_child or public_named")
	}
	if err := validateSpawn(req); err != nil {
		return nil, err
	}
	var refused error
	if actor.Role == rpc.RoleAgent {
		if req.GetWorkspaceRoot() != "" {
			return nil, fault.Invalid("workspace_root", req.GetWorkspaceRoot(),
				"must be empty: an agent chooses no root, an operator does")
		}
		_, _, refused = plane.View(ctx, s.engine, actor.AgentID, func(st *state.State) (struct{}, error) {
			_, err := st.Spawner(plane.Recorded(actor), actor.AgentID,
				agentv1.ToolFamily_TOOL_FAMILY_AUTHORITY_EXPANSION)
			return struct{}{}, err
		})
	}
	return plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.SpawnAgentResponse]{
		Method: "SpawnAgent", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.SpawnAgentResponse], error) {
			if refused != nil { // refused in the rule, so that a repeated request gets its first response
				return journal.Decision[*agentv1.SpawnAgentResponse]{}, refused
			}
			return decideSpawn(st, env, req)
		},
		Answer: answerSpawn,
	})
}

func validateSpawn(req *agentv1.SpawnAgentRequest) error {
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		fault.Name("agent_id", req.GetAgentId()),
		fault.TextBytes("initial_message", req.GetInitialMessage(), fault.MaxMessageBytes, false),
		fault.NotBlank("initial_message", req.GetInitialMessage()),
	); err != nil {
		return err
	}
	switch req.GetWorkspaceMode() {
	case agentv1.WorkspaceMode_WORKSPACE_MODE_UNSPECIFIED, agentv1.WorkspaceMode_WORKSPACE_MODE_INHERIT:
	case agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE, agentv1.WorkspaceMode_WORKSPACE_MODE_EXPLICIT_ROOT:
		return fault.Invalid("workspace_mode", req.GetWorkspaceMode().String(),
			"must be inherit for a public_named agent")
	default:
		return fault.Invalid("workspace_mode", req.GetWorkspaceMode().String(), "must be inherit")
	}
	switch {
	case req.GetTemplate() != "":
		return fault.Invalid("template", req.GetTemplate(), "must be empty: there are no templates")
	case req.GetContext() == agentv1.Context_CONTEXT_FORK:
		return fault.Invalid("context", req.GetContext().String(), "must be fresh: there is no parent to fork from")
	case req.GetParentAgentId() != "":
		return fault.Invalid("parent_agent_id", req.GetParentAgentId(), "must be empty for a public_named agent")
	case req.GetWorkspaceRoot() != "" && (!filepath.IsAbs(req.GetWorkspaceRoot()) ||
		filepath.Clean(req.GetWorkspaceRoot()) != req.GetWorkspaceRoot()):
		return fault.Invalid("workspace_root", req.GetWorkspaceRoot(), "must be a clean absolute path")
	}
	return fault.TextBytes("workspace_root", req.GetWorkspaceRoot(), 4096, false)
}

func decideSpawn(s *state.State, env journal.Env, req *agentv1.SpawnAgentRequest) (
	journal.Decision[*agentv1.SpawnAgentResponse], error,
) {
	var none journal.Decision[*agentv1.SpawnAgentResponse]
	if s.Lookup(plane.Key{Namespace: env.Actor.Namespace, ID: req.GetAgentId()}) != nil ||
		s.WasErased(env.Actor.Namespace, req.GetAgentId()) {
		return none, fault.AlreadyExists.Newf("agent %q exists already; ids are never used again", req.GetAgentId()).
			With("agent_id", req.GetAgentId())
	}
	now := timestamppb.New(env.Now)
	a := &agentv1.Agent{
		AgentId:              req.GetAgentId(),
		Visibility:           agentv1.Visibility_VISIBILITY_PUBLIC,
		Ownership:            agentv1.Ownership_OWNERSHIP_SELF_OWNED,
		Preset:               agentv1.Preset_PRESET_PUBLIC_NAMED,
		LineageParentAgentId: env.Actor.AgentID,
		Context:              agentv1.Context_CONTEXT_FRESH,
		WorkspaceMode:        agentv1.WorkspaceMode_WORKSPACE_MODE_INHERIT,
		WorkspaceRoot:        req.GetWorkspaceRoot(),
		ToolFamilies: []agentv1.ToolFamily{
			agentv1.ToolFamily_TOOL_FAMILY_CORE, agentv1.ToolFamily_TOOL_FAMILY_LOCAL_ENVIRONMENT,
			agentv1.ToolFamily_TOOL_FAMILY_AGENT_CREATION, agentv1.ToolFamily_TOOL_FAMILY_AUTHORITY_EXPANSION,
			agentv1.ToolFamily_TOOL_FAMILY_EXTERNAL_TRIGGER, agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
		},
		Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE,
		Control:   agentv1.Control_CONTROL_RUNNING,
		Revision:  1, CreatedAt: now, UpdatedAt: now,
	}
	events := []*journal.Event{{AgentID: a.GetAgentId(), Payload: &agentv1.AgentSpawned{Agent: a}}}
	if req.GetInitialMessage() != "" {
		m := &agentv1.Message{
			AgentId: a.GetAgentId(), Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT,
			Origin: agentv1.Origin_ORIGIN_OPERATOR, Text: req.GetInitialMessage(),
		}
		if env.Actor.Role == rpc.RoleAgent {
			// An agent's text is not an operator's, and a public agent has no supervisor.
			m.Kind, m.Origin = agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP, agentv1.Origin_ORIGIN_SYSTEM
		}
		m = lane.NewMessage(env, m)
		events = append(events, lane.Event(m, &agentv1.MessageQueued{Message: m}))
	}
	return journal.Decision[*agentv1.SpawnAgentResponse]{Events: events}, nil
}

var answerSpawn = journal.AnswerOf(func(p *agentv1.AgentSpawned) *agentv1.SpawnAgentResponse {
	return &agentv1.SpawnAgentResponse{AgentId: p.GetAgent().GetAgentId(), Agent: p.GetAgent()}
})
