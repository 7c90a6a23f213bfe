package waiting

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/waiting/secrets"
)

const (
	// maxBody is the largest delivery (SPEC P3).
	maxBody = 256 << 10
	// maxHeader bounds a header of a delivery, in bytes.
	maxHeader = 1024
	// sourceTrigger is the source of an interest that a delivery registered.
	sourceTrigger = "trigger"
)

// DeliverTrigger accepts a delivery of an outside system (SPEC P2, P3). The token is its credential, and decides the
// namespace and the agent. A trigger with a signature scheme requires a valid signature as well, and what is signed
// decides whether a delivery repeats an earlier one (see signature.SignedID); the request's id is not used. Without
// a scheme the request id decides that. A delivery that has neither a scheme nor a request id is written in a batch,
// and a repetition of it counts as another delivery.
func (s *Service) DeliverTrigger(ctx context.Context, req *waitingv1.DeliverTriggerRequest) (
	*waitingv1.DeliverTriggerResponse, error,
) {
	if err := fault.First(
		fault.RequestID(req.GetRequestId()),
		header("content_type", req.GetContentType(), 255),
		header("hub_signature_256", req.GetHubSignature_256(), maxHeader),
		header("webhook_id", req.GetWebhookId(), maxHeader),
		header("webhook_timestamp", req.GetWebhookTimestamp(), maxHeader),
		header("webhook_signature", req.GetWebhookSignature(), maxHeader),
	); err != nil {
		return nil, err
	}
	if n := len(req.GetBody()); n > maxBody {
		return nil, fault.TooLarge.Newf("the body has %d bytes; a trigger takes at most %d", n, maxBody).
			With("limit", strconv.Itoa(maxBody)).With("value", strconv.Itoa(n))
	}
	found, err := s.find(ctx, req.GetToken())
	if err != nil {
		return nil, err
	}
	to, t := found.address, found.trigger
	// A trigger that has ended refuses the delivery below, however it is signed.
	if lives(t) && t.GetSignatureScheme() != waitingv1.SignatureScheme_SIGNATURE_SCHEME_UNSPECIFIED {
		secret, err := secrets.SigningOf(s.deps.Keys.Ring(), t)
		if err != nil {
			return nil, err
		}
		if err := secrets.VerifySignature(t.GetSignatureScheme(), secret, s.deps.Clock.Now(), req); err != nil {
			return nil, err
		}
	}
	// A repeated delivery has the same content type and body. The token must not be
	// stored, and senders sign every attempt anew.
	same := &waitingv1.DeliverTriggerRequest{
		RequestId: req.GetRequestId(), ContentType: req.GetContentType(),
		Body: req.GetBody(),
	}
	if signed := secrets.SignedID(t.GetSignatureScheme(), req); signed != "" {
		// The content type is not signed, so it may differ.
		same = &waitingv1.DeliverTriggerRequest{RequestId: signed, Body: req.GetBody()}
	}
	if err := s.room(ctx, found, len(req.GetBody())); err != nil {
		if same.GetRequestId() == "" {
			return nil, err
		}
		// A delivery that was accepted before gets its response again (SPEC X2).
		resp, e := s.deliverOnce(rpc.AskRecall(ctx), to, req, same)
		if e == nil || !errors.Is(e, fault.NotFound) {
			return resp, e
		}
		return nil, err
	}
	if same.GetRequestId() == "" {
		return s.batcher.deliver(ctx, s, to, req)
	}
	return s.deliverOnce(ctx, to, req, same)
}

