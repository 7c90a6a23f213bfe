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

// order is a control action that a caller requests (SPEC A7, A8).
type order struct {
	agentID, requestID, reason string
}

// validateOrder checks what needs no state.
func validateOrder(ctx context.Context, o order) error {
	return fault.First(
		rpc.RequireRole(ctx, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleAgent, rpc.RoleService),
		fault.Name("agent_id", o.agentID),
		fault.RequestID(o.requestID),
		fault.Text("reason", o.reason, MaxReasonChars, false),
	)
}

// MaxReasonChars bounds the reason of a control action.
const MaxReasonChars = 2000

// agentOf returns the agent as the events of a control action leave it.
func agentOf(events []*journal.Event) (*agentv1.Agent, error) {
	for i := len(events) - 1; i >= 0; i-- {
		if p, ok := events[i].Payload.(interface{ GetAgent() *agentv1.Agent }); ok {
			return p.GetAgent(), nil
		}
	}
	return nil, fmt.Errorf("agent: no agent among %d events", len(events))
}

// execute carries out a control action. If decide returns no events the agent is in the
// requested state already; then the response is the agent as it is, and nothing is
// written.
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
