package waiting

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxBody is the largest delivery (SPEC P3).
const maxBody = 256 << 10

// CreateExternalTrigger makes a secret address for an outside system (SPEC P3).
// The secret follows from the trigger's id and this installation's key, so a
// repeated request answers with the same one although only its hash is stored.
func (s *Service) CreateExternalTrigger(ctx context.Context, req *waitingv1.CreateExternalTriggerRequest) (*waitingv1.CreateExternalTriggerResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		admitWrite(actor, req.GetAgentId()),
		fault.RequestID(req.GetRequestId()),
		itemID(req.GetWorkItemId()),
		fault.TextBytes("description", req.GetDescription(), fault.MaxFreeTextBytes, false),
		knownDelivery(req.GetDeliveryMode()),
	); err != nil {
		return nil, err
	}
	if at := req.GetExpiresAt(); at != nil && at.CheckValid() != nil {
		return nil, fault.Invalid("expires_at", at.String(), "must be a time between the years 1 and 9999")
	}
	target, refused := s.target(ctx, req.GetAgentId(), req.GetWorkItemId(), false)
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CreateExternalTriggerResponse]{
		Method: "CreateExternalTrigger", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(_ *State, env journal.Env) (journal.Decision[*waitingv1.CreateExternalTriggerResponse], error) {
			if refused != nil { // for the rule to say: a repetition has its first answer
				return journal.Decision[*waitingv1.CreateExternalTriggerResponse]{}, refused
			}
			var d journal.Decision[*waitingv1.CreateExternalTriggerResponse]
			if at := req.GetExpiresAt(); at != nil && !at.AsTime().After(env.Now) {
				return d, fault.Invalid("expires_at", at.AsTime().Format(time.RFC3339), "must lie in the future")
			}
			t := &waitingv1.Trigger{
				TriggerId: env.NewID("trg_"), AgentId: req.GetAgentId(), WorkItemId: target, Description: req.GetDescription(),
				DeliveryMode: orWakeHint(req.GetDeliveryMode()), Status: waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE,
				Revision: 1, CreatedAt: timestamppb.New(env.Now),
			}
			if at := req.GetExpiresAt(); at != nil {
				t.ExpiresAt = pbjson.Timestamp(at.AsTime())
			}
			t.TokenHash = id.Hash(s.deps.TriggerSecret(t.GetTriggerId()))
			d.Events = []*journal.Event{triggerEvent(env.Actor.Namespace, t, &waitingv1.ExternalTriggerCreated{Trigger: t})}
			return d, nil
		},
		Answer: func(events []*journal.Event) (*waitingv1.CreateExternalTriggerResponse, error) {
			for _, ev := range events {
				if p, ok := ev.Payload.(*waitingv1.ExternalTriggerCreated); ok {
					token := s.deps.TriggerSecret(p.GetTrigger().GetTriggerId())
					return &waitingv1.CreateExternalTriggerResponse{
						Trigger: publicTrigger(p.GetTrigger()), Token: token,
						Url: strings.TrimSuffix(s.cfg.PublicURL, "/") + "/v1/triggers/" + token,
					}, nil
				}
			}
			return nil, fmt.Errorf("waiting: no external_trigger_created among %d events", len(events))
		},
	})
}

// publicTrigger leaves out what nobody needs to see.
func publicTrigger(t *waitingv1.Trigger) *waitingv1.Trigger {
	v := proto.CloneOf(t)
	v.TokenHash = ""
	return v
}

func triggerEvent(namespace string, t *waitingv1.Trigger, payload proto.Message) *journal.Event {
	return &journal.Event{Namespace: namespace, AgentID: t.GetAgentId(), WorkItemID: t.GetWorkItemId(), Payload: payload}
}

