package turns

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/access"
	"quartet/services/agent/state"
	"quartet/services/agent/tools"
)

// StartLocalCalls records calls that the runner is about to execute itself (SPEC A6.9). If the
// runner is lost before it submits the round with their results, the next context shows them
// as calls whose outcome is unknown.
func (s *Service) StartLocalCalls(ctx context.Context, req *agentv1.StartLocalCallsRequest) (
	*agentv1.StartLocalCallsResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := access.CheckRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return nil, err
	}
	if err := validateCalls("calls", req.GetCalls(), true, map[string]bool{}); err != nil {
		return nil, err
	}
	if len(req.GetCalls()) == 0 {
		return nil, fault.Invalid("calls", "", "must have at least one call")
	}
	_, err := plane.Do(ctx, s.engine, plane.Command[*state.State, struct{}]{
		Method: "StartLocalCalls", AgentID: req.GetAgentId(),
		Decide: func(st *state.State, env journal.Env) (journal.Decision[struct{}], error) {
			return decideStartCalls(st, env, req)
		},
	})
	if err != nil {
		return nil, err
	}
	until := s.deps.Leases.Arm(plane.Key{Namespace: actor.Namespace, ID: req.GetAgentId()}, req.GetRunId())
	return &agentv1.StartLocalCallsResponse{LeaseExpiresAt: timestamppb.New(until)}, nil
}

// decideStartCalls is the rule of StartLocalCalls. A call that was started before writes nothing.
func decideStartCalls(s *state.State, env journal.Env, req *agentv1.StartLocalCallsRequest) (journal.Decision[struct{}],
	error,
) {
	var d journal.Decision[struct{}]
	t, err := s.HeldTurn(env.Actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId())
	if err != nil {
		return d, err
	}

	// The calls belong to the next round.
	n := len(t.Rounds)
	if int(req.GetRoundIndex()) != n {
		return d, fault.Invalid("round_index", fmt.Sprint(req.GetRoundIndex()),
			fmt.Sprintf("must be %d, the next round of the turn", n))
	}
	if n > 0 && !t.Rounds[n-1].GetSettled() {
		return d, fault.Invalid("round_index", fmt.Sprint(n), fmt.Sprintf("round %d has calls without a result; "+
			"submit it again first", n-1))
	}

	// Leave out calls that were started before.
	started := map[string]*agentv1.ToolCall{}
	for _, c := range t.StartedCalls {
		started[c.GetCallId()] = c
	}
	var calls []*agentv1.ToolCall
	for _, c := range req.GetCalls() {
		known := started[c.GetCallId()]
		switch {
		case known == nil:
			calls = append(calls, c)
		case !proto.Equal(known, c):
			return d, fault.RequestIDReused.Newf("call %q of round %d was started with another tool or other "+
				"arguments; give each call an id of its own", c.GetCallId(), n).
				With("call_id", c.GetCallId())
		}
	}
	if len(calls) == 0 {
		return d, nil
	}
	if err := fault.Entries("calls", len(started)+len(calls), MaxCalls); err != nil {
		return d, err
	}
	d.Events = []*journal.Event{{
		AgentID: req.GetAgentId(), WorkItemID: t.Record.GetWorkItemId(),
		Payload: &agentv1.LocalCallsStarted{TurnId: req.GetTurnId(), RoundIndex: req.GetRoundIndex(), Calls: calls},
	}}
	return d, nil
}

// validateCalls checks the calls of a field and adds their ids to seen, which has the call ids of the round.
// needsID says that each call must have an id.
func validateCalls(field string, calls []*agentv1.ToolCall, needsID bool, seen map[string]bool) error {
	if err := fault.Entries(field, len(calls), MaxCalls); err != nil {
		return err
	}
	for i, c := range calls {
		if err := fault.Text(fmt.Sprintf("%s[%d].name", field, i), c.GetName(), 128, true); err != nil {
			return err
		}
		if err := fault.Text(fmt.Sprintf("%s[%d].call_id", field, i), c.GetCallId(), 128, needsID); err != nil {
			return err
		}
		if id := c.GetCallId(); id != "" && seen[id] {
			return fault.Invalid(fmt.Sprintf("%s[%d].call_id", field, i), id, "must be unique in its round")
		}
		seen[c.GetCallId()] = true
		if err := tools.CheckNesting(fmt.Sprintf("%s[%d].arguments", field, i), c.GetArguments()); err != nil {
			return err
		}
	}
	return nil
}
