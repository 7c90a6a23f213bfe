package control

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/state"
)

// order is what somebody tells an agent to do: not a message but a control
// action, so it takes effect whatever stands in the lane (SPEC A7, A8).
type order struct {
	agentID, requestID, reason string
}

// admitOrder checks what needs no state.
func validateOrder(ctx context.Context, o order) error {
	return fault.First(
		rpc.RequireRole(ctx, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent, rpc.RoleService),
		fault.Name("agent_id", o.agentID),
		fault.RequestID(o.requestID),
		fault.Text("reason", o.reason, MaxReasonChars, false),
	)
}

// maxReasonChars is as much as people say about an order.
const MaxReasonChars = 2000

// agentOf is the agent that the events of an order leave behind.
func agentOf(events []*journal.Event) (*agentv1.Agent, error) {
	for i := len(events) - 1; i >= 0; i-- {
		if p, ok := events[i].Payload.(interface{ GetAgent() *agentv1.Agent }); ok {
			return p.GetAgent(), nil
		}
	}
	return nil, fmt.Errorf("agent: no agent among %d events", len(events))
}

// obey runs an order. decide gives no events where the agent stands so already;
// then the answer is the agent as it is, and nothing is written.
func (s *Service) execute(ctx context.Context, method string, o order, args proto.Message, decide func(a *state.Agent, env journal.Env) ([]*journal.Event, error)) (*agentv1.Agent, error) {
	if err := validateOrder(ctx, o); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*state.State, *agentv1.Agent]{
		Method: method, AgentID: o.agentID, RequestID: o.requestID, Args: args,
		Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.Agent], error) {
			var d journal.Decision[*agentv1.Agent]
			a, err := st.ControllableActive(env.Actor, o.agentID)
			if err != nil {
				return d, err
			}
			d.Reply = a.Record
			d.Events, err = decide(a, env)
			return d, err
		},
		Answer: agentOf,
	})
}
