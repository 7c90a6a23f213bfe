package toolcalls

import (
	"context"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
)

// ListTools describes the tools that the caller may use for an agent: those of the
// families in its profile whose method the caller's role may call (SPEC C4, X15). For a
// runner these are the tools of its turns, in which it acts as the agent. A key that is limited to tools is
// shown those only (SPEC I17).
func (s *Service) ListTools(ctx context.Context, req *agentv1.ListToolsRequest) (*agentv1.ListToolsResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	profile, err := s.Profile(ctx, plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()})
	if err != nil {
		return nil, err
	}

	// The tools of a runner are those of the turns that it takes.
	role := actor.Role
	if role == rpc.RoleRunner {
		role = rpc.RoleAgent
	}

	resp := &agentv1.ListToolsResponse{}
	for i, t := range tools.Specs() {
		withinKey := actor.Tools == "" || actor.Tools.Has(t.GetName())
		if withinKey && profile.Has(t.GetFamily()) && s.may(role, tools.Table[i]) {
			resp.Tools = append(resp.Tools, t)
		}
	}
	return resp, nil
}

// may reports whether a role may call a tool's method.
func (s *Service) may(role string, t tools.Tool) bool {
	return s.deps.Allowed == nil || s.deps.Allowed(role, t.Method)
}

// Profile returns an agent's profile. That of an active agent is read once, when it first uses tools.
func (s *Service) Profile(ctx context.Context, k plane.Key) (tools.Profile, error) {
	if known, ok := s.profiles.Load(k); ok {
		return known.(tools.Profile), nil //nolint:forcetypeassert // no other type is stored
	}
	active := false
	p, _, err := journal.View(ctx, s.engine.For(k.Namespace, k.ID), func(st *state.State) (tools.Profile, error) {
		a, err := st.Find(k.Namespace, k.ID)
		if err != nil {
			return nil, err
		}
		active = a.IsActive()
		return a.Record.GetToolFamilies(), nil
	})
	if err == nil && active {
		s.profiles.Store(k, p)
	}
	return p, err
}

// Forget drops what is cached of an agent, which was deleted.
func (s *Service) Forget(k plane.Key) { s.profiles.Delete(k) }
