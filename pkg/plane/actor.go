package plane

import (
	"quartet/pkg/journal"
	"quartet/pkg/rpc"
)

// Recorded returns an actor as events record it.
func Recorded(a rpc.Actor) journal.Actor {
	return journal.Actor{Namespace: a.Namespace, Principal: a.Principal, Role: a.Role, AgentID: a.AgentID, RunID: a.RunID, KeyID: a.KeyID}
}

// ActorOf returns an actor as events record it, as the actor of calls. It is not limited.
func ActorOf(a journal.Actor) rpc.Actor {
	return rpc.Actor{Namespace: a.Namespace, Principal: a.Principal, Role: a.Role, AgentID: a.AgentID, RunID: a.RunID, KeyID: a.KeyID}
}
