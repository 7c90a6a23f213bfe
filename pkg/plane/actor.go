package plane

import (
	"quartet/pkg/journal"
	"quartet/pkg/rpc"
)

// Recorded returns an actor as events record it.
func Recorded(a rpc.Actor) journal.Actor {
	return journal.Actor{
		Namespace: a.Namespace, Principal: a.Principal, Role: a.Role, AgentID: a.AgentID,
		RunID: a.RunID, KeyID: a.KeyID,
	}
}

// ActorOf returns the actor of calls for one that events record. It is not limited to agents or tools.
func ActorOf(a journal.Actor) rpc.Actor {
	return rpc.Actor{
		Namespace: a.Namespace, Principal: a.Principal, Role: a.Role, AgentID: a.AgentID, RunID: a.RunID,
		KeyID: a.KeyID,
	}
}
