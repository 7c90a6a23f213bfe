// Package facts serves the scheduler: it reads the facts on which a decision about
// an agent rests, and records the decisions that are offered.
package facts

import (
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
)

// Deps is what a Service needs.
type Deps struct {
	Leases  *runners.Leases
	Waiters *runners.Waiters
}

// Service reads facts and records decisions.
type Service struct {
	engine  *state.Engine
	leases  *runners.Leases
	waiters *runners.Waiters
}

// New returns a Service over the partitions of engine.
func New(engine *state.Engine, deps Deps) *Service {
	return &Service{engine: engine, leases: deps.Leases, waiters: deps.Waiters}
}
