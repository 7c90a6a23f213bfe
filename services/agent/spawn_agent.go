package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// SpawnAgent makes an agent (SPEC A1). Of the two presets public_named stands;
// private children come with supervision.
func (s *Service) SpawnAgent(ctx context.Context, req *agentv1.SpawnAgentRequest) (*agentv1.SpawnAgentResponse, error) {
	if err := rpc.RequireRole(ctx, rpc.RoleAdmin, rpc.RoleOperator); err != nil {
		return nil, err
	}
	if err := validateSpawn(req); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *agentv1.SpawnAgentResponse]{
		Method: "SpawnAgent", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.SpawnAgentResponse], error) {
			return decideSpawn(st, env, req)
		},
		Answer: answerSpawn,
	})
}

func validateSpawn(req *agentv1.SpawnAgentRequest) error {
	if err := fault.RequestID(req.GetRequestId()); err != nil {
		return err
	}
	if req.GetPreset() != agentv1.Preset_PRESET_PUBLIC_NAMED {
		return fault.Invalid("preset", req.GetPreset().String(), "must be PRESET_PUBLIC_NAMED; an operator cannot spawn a private child")
	}
	if err := fault.Name("agent_id", req.GetAgentId()); err != nil {
		return err
	}
	if err := fault.TextBytes("initial_message", req.GetInitialMessage(), fault.MaxMessageBytes, false); err != nil {
		return err
	}
	switch req.GetWorkspaceMode() {
	case agentv1.WorkspaceMode_WORKSPACE_MODE_UNSPECIFIED, agentv1.WorkspaceMode_WORKSPACE_MODE_INHERIT:
	case agentv1.WorkspaceMode_WORKSPACE_MODE_WORKTREE, agentv1.WorkspaceMode_WORKSPACE_MODE_EXPLICIT_ROOT:
		return fault.Invalid("workspace_mode", req.GetWorkspaceMode().String(), "must be inherit for a public_named agent")
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
	case req.GetWorkspaceRoot() != "" && (!filepath.IsAbs(req.GetWorkspaceRoot()) || filepath.Clean(req.GetWorkspaceRoot()) != req.GetWorkspaceRoot()):
		return fault.Invalid("workspace_root", req.GetWorkspaceRoot(), "must be a clean absolute path")
	}
	return fault.TextBytes("workspace_root", req.GetWorkspaceRoot(), 4096, false)
}

func decideSpawn(s *State, env journal.Env, req *agentv1.SpawnAgentRequest) (journal.Decision[*agentv1.SpawnAgentResponse], error) {
	var none journal.Decision[*agentv1.SpawnAgentResponse]
	if s.agents[key{env.Actor.Namespace, req.GetAgentId()}] != nil {
		return none, fault.AlreadyExists.Newf("agent %q exists already; ids are never used again", req.GetAgentId()).With("agent_id", req.GetAgentId())
	}
	now := timestamppb.New(env.Now)
	a := &agentv1.Agent{
		AgentId:       req.GetAgentId(),
		Visibility:    agentv1.Visibility_VISIBILITY_PUBLIC,
		Ownership:     agentv1.Ownership_OWNERSHIP_SELF_OWNED,
		Preset:        agentv1.Preset_PRESET_PUBLIC_NAMED,
		Context:       agentv1.Context_CONTEXT_FRESH,
		WorkspaceMode: agentv1.WorkspaceMode_WORKSPACE_MODE_INHERIT,
		WorkspaceRoot: req.GetWorkspaceRoot(),
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
		m := newMessage(env, &agentv1.Message{
			AgentId: a.GetAgentId(), Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT,
			Origin: agentv1.Origin_ORIGIN_OPERATOR, Text: req.GetInitialMessage(),
		})
		events = append(events, messageEvent(m, &agentv1.MessageQueued{Message: m}))
	}
	return journal.Decision[*agentv1.SpawnAgentResponse]{Events: events}, nil
}

func answerSpawn(events []*journal.Event) (*agentv1.SpawnAgentResponse, error) {
	for _, ev := range events {
		if p, ok := ev.Payload.(*agentv1.AgentSpawned); ok {
			return &agentv1.SpawnAgentResponse{AgentId: p.GetAgent().GetAgentId(), Agent: p.GetAgent()}, nil
		}
	}
	return nil, fmt.Errorf("agent: no agent_spawned among %d events", len(events))
}
