package rpc

import (
	"context"
	"slices"
	"strings"

	"quartet/pkg/fault"
)

// The roles of SPEC X15.
const (
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
}

type callerKey struct{}

// caller is what a context carries: the actor, and the service that spoke for it.
type caller struct {
	actor Actor
	via   string
}

// WithActor makes calls under ctx act as a. It keeps the service that carried
// the call, if any.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, callerKey{}, &caller{actor: a, via: Via(ctx)})
}

// ActorFrom returns who acts. Without one it is the zero Actor, which no
// RequireRole lets pass.
func ActorFrom(ctx context.Context) Actor {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.actor
	}
	return Actor{}
}

// Via names the service whose credential carried the call, "" if the actor
// called by itself.
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
	case slices.Contains(roles, a.Role):
		return nil
	}
	return fault.PermissionDenied.New("role "+a.Role+" may not do this; it takes "+strings.Join(roles, " or "),
		"role", a.Role, "principal", a.Principal)
}

// RequireService refuses calls that no service carried: verbs that exist only
// between services, whoever the service acts for.
func RequireService(ctx context.Context) error {
	if Via(ctx) != "" {
		return nil
	}
	return RequireRole(ctx, RoleService)
}

// CheckAgent refuses an agent credential that acts for another agent
// (SPEC X15). Other roles are RequireRole's business.
func CheckAgent(a Actor, agentID string) error {
	if a.Role != RoleAgent || a.AgentID == agentID {
		return nil
	}
	return fault.PermissionDenied.New("the credential of agent "+a.AgentID+" may not act for agent "+agentID,
		"agent_id", agentID, "principal", a.Principal)
}
