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
	case rpc.RoleInstallationAdmin, rpc.RoleAdmin, rpc.RoleService:
		return nil
	case rpc.RoleAgent:
		return s.orchestrateAs(ctx, a.AgentID, tool, sessionID)
	case "":
		return fault.Unauthenticated.New("the call has no actor; send a credential")
	}
	return fault.ToolNotAvailable.Newf("%s belongs to orchestrators; role %s does not have it", tool, a.Role).
		With("tool", tool).With("role", a.Role)
}

// orchestrateAs is orchestrate for an agent. One whose profile has no boards, such as a private
// child, gets TOOL_NOT_AVAILABLE for every session (S2-458, S2-459), and others PERMISSION_DENIED
// for sessions that are not theirs.
func (s *Service) orchestrateAs(ctx context.Context, agentID, tool, sessionID string) error {
	has, err := true, error(nil)
	if s.deps.Orchestrates != nil {
		has, err = s.deps.Orchestrates(ctx, agentID)
	}
	switch {
	case err == nil && !has:
		return fault.ToolNotAvailable.Newf("%s belongs to orchestrators; the profile of agent %s has no boards", tool,
			agentID).With("tool", tool)
	case agentID != sessionID:
		return fault.PermissionDenied.Newf("agent %s is not the orchestrator of session %s", agentID, sessionID).
			With("session_id", sessionID)
	}
	return err
}

// mayEnd is orchestrate for calls that end a board, and also admits operators if operators is
// set. Everybody else who is known but is no orchestrator gets PERMISSION_DENIED, as for
// UpdateBoard, since the call changes a board (S2-460).
func (s *Service) mayEnd(ctx context.Context, tool, sessionID string, operators bool) error {
	actor := rpc.ActorFrom(ctx)
	switch role := actor.Role; {
	case operators && role == rpc.RoleOperator:
		return fault.Name("session_id", sessionID)
	case role == "", actor.HasAny(rpc.RoleAdmin, rpc.RoleService, rpc.RoleAgent):
		return s.orchestrate(ctx, tool, sessionID)
	default:
		return fault.PermissionDenied.Newf("role %s may not end a board; only its orchestrator may call %s", role,
			tool).With("role", role).With("tool", tool)
	}
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
			return "", fault.ToolNotAvailable.Newf("%s takes the credential of a run, which a worker gets with its "+
				"assignment", tool).With("tool", tool)
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
		return a, fault.ToolNotAvailable.Newf("%s takes the credential of a worker's run, which a worker gets with "+
			"its assignment", tool).With("tool", tool)
	}
	return a, nil
}