// CancelExternalTrigger kills an address. Repeating it changes nothing.
func (s *Service) CancelExternalTrigger(ctx context.Context, req *waitingv1.CancelExternalTriggerRequest) (*waitingv1.CancelExternalTriggerResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		admitWrite(actor, req.GetAgentId()),
		fault.RequestID(req.GetRequestId()),
		fault.ID("trigger_id", req.GetTriggerId(), "trg_"),
	); err != nil {
		return nil, err
	}
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.CancelExternalTriggerResponse]{
		Method: "CancelExternalTrigger", AgentID: req.GetAgentId(), RequestID: req.GetRequestId(), Args: req,
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.CancelExternalTriggerResponse], error) {
			var d journal.Decision[*waitingv1.CancelExternalTriggerResponse]
			var t *waitingv1.Trigger
			if a := st.agents[key{env.Actor.Namespace, req.GetAgentId()}]; a != nil {
				t = a.triggers.byID[req.GetTriggerId()]
			}
			switch {
			case t == nil:
				return d, fault.NotFound.Newf("agent %q has no trigger %q", req.GetAgentId(), req.GetTriggerId()).With("trigger_id", req.GetTriggerId())
			case t.GetStatus() == waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED:
				d.Reply = &waitingv1.CancelExternalTriggerResponse{Trigger: publicTrigger(t)}
				return d, nil
			}
			n := proto.CloneOf(t)
			n.Revision++
			n.Status = waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED
			d.Events = []*journal.Event{triggerEvent(env.Actor.Namespace, n, &waitingv1.ExternalTriggerCancelled{Trigger: n})}
			return d, nil
		},
		Answer: func(events []*journal.Event) (*waitingv1.CancelExternalTriggerResponse, error) {
			for _, ev := range events {
				if p, ok := ev.Payload.(*waitingv1.ExternalTriggerCancelled); ok {
					return &waitingv1.CancelExternalTriggerResponse{Trigger: publicTrigger(p.GetTrigger())}, nil
				}
			}
			return nil, fmt.Errorf("waiting: no external_trigger_cancelled among %d events", len(events))
		},
	})
}

// ListExternalTriggers reads an agent's triggers, without their secrets.
func (s *Service) ListExternalTriggers(ctx context.Context, req *waitingv1.ListExternalTriggersRequest) (*waitingv1.ListExternalTriggersResponse, error) {
	ts, next, _, err := listed(ctx, s, "triggers", req.GetAgentId(), req.GetPageSize(), req.GetPageToken(),
		func(a *agentWaits) *records[*waitingv1.Trigger] { return &a.triggers },
		func(t *waitingv1.Trigger) bool {
			return req.GetIncludeRevoked() || t.GetStatus() == waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE
		})
	if err != nil {
		return nil, err
	}
	resp := &waitingv1.ListExternalTriggersResponse{NextPageToken: next}
	for _, t := range ts {
		resp.Triggers = append(resp.Triggers, publicTrigger(t))
	}
	return resp, nil
}

// DeliverTrigger takes what an outside system sent (SPEC P2, P3). The token is
// the only credential: who calls, and for which tenant, follows from it.
func (s *Service) DeliverTrigger(ctx context.Context, req *waitingv1.DeliverTriggerRequest) (*waitingv1.DeliverTriggerResponse, error) {
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		fault.Text("content_type", req.GetContentType(), 255, false),
	); err != nil {
		return nil, err
	}
	if n := len(req.GetBody()); n > maxBody {
		return nil, fault.TooLarge.Newf("the body has %d bytes; a trigger takes at most %d", n, maxBody).With("limit", strconv.Itoa(maxBody)).With("value", strconv.Itoa(n))
	}
	// The hash is looked up, never compared: nothing about a secret can be
	// learnt from how long the look takes.
	hash := id.Hash(req.GetToken())
	var owner tokenOwner
	for _, p := range s.engine.All() {
		o, _, err := journal.View(ctx, p, func(st *State) (tokenOwner, error) { return st.tokens[hash], nil })
		if err != nil {
			return nil, err
		}
		if o.triggerID != "" {
			owner = o
		}
	}
	if owner.triggerID == "" {
		return nil, fault.NotFound.New("no such trigger")
	}
	args := proto.CloneOf(req)
	args.Token = ""
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.DeliverTriggerResponse]{
		Method: "DeliverTrigger", AgentID: owner.agent.id, RequestID: req.GetRequestId(), Args: args,
		Actor: &journal.Actor{Namespace: owner.agent.namespace, Principal: "trigger/" + owner.triggerID, Role: rpc.RoleIntegration},
		Decide: func(st *State, env journal.Env) (journal.Decision[*waitingv1.DeliverTriggerResponse], error) {
			return decideDeliver(st, env, owner, req)
		},
		Answer: answerDeliver,
	})
}

