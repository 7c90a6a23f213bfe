package agent

import (
	"context"
	"quartet/services/agent/ref"
	"slices"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
)

// ListTools describes the tools that the caller may use for an agent: those of
// the families in its profile, and of these the ones that the caller's role has
// (SPEC C4, X15). A runner asks for its turns, in which it acts as the agent.
func (s *Service) ListTools(ctx context.Context, req *agentv1.ListToolsRequest) (*agentv1.ListToolsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	profile, err := s.profile(ctx, ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()})
	if err != nil {
		return nil, err
	}
	resp := &agentv1.ListToolsResponse{}
	role := actor.Role
	if role == rpc.RoleRunner {
		role = rpc.RoleAgent
	}
	for i, t := range specs() {
		if profile.has(t.GetFamily()) && s.may(role, tools[i]) {
			resp.Tools = append(resp.Tools, t)
		}
	}
	return resp, nil
}

// may says whether a role has a tool, which is whether it may call its method.
func (s *Service) may(role string, t tool) bool {
	return s.deps.Allowed == nil || s.deps.Allowed(role, t.method)
}

// profile is what an agent was spawned with; it never changes.
type profile []agentv1.ToolFamily

func (p profile) has(f agentv1.ToolFamily) bool { return slices.Contains(p, f) }

// names of the tools, for messages and for runners.
func (p profile) names() []string {
	var names []string
	for _, t := range tools {
		if p.has(t.family) {
			names = append(names, t.name)
		}
	}
	return names
}

// find looks a tool up, by the seeds' name for it, with S2's dots or without.
func (p profile) find(name string) (tool, error) {
	plain := strings.ReplaceAll(name, ".", "_")
	i := slices.IndexFunc(tools, func(t tool) bool { return t.name == plain })
	if i < 0 || !p.has(tools[i].family) {
		return tool{}, fault.ToolNotAvailable.Newf("tool %q is not available; the tools are %s", name, strings.Join(p.names(), ", ")).With("tool", name)
	}
	return tools[i], nil
}

// profile reads an agent's profile, once for each agent that uses tools.
func (s *Service) profile(ctx context.Context, k key) (profile, error) {
	if known, ok := s.profiles.Load(k); ok {
		if p, ok := known.(profile); ok {
			return p, nil
		}
	}
	p, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), func(st *State) (profile, error) {
		a, err := st.agent(k.Namespace, k.ID)
		if err != nil {
			return nil, err
		}
		return a.rec.GetToolFamilies(), nil
	})
	if err == nil {
		s.profiles.Store(k, p)
	}
	return p, err
}
