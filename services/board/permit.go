package board

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// The functions below decide who may make which calls (S2-252 to S2-278, S2-456 to
// S2-463, SPEC X15). They return an error for everybody else, and check the form of
// sessionID. tool is the name of the call for agents, for refusals.

// orchestrate admits the orchestrator of a session, admins and services.
func (s *Service) orchestrate(ctx context.Context, tool, sessionID string) error {
	a := rpc.ActorFrom(ctx)
	if err := fault.Name("session_id", sessionID); err != nil {
		return err
	}
	switch a.Role {
	case rpc.RoleAdmin, rpc.RoleService:
		return nil
	case rpc.RoleAgent:
		if a.AgentID != sessionID {
			return fault.PermissionDenied.Newf("agent %s is not the orchestrator of session %s", a.AgentID, sessionID).With("session_id", sessionID)
		}
		if s.deps.Orchestrates == nil {
			return nil
		}
		may, err := s.deps.Orchestrates(ctx, a.AgentID)
		if err != nil || may {
			return err
		}
		return fault.ToolNotAvailable.Newf("%s belongs to orchestrators; the profile of agent %s has no boards", tool, a.AgentID).With("tool", tool)
	case "":
		return fault.Unauthenticated.New("the call has no actor; send a credential")
	}
	return fault.ToolNotAvailable.Newf("%s belongs to orchestrators; role %s does not have it", tool, a.Role).With("tool", tool).With("role", a.Role)
}

// operate is orchestrate, and also admits operators, for calls that read or stop something.
func (s *Service) operate(ctx context.Context, tool, sessionID string) error {
	if rpc.ActorFrom(ctx).Role == rpc.RoleOperator {
		return fault.Name("session_id", sessionID)
	}
	return s.orchestrate(ctx, tool, sessionID)
}

// reader is operate, and also admits runs of workers. runID is not empty if the caller is a
// run, which may read its own board only: the caller of reader must check that.
func (s *Service) reader(ctx context.Context, tool, sessionID string) (runID string, err error) {
	a := rpc.ActorFrom(ctx)
	switch a.Role {
	case rpc.RoleWorker:
		if a.RunID == "" {
			return "", fault.ToolNotAvailable.Newf("%s takes the credential of a run, which a worker gets with its assignment", tool).With("tool", tool)
		}
		return a.RunID, fault.Name("session_id", sessionID)
	case rpc.RoleOperator:
		return "", fault.Name("session_id", sessionID)
	}
	return "", s.orchestrate(ctx, tool, sessionID)
}

// runner admits only runs of workers, and returns the caller.
func runner(ctx context.Context, tool string) (rpc.Actor, error) {
	a := rpc.ActorFrom(ctx)
	switch {
	case a.Role == "":
		return a, fault.Unauthenticated.New("the call has no actor; send a credential")
	case a.Role != rpc.RoleWorker || a.RunID == "":
		return a, fault.ToolNotAvailable.Newf("%s takes the credential of a worker's run, which a worker gets with its assignment", tool).With("tool", tool)
	}
	return a, nil
}