func decideDeliver(s *State, env journal.Env, owner tokenOwner, req *waitingv1.DeliverTriggerRequest) (journal.Decision[*waitingv1.DeliverTriggerResponse], error) {
	var d journal.Decision[*waitingv1.DeliverTriggerResponse]
	a := s.agents[owner.agent]
	t := a.triggers.byID[owner.triggerID]
	switch {
	case t.GetStatus() == waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED:
		return d, fault.TriggerRevoked.New("this trigger was revoked; ask its owner for a new one")
	case t.GetExpiresAt() != nil && !env.Now.Before(t.GetExpiresAt().AsTime()):
		return d, fault.TriggerExpired.Newf("this trigger expired at %s; ask its owner for a new one", t.GetExpiresAt().AsTime().Format(time.RFC3339))
	}
	n := proto.CloneOf(t)
	n.Revision++
	n.DeliveryCount++
	n.LastDeliveredAt = timestamppb.New(env.Now)
	del := &waitingv1.TriggerDelivered{
		Trigger: n, DeliveryId: env.NewID("dlv_"), ContentType: req.GetContentType(), BodyBytes: int64(len(req.GetBody())),
		Outcome: waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED,
	}
	d.Events = []*journal.Event{triggerEvent(owner.agent.namespace, n, del)}

	reached := a.activeWaits(func(w *waitingv1.Wait) bool { return reaches(t, w) })
	fresh := false
	for _, w := range reached {
		fresh = fresh || w.GetTriggerCount() == w.GetConsumedCount()
		u := nextWait(w)
		u.TriggerCount++
		u.LastTriggeredAt = n.GetLastDeliveredAt()
		del.WaitIds = append(del.WaitIds, w.GetWaitId())
		del.Contentful = del.GetContentful() || w.GetDeliveryMode() == waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL
		// An item shows that it was triggered; an agent that waits by itself
		// has no such face and is woken.
		del.WakeAgent = del.GetWakeAgent() || w.GetWorkItemId() == ""
		d.Events = append(d.Events, waitEvent(owner.agent.namespace, u, &waitingv1.WaitTriggered{Wait: u, TriggerId: t.GetTriggerId(), DeliveryId: del.GetDeliveryId()}))
	}
	switch {
	case len(reached) > 0:
		if !fresh && !del.GetContentful() {
			del.Outcome = waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_COALESCED
		}
	case t.GetWorkItemId() != "" && a.items.has(t.GetWorkItemId()):
		del.Outcome, del.OutcomeReason = waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_IGNORED, "work_item_completed"
	case t.GetDeliveryMode() == waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL:
		del.Contentful = true
	default:
		del.WakeAgent = true
	}
	if del.GetContentful() {
		del.Body = req.GetBody()
	}
	return d, nil
}

// reaches says which waits a trigger speaks to: those that name it, and those
// that take any trigger of their owner (SPEC P2).
func reaches(t *waitingv1.Trigger, w *waitingv1.Wait) bool {
	if w.GetKind() != waitingv1.WaitKind_WAIT_KIND_EXTERNAL {
		return false
	}
	if w.GetResource() != "" {
		return w.GetResource() == t.GetTriggerId()
	}
	return w.GetWorkItemId() == t.GetWorkItemId() || w.GetWorkItemId() == "" || t.GetWorkItemId() == ""
}

func answerDeliver(events []*journal.Event) (*waitingv1.DeliverTriggerResponse, error) {
	for _, ev := range events {
		if p, ok := ev.Payload.(*waitingv1.TriggerDelivered); ok {
			return &waitingv1.DeliverTriggerResponse{Outcome: p.GetOutcome(), Reason: p.GetOutcomeReason(), DeliveryId: p.GetDeliveryId()}, nil
		}
	}
	return nil, fmt.Errorf("waiting: no trigger_delivered among %d events", len(events))
}
