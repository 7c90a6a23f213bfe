// Package toolcalls executes tool calls: it builds the request of a call from the
// tool's table entry, sends it to the plane that owns the tool, and turns the
// response into the one result of the call.
package toolcalls

import (
	"sync"

	"google.golang.org/grpc"

	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
	"quartet/services/agent/briefs"
	"quartet/services/agent/state"
)

// Deps is what a Service needs.
type Deps struct {
	// Conn reaches the plane that owns a tool.
	Conn func(plane string) (grpc.ClientConnInterface, error)
	// Allowed reports whether a role may call a method, given as "/service/Method".
	// Nil allows every method to every role.
	Allowed func(role, method string) bool
	// Within refuses a request that is beyond what the actor's key is limited to. The plane does not: to it the call
	// is a service's. Nil refuses none.
	Within func(a rpc.Actor, method string, req any) error
	Tracer *tracing.Tracer
	Briefs *briefs.Service
}

// Service executes and lists tools.
type Service struct {
	engine *state.Engine
	deps   Deps
	// profiles caches the profile of each agent that used tools, until Forget: plane.Key to
	// tools.Profile. A profile never changes.
	profiles sync.Map
}

// New returns a Service for the agents of all partitions of engine. There is nothing to start or stop.
func New(engine *state.Engine, deps Deps) *Service {
	return &Service{engine: engine, deps: deps}
}
