// Package control carries out control actions on agents: pause, resume, stop, start,
// abort of the open run, and deletion. A control action is not a message, so it takes
// effect whatever is queued in the agent's lane.
package control

import "quartet/services/agent/state"

// Service carries out control actions.
type Service struct{ engine *state.Engine }

// New returns a Service over the partitions of engine.
func New(engine *state.Engine) *Service { return &Service{engine: engine} }