// deliverOnce writes the delivery req, unless it repeats an earlier one. same has the request id to recognise that
// by, and of req only the fields that are the same in a repetition.
func (s *Service) deliverOnce(ctx context.Context, to address, req, same *waitingv1.DeliverTriggerRequest) (
	*waitingv1.DeliverTriggerResponse, error,
) {
	return plane.Do(ctx, s.engine, plane.Command[*State, *waitingv1.DeliverTriggerResponse]{
		Method: "DeliverTrigger", AgentID: to.agent.ID, RequestID: same.GetRequestId(), Args: same, Actor: outside(to),
		Decide: func(st *State, env journal.Env) (d journal.Decision[*waitingv1.DeliverTriggerResponse], err error) {
			d.Events, err = decideDeliver(st, env, to, id.Hash(req.GetToken()), []*waitingv1.DeliverTriggerRequest{req})
			return d, err
		},
		Answer: func(events []*journal.Event) (*waitingv1.DeliverTriggerResponse, error) {
			if responses := outcomes(events); len(responses) == 1 {
				return responses[0], nil
			}
			return nil, fmt.Errorf("waiting: no delivery among %d events", len(events))
		},
	})
}

// target is what a token leads to.
type target struct {
	address
	trigger    *waitingv1.Trigger // nil if it was dropped from memory
	contentful bool               // the content of a delivery may become a message
}

// find returns what a token leads to, NOT_FOUND if nothing. It looks up the token's hash, so its duration
// discloses nothing about other tokens.
func (s *Service) find(ctx context.Context, token string) (target, error) {
	hash := id.Hash(token)
	var to target
	var unread error // of a partition that is damaged
	for _, p := range s.engine.All() {
		_, _, err := journal.View(ctx, p, func(st *State) (struct{}, error) {
			place, known := st.tokens[hash]
			if !known {
				return struct{}{}, nil
			}
			a := st.agents.Get(place.agent)
			to = target{address: place, trigger: a.triggers.Get(place.triggerID)}
			if a.deleted {
				to.status = waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED
			}
			to.contentful = bringsContent(to.trigger, nil) ||
				len(a.activeWaits(func(w *waitingv1.Wait) bool {
					return reaches(to.trigger, w) &&
						bringsContent(to.trigger, w)
				})) > 0
			return struct{}{}, nil
		})
		if p.Damage() != nil {
			unread = err // another partition may have the trigger
			continue
		}
		if err != nil {
			return target{}, err
		}
	}
	if to.triggerID == "" && unread != nil {
		return target{}, unread
	}
	if to.triggerID == "" {
		return target{}, fault.NotFound.New("no such trigger")
	}
	return to, nil
}

// outside returns the actor of a delivery to a trigger.
func outside(to address) *journal.Actor {
	return &journal.Actor{
		Namespace: to.agent.Namespace, Principal: "trigger/" + to.triggerID,
		Role: rpc.RoleIntegration,
	}
}

// header checks that the value of an HTTP header, which may be stored in a message or an
// event, is printable ASCII (or tabs) of at most maxBytes bytes.
func header(field, value string, maxBytes int) error {
	if len(value) > maxBytes {
		return fault.LimitExceeded.Newf("%s has %d bytes, the limit is %d", field, len(value), maxBytes).
			With("field", field).WithField(field, "at most "+strconv.Itoa(maxBytes)+" bytes")
	}
	for i := range len(value) {
		if c := value[i]; (c < ' ' && c != '\t') || c > '~' {
			return fault.Invalid(field, value, "must be printable ASCII")
		}
	}
	return nil
}

