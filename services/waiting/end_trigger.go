package waiting

import (
	"context"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/waiting/records"
)

// CancelExternalTrigger revokes a trigger. A trigger that has ended is returned unchanged.
func (s *Service) CancelExternalTrigger(ctx context.Context, req *waitingv1.CancelExternalTriggerRequest) (
	*waitingv1.CancelExternalTriggerResponse, error,
) {
	if err := fault.First(admitWrite(ctx, req), fault.ID("trigger_id", req.GetTriggerId(), "trg_")); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CancelExternalTriggerResponse]{
		Frees: true, Method: "CancelExternalTrigger", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(),
		Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.CancelExternalTriggerResponse], error) {
			var d journal.Decision[*waitingv1.CancelExternalTriggerResponse]
			t, err := st.trigger(env.Actor.Namespace, req.GetAgentId(), req.GetTriggerId())
			if err != nil {
				return d, err
			}
			if !lives(t) {
				d.Reply = &waitingv1.CancelExternalTriggerResponse{Trigger: publicTrigger(t)}
				return d, nil
			}
			k := plane.KeyOf(env.Actor.Namespace, req.GetAgentId())
			a := st.agents.Get(k)
			d.Events = a.endTrigger(k, t, env, waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED, a.weakened(t, env.Now))
			return d, nil
		},
		Answer: journal.AnswerOf(func(p *waitingv1.ExternalTriggerCancelled) *waitingv1.CancelExternalTriggerResponse {
			return &waitingv1.CancelExternalTriggerResponse{Trigger: publicTrigger(p.GetTrigger())}
		}),
	})
}

// endTrigger returns the events that end a trigger, as revoked or expired, and cancel the intent that its deliveries
// registered. Other waits for it stay active. The first event names weakened: those of them that no other live
// trigger reaches and of which no reminder is ahead (SPEC P8).
func (a *agentWaits) endTrigger(k plane.Key, t *waitingv1.Trigger, env journal.Env, status waitingv1.TriggerStatus,
	weakened []string,
) []*journal.Event {
	n := nextTrigger(t)
	n.Status = status
	ev, reason := triggerEvent(k.Namespace, n, &waitingv1.ExternalTriggerCancelled{
		Trigger: n, WeakenedWaitIds: weakened,
	}), waitingv1.WaitEndReason_WAIT_END_REASON_TRIGGER_CANCELLED
	if status == waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED {
		ev, reason = triggerEvent(k.Namespace, n, &waitingv1.TriggerExpired{Trigger: n, WeakenedWaitIds: weakened}),
			waitingv1.WaitEndReason_WAIT_END_REASON_TRIGGER_EXPIRED
	}
	events := []*journal.Event{ev}
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool {
		return ownInterest(w) &&
			w.GetResource() == t.GetTriggerId()
	}) {
		events = append(events, cancelled(k.Namespace, w, env, reason))
	}
	return events
}

// checkAddress returns TRIGGER_REVOKED or TRIGGER_EXPIRED for an address that accepts no
// deliveries, nil for one that does. status is that of the address, which may be an older one
// of t; t may be nil if the status is revoked.
func checkAddress(status waitingv1.TriggerStatus, t *waitingv1.Trigger, now time.Time) error {
	switch {
	case status == waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED:
		return fault.TriggerRevoked.New("this address was revoked; ask its owner for a new one")
	case status == waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED, expired(t, now):
		return fault.TriggerExpired.New("this address has expired; ask its owner for a new one")
	}
	return nil
}

// GetExternalTrigger returns one trigger, without its secret (SPEC P3.4).
func (s *Service) GetExternalTrigger(ctx context.Context, req *waitingv1.GetExternalTriggerRequest) (
	*waitingv1.GetExternalTriggerResponse, error,
) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(admit(actor, req.GetAgentId()), fault.ID("trigger_id", req.GetTriggerId(), "trg_")); err !=
		nil {
		return nil, err
	}
	t, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*waitingv1.Trigger, error) {
		return st.trigger(actor.Namespace, req.GetAgentId(), req.GetTriggerId())
	})
	if err != nil {
		return nil, err
	}
	return &waitingv1.GetExternalTriggerResponse{Trigger: publicTrigger(t)}, nil
}

// ListExternalTriggers returns an agent's triggers in order of creation, without their
// secrets: the active ones, or with include_revoked also those that ended and are still in
// memory.
func (s *Service) ListExternalTriggers(ctx context.Context, req *waitingv1.ListExternalTriggersRequest) (
	*waitingv1.ListExternalTriggersResponse, error,
) {
	ts, next, _, err := listed(ctx, s, "triggers", req.GetAgentId(), req.GetPageSize(), req.GetPageToken(),
		func(a *agentWaits) *records.Set[*waitingv1.Trigger] { return &a.triggers },
		req.GetIncludeRevoked(), func(t *waitingv1.Trigger) bool { return req.GetIncludeRevoked() || lives(t) },
		func(_ *agentWaits, t *waitingv1.Trigger) *waitingv1.Trigger { return publicTrigger(t) })
	if err != nil {
		return nil, err
	}
	return &waitingv1.ListExternalTriggersResponse{Triggers: ts, NextPageToken: next}, nil
}
