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
// it returns the zero Actor, which RequireRole always refuses.
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

// RequireRole refuses an actor that has none of roles: UNAUTHENTICATED if
// there is no actor at all, else PERMISSION_DENIED.
func RequireRole(ctx context.Context, roles ...string) error {
	a := ActorFrom(ctx)
	switch {
	case a.Role == "":
		return fault.Unauthenticated.New("the call has no actor; send a credential")
	case a.HasAny(roles...):
		return nil
	}
	return fault.PermissionDenied.New("role "+a.Role+" may not do this; it takes "+strings.Join(roles, " or "),
		"role", a.Role, "principal", a.Principal)
}

// RequireService returns nil if the call was made by a service, on its own behalf
// or on that of any actor, and otherwise an error as RequireRole does. It is for
// methods that only services call.
func RequireService(ctx context.Context) error {
	if Via(ctx) != "" {
		return nil
	}
	return RequireRole(ctx, RoleService)
}

// CheckAgent returns PERMISSION_DENIED if an actor of role agent acts for another
// agent (SPEC X15). It returns nil for all other roles, which RequireRole checks.
func CheckAgent(a Actor, agentID string) error {
	if a.Role != RoleAgent || a.AgentID == agentID {
		return nil
	}
	return fault.PermissionDenied.New("the credential of agent "+a.AgentID+" may not act for agent "+agentID,
		"agent_id", agentID, "principal", a.Principal)
}
