package messages

import (
	"context"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/agent/state"
)

// admitSender validates the fields that only a supervisor's follow-up may set: the run that sends
// it, the most authority that it may have, and the wait that it answers.
func admitSender(actor rpc.Actor, kind agentv1.MessageKind, req *agentv1.EnqueueMessageRequest) error {
	followUp := actor.Role == rpc.RoleService && kind == agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP
	switch {
	case req.GetSenderRunId() != "" && !followUp:
		return fault.Invalid("sender_run_id", req.GetSenderRunId(),
			"must be empty: only a supervisor's follow-up has it")
	case req.GetMaxAuthority() != agentv1.Authority_AUTHORITY_UNSPECIFIED && !followUp:
		return fault.Invalid("max_authority", req.GetMaxAuthority().String(),
			"must be left out: only a supervisor's follow-up has it")
	case req.GetAnsweredWaitId() != "" && !followUp:
		return fault.Invalid("answered_wait_id", req.GetAnsweredWaitId(),
			"must be empty: only a supervisor's follow-up has it; name the work_item_id instead")
	}
	return fault.First(optionalID("sender_run_id", req.GetSenderRunId(), "run_"),
		optionalID("answered_wait_id", req.GetAnsweredWaitId(), "wt_"))
}

func optionalID(field, id, prefix string) error {
	if id == "" {
		return nil
	}
	return fault.ID(field, id, prefix)
}

// senderAuthority returns the most authority that a follow-up may have: what the request says,
// and in a turn of the supervisor no more than the turn's messages have (SPEC A14.4).
func (s *Service) senderAuthority(ctx context.Context, req *agentv1.EnqueueMessageRequest) (agentv1.Authority, error) {
	most := req.GetMaxAuthority()
	if req.GetSenderRunId() == "" {
		return most, nil
	}
	namespace := rpc.ActorFrom(ctx).Namespace
	supervisor, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *state.State) (string, error) {
		a, err := st.Find(namespace, req.GetAgentId())
		if err != nil {
			return "", err
		}
		return a.Record.GetSupervisorAgentId(), nil
	})
	if err != nil {
		return most, err
	}
	parent := plane.Key{Namespace: namespace, ID: supervisor}
	of, _, err := journal.View(ctx, s.engine.For(parent.Namespace, parent.ID), func(st *state.State) (agentv1.Authority,
		error,
	) {
		return st.Lookup(parent).SenderAuthority(req.GetSenderRunId()), nil
	})
	return max(most, of), err // a larger number is less authority
}
