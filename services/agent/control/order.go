package control

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/state"
)

// order is a request for a control action (SPEC A7, A8).
type order interface {
	proto.Message
	GetAgentId() string
	GetRequestId() string
	GetReason() string
}

// validateOrder checks what needs no state.
func validateOrder(o order) error {
	return fault.First(
		fault.Name("agent_id", o.GetAgentId()),
		fault.RequestID(o.GetRequestId()),
		fault.Text("reason", o.GetReason(), MaxReasonChars, false),
	)
}

// MaxReasonChars bounds the reason of a control action.
const MaxReasonChars = 2000

// agentOf returns the record of the agent after the events of a control action.
func agentOf(events []*journal.Event) (*agentv1.Agent, error) {
	for i := len(events) - 1; i >= 0; i-- {
		if p, ok := events[i].Payload.(interface{ GetAgent() *agentv1.Agent }); ok {
			return p.GetAgent(), nil
		}
	}
	return nil, fmt.Errorf("agent: no agent among %d events", len(events))
}

// execute carries out a control action and returns the response that respond makes of the agent. If
// decide returns no events the agent is in the requested state already; then the response has the
// agent as it is. That is remembered as well: a late repetition of a pause that changed nothing would
// otherwise pause an agent that was resumed since (SPEC X2.5).
func execute[R any](
	ctx context.Context, s *Service, method string, o order,
	decide func(a *state.Agent, env journal.Env, reason string) ([]*journal.Event, error),
	respond func(*agentv1.Agent) R,
) (none R, err error) {
	if err := validateOrder(o); err != nil {
		return none, err
	}
	a, err := plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.Agent]{
		Frees: true, Method: method, AgentID: o.GetAgentId(), RequestID: o.GetRequestId(), Args: o,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.Agent], error) {
			var d journal.Decision[*agentv1.Agent]
			a, err := st.ControllableActive(env.Actor, o.GetAgentId())
			if err != nil {
				return d, err
			}
			d.Reply, d.Remember = a.Record, true
			d.Events, err = decide(a, env, o.GetReason())
			return d, err
		},
		Answer: agentOf,
	})
	if err != nil {
		return none, err
	}
	return respond(a), nil
}
