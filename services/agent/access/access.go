// Package access checks which caller may do what with an agent, and makes the actors
// under which this plane calls other planes; it also reads lists of other planes whole.
package access

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// CheckRun validates the ids that identify a runner's call, and checks that the caller's credential may act for the
// run. A credential of another run is refused with RUN_STALE. CheckRun does not check that the run still holds the
// turn; the caller must check that against the state.
func CheckRun(actor rpc.Actor, agentID, turnID, runID string) error {
	for _, err := range []error{
		fault.Name("agent_id", agentID),
		fault.ID("turn_id", turnID, "trn_"),
		fault.ID("run_id", runID, "run_"),
		rpc.CheckAgent(actor, agentID),
	} {
		if err != nil {
			return err
		}
	}
	if actor.RunID != "" && actor.RunID != runID {
		return fault.RunStale.Newf("the credential is of run %s, not of %s", actor.RunID, runID).With("run_id", runID)
	}
	return nil
}

// CheckRead validates the id of an agent and checks that the caller may read the agent. It does
// not check that the agent exists.
func CheckRead(actor rpc.Actor, agentID string) error {
	if err := fault.Name("agent_id", agentID); err != nil {
		return err
	}
	return rpc.CheckAgent(actor, agentID)
}

// AsPlane returns a context under which calls act as this plane itself in a namespace.
func AsPlane(ctx context.Context, namespace string) context.Context {
	return rpc.WithActor(ctx, plane.ActorOf(*plane.System(namespace)))
}

// AsRun returns a context under which calls act as the agent in its run (SPEC X4).
func AsRun(ctx context.Context, k plane.Key, runID string) context.Context {
	return rpc.WithActor(ctx, RunActor(k, runID))
}

// RunActor returns the actor of an agent in one of its runs. Its principal is the agent.
func RunActor(k plane.Key, runID string) rpc.Actor {
	return rpc.Actor{Namespace: k.Namespace, Principal: Principal(k), Role: rpc.RoleAgent, AgentID: k.ID, RunID: runID}
}

// AgentActor returns the actor that reads on behalf of an agent outside of a run.
func AgentActor(k plane.Key) rpc.Actor { return RunActor(k, "") }

// Principal returns the principal under which an agent's calls are made. Request ids are
// unique in it.
func Principal(k plane.Key) string { return "agent/" + k.ID }
