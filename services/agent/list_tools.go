package agent

import (
	"context"
	"slices"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
)

// ListTools describes the tools that the caller may use for an agent: those of
// the families in its profile (SPEC C4).
func (s *Service) ListTools(ctx context.Context, req *agentv1.ListToolsRequest) (*agentv1.ListToolsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	profile, err := s.profile(ctx, key{actor.Namespace, req.GetAgentId()})
	if err != nil {
		return nil, err
	}
	resp := &agentv1.ListToolsResponse{}
	for _, t := range specs() {
		if profile.has(t.GetFamily()) {
			resp.Tools = append(resp.Tools, t)
		}
	}
	return resp, nil
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
	p, _, err := journal.View(ctx, s.engine.For(k.namespace, k.id), func(st *State) (profile, error) {
		a, err := st.agent(k.namespace, k.id)
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