// decideDeliver is the rule for one delivery, or for a batch to the same address. Events
// are in the order of the deliveries.
//
// A delivery is published, by events of its own, if its content becomes a message, if it
// reaches no wait yet, or if a wait that it reaches has no other delivery that a turn has not
// seen. Others are only counted. Deliveries for a completed item that reach no wait are
// ignored, which is counted too. hash is that of the token.
func decideDeliver(s *State, env journal.Env, to address, hash string, reqs []*waitingv1.DeliverTriggerRequest) (
	[]*journal.Event, error,
) {
	a := s.agents.Get(to.agent)
	t := a.triggers.Get(to.triggerID)
	status := s.tokens[hash].status // the trigger may have been rotated since find
	if t == nil || a.deleted {
		status = waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED
	}
	if err := checkAddress(status, t, env.Now); err != nil {
		return nil, err
	}
	if a.stopped {
		return nil, fault.AgentStopped.New("the agent is stopped and accepts no deliveries until an operator starts it")
	}
	d := &delivery{
		a: a, k: to.agent, env: env, trigger: t,
		reached: a.activeWaits(func(w *waitingv1.Wait) bool { return reaches(t, w) }),
	}
	// first says that no turn has been shown what the delivery is for: it reaches no wait, or one without unseen ones.
	contentful, first := false, len(d.reached) == 0
	for _, w := range d.reached {
		contentful = contentful || bringsContent(t, w)
		first = first || w.GetTriggerCount() == w.GetConsumedCount()
	}
	switch {
	case len(d.reached) == 0 && t.GetWorkItemId() != "" && a.items.Has(t.GetWorkItemId()):
		d.count(waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_IGNORED, "work_item_completed", len(reqs))
	case contentful || len(d.reached) == 0 && bringsContent(t, nil):
		for _, req := range reqs {
			d.publish(req, true)
		}
		d.mismatches()
	case first:
		if len(d.reached) == 0 {
			d.register()
		}
		d.publish(reqs[0], false)
		d.mismatches()
		d.count(waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_COALESCED, "", len(reqs)-1)
	default:
		d.count(waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_COALESCED, "", len(reqs))
	}
	return d.events, nil
}

// delivery is the state of decideDeliver: trigger and reached, the waits and intents that the
// deliveries are for, are the records after the events so far.
type delivery struct {
	a       *agentWaits
	k       plane.Key
	env     journal.Env
	trigger *waitingv1.Trigger
	reached []*waitingv1.Wait
	events  []*journal.Event
}

// publish adds the events of a delivery. If contentful is set they include its content, which
// becomes a message.
func (d *delivery) publish(req *waitingv1.DeliverTriggerRequest, contentful bool) {
	publishedAt := timestamppb.New(d.env.Now)
	d.trigger = delivered(d.trigger, waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED, 1, publishedAt)
	del := &waitingv1.TriggerDelivered{
		Trigger: d.trigger, DeliveryId: d.env.NewID("dlv_"), ContentType: req.GetContentType(),
		BodyBytes: int64(len(req.GetBody())),
		Outcome:   waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED, Contentful: contentful,
	}
	if contentful {
		del.Body = req.GetBody()
	}
	d.events = append(d.events, triggerEvent(d.k.Namespace, d.trigger, del))
	for i, w := range d.reached {
		u := triggeredBy(w, 1, publishedAt)
		d.reached[i] = u
		// del is in an event already, which is written after this.
		del.WaitIds = append(del.WaitIds, w.GetWaitId())
		d.events = append(d.events, waitEvent(d.k.Namespace, u, &waitingv1.WaitTriggered{
			Wait: u, TriggerId: d.trigger.GetTriggerId(), DeliveryId: del.GetDeliveryId(),
			// The agent is woken by the item that was triggered, or by the message.
			WakeAgent: w.GetWorkItemId() == "" && !contentful,
		}))
	}
}

// mismatches records the delivery for waits that it does not satisfy.
func (d *delivery) mismatches() {
	d.events = append(d.events, d.a.mismatches(d.k, input{
		arrival: arrival{causeExternal, d.trigger.GetTriggerId()}, itemID: d.trigger.GetWorkItemId(),
		matches: func(w *waitingv1.Wait) bool { return reaches(d.trigger, w) },
	})...)
}

// count adds the event of n deliveries that are only counted.
func (d *delivery) count(outcome waitingv1.DeliveryOutcome, reason string, n int) {
	if n == 0 {
		return
	}
	c := &waitingv1.DeliveriesCounted{
		TriggerId: d.trigger.GetTriggerId(), DeliveryId: d.env.NewID("dlv_"), Outcome: outcome, OutcomeReason: reason,
		Count: int64(n), DeliveredAt: timestamppb.New(d.env.Now),
	}
	for _, w := range d.reached {
		c.WaitIds = append(c.WaitIds, w.GetWaitId())
	}
	d.events = append(d.events, triggerEvent(d.k.Namespace, d.trigger, c))
}

