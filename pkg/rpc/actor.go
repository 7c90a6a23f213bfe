package rpc

import (
	"context"
	"slices"
	"strings"

	"quartet/pkg/fault"
)

// The roles of SPEC X15.
const (
	// RoleInstallationAdmin is an admin who also administers the installation: all its namespaces,
	// and what belongs to none.
	RoleInstallationAdmin = "installation_admin"

	RoleAdmin       = "admin"
	RoleOperator    = "operator"
	RoleRunner      = "runner"
	RoleAgent       = "agent"
	RoleWorker      = "worker"
	RoleIntegration = "integration"
	RoleService     = "service"
)

// DefaultNamespace is the tenant of callers that name none.
const DefaultNamespace = "default"

// Actor is who acts. It is written on every event.
type Actor struct {
	Namespace string `json:"ns"`
	Principal string `json:"sub"`
	Role      string `json:"role"`
	AgentID   string `json:"agent,omitempty"` // of an agent credential
	RunID     string `json:"run,omitempty"`   // of an agent credential
	KeyID     string `json:"key,omitempty"`   // of an API key
	// Agents and Tools are what an API key is limited to; empty: it is not.
	Agents Names `json:"agents,omitempty"`
	Tools  Names `json:"tools,omitempty"`
}

// Names is a set of names without commas, sorted and separated by commas, so that an Actor can be compared.
type Names string

// NamesOf returns the set of names.
func NamesOf(names []string) Names {
	names = slices.Clone(names)
	slices.Sort(names)
	return Names(strings.Join(slices.Compact(names), ","))
}

// List returns the names in order.
func (n Names) List() []string {
	if n == "" {
		return nil
	}
	return strings.Split(string(n), ",")
}

// Has reports whether a name is in the set.
func (n Names) Has(name string) bool { return slices.Contains(n.List(), name) }

// Has reports whether the actor has a role. An admin of the installation is also the admin of its
// namespace.
func (a Actor) Has(role string) bool {
	return a.Role == role || role == RoleAdmin && a.Role == RoleInstallationAdmin
}

// HasAny reports whether the actor has one of roles.
func (a Actor) HasAny(roles ...string) bool { return slices.ContainsFunc(roles, a.Has) }

type callerKey struct{}

// caller is the value in the context of a call: the actor, and the service that called on its behalf.
type caller struct {
	actor Actor
	via   string
}

// WithActor returns a context in which ActorFrom returns a. Calls made with it bear this process's credential and
// name a as their actor. Via still returns the service whose credential the call of ctx was made with.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, callerKey{}, &caller{actor: a, via: Via(ctx)})
}

// ActorFrom returns the actor of the call that ctx belongs to. If there is none,
// it returns the zero Actor, which has no role.
func ActorFrom(ctx context.Context) Actor {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.actor
	}
	return Actor{}
}

// Via returns the name of the service whose credential the call was made with,
// or "" if the actor called with its own credential.
func Via(ctx context.Context) string {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.via
	}
	return ""
}

// CheckAgent returns PERMISSION_DENIED if an actor of role agent acts for another
// agent (SPEC X15). It returns nil for all other roles, which Admission.Permit checks.
func CheckAgent(a Actor, agentID string) error {
	if a.Role != RoleAgent || a.AgentID == agentID {
		return nil
	}
	return fault.PermissionDenied.New("the credential of agent "+a.AgentID+" may not act for agent "+agentID,
		"agent_id", agentID, "principal", a.Principal)
}