// register registers an intent for a trigger that no wait is for, because whoever created
// the trigger wants its deliveries. Then its first delivery is published and further ones
// are counted until a turn has seen them, as for any other intent (SPEC P7).
func (d *delivery) register() {
	w := &waitingv1.Wait{
		WaitId: d.env.NewID("wt_"), AgentId: d.trigger.GetAgentId(), WorkItemId: d.trigger.GetWorkItemId(),
		Mode: waitingv1.WaitMode_WAIT_MODE_INTENT, Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL,
		Source: sourceTrigger, Resource: d.trigger.GetTriggerId(), Condition: d.trigger.GetDescription(),
		ResourceDescription: d.trigger.GetDescription(),
		DeliveryMode:        waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT,
		Status:              waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
		Revision:            1, CreatedAt: timestamppb.New(d.env.Now),
	}
	d.reached = []*waitingv1.Wait{w}
	d.events = append(d.events, waitEvent(d.k.Namespace, w, &waitingv1.WaitRegistered{Wait: w}))
}

// ownInterest reports whether a wait is an intent that register made.
func ownInterest(w *waitingv1.Wait) bool {
	return w.GetMode() == waitingv1.WaitMode_WAIT_MODE_INTENT && w.GetSource() == sourceTrigger
}

// delivered returns a copy of a trigger, with the next revision, that counts further
// deliveries of one outcome, the last of them at deliveredAt.
func delivered(t *waitingv1.Trigger, outcome waitingv1.DeliveryOutcome, count int64,
	deliveredAt *timestamppb.Timestamp,
) *waitingv1.Trigger {
	n := nextTrigger(t)
	n.DeliveryCount += count
	n.LastDeliveredAt = deliveredAt
	switch outcome {
	case waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_COALESCED:
		n.CoalescedCount += count
	case waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_IGNORED:
		n.IgnoredCount += count
	case waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED, waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_UNSPECIFIED:
	}
	return n
}

// reaches reports whether a trigger's deliveries are for a wait of the same agent. Only
// external waits have deliveries: one with a resource has those of that trigger. One without
// has those of every trigger, except that an item's wait has none of another item's trigger
// (SPEC P2).
func reaches(t *waitingv1.Trigger, w *waitingv1.Wait) bool {
	if w.GetKind() != waitingv1.WaitKind_WAIT_KIND_EXTERNAL {
		return false
	}
	if w.GetResource() != "" {
		return w.GetResource() == t.GetTriggerId()
	}
	return w.GetWorkItemId() == t.GetWorkItemId() || w.GetWorkItemId() == "" || t.GetWorkItemId() == ""
}

// bringsContent reports whether the content of deliveries becomes a message: as the wait
// says, or if it does not say or is nil, as the trigger says (SPEC P2).
func bringsContent(t *waitingv1.Trigger, w *waitingv1.Wait) bool {
	mode := w.GetDeliveryMode()
	if mode == waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED {
		mode = t.GetDeliveryMode()
	}
	return mode == waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL
}

// outcomes returns one response for each delivery that events are about, in the order of the
// deliveries.
func outcomes(events []*journal.Event) []*waitingv1.DeliverTriggerResponse {
	var responses []*waitingv1.DeliverTriggerResponse
	for _, ev := range events {
		switch p := ev.Payload.(type) {
		case *waitingv1.TriggerDelivered:
			responses = append(responses, &waitingv1.DeliverTriggerResponse{
				Outcome: p.GetOutcome(), Reason: p.GetOutcomeReason(),
				DeliveryId: p.GetDeliveryId(),
			})
		case *waitingv1.DeliveriesCounted:
			for range p.GetCount() {
				responses = append(responses, &waitingv1.DeliverTriggerResponse{
					Outcome: p.GetOutcome(),
					Reason:  p.GetOutcomeReason(), DeliveryId: p.GetDeliveryId(),
				})
			}
		}
	}
	return responses
}
