package waiting

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

const (
	triggered = waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_TRIGGERED
	coalesced = waitingv1.DeliveryOutcome_DELIVERY_OUTCOME_COALESCED
)

func TestP3_ATriggersSecretIsSaidOnceAndKeptNowhere(t *testing.T) {
	r := newRig(t)
	req := &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", WorkItemId: itemA, Description: "CI", RequestId: "r1",
	}
	made := must.Value(r.service.CreateExternalTrigger(r.agent(), req))(t)
	require.Regexp(t, `^qtr_[A-Za-z0-9_-]{43}$`, made.GetToken())
	require.Equal(t, "https://q.example/v1/triggers/"+made.GetToken(), made.GetUrl())
	require.Equal(t, wakeHint, made.GetTrigger().GetDeliveryMode())
	again := must.Value(r.service.CreateExternalTrigger(r.agent(), req))(t)
	require.Equal(t, made.GetToken(), again.GetToken(), "a repeated request answers with the same one")
	r.deliver(made.GetToken(), "hello")

	l, err := r.service.ListExternalTriggers(r.agent(), &waitingv1.ListExternalTriggersRequest{AgentId: "keeper"})
	require.NoError(t, err)
	require.Len(t, l.GetTriggers(), 1)
	require.EqualValues(t, 1, l.GetTriggers()[0].GetDeliveryCount())
	for _, tr := range append(l.GetTriggers(), made.GetTrigger(), again.GetTrigger()) {
		require.Empty(t, tr.GetTokenHash())
		require.NotContains(t, tr.String(), made.GetToken())
	}
	// Not one line of the journal has it.
	log := must.Value(r.journals.Log(Plane, 0))(t)
	require.NoError(t, log.Scan(context.Background(), 0, func(_ uint64, f framelog.Frame) error {
		require.NotContains(t, string(f.Body), made.GetToken())
		return nil
	}))
}

func TestP3_DeadAddresses(t *testing.T) {
	r := newRig(t)
	deliver := func(token string) error {
		return must.Err(r.service.DeliverTrigger(context.Background(), &waitingv1.DeliverTriggerRequest{Token: token}))
	}
	require.ErrorIs(t, deliver("unknown"), fault.NotFound)
	require.ErrorIs(t, deliver(""), fault.NotFound)

	revoked := r.trigger("", wakeHint)
	before := len(r.events())
	for range 2 {
		resp := must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
			AgentId: "keeper", TriggerId: revoked.GetTrigger().GetTriggerId(),
		}))(t)
		require.Equal(t, waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED, resp.GetTrigger().GetStatus())
	}
	require.Equal(t, []string{"external_trigger_cancelled"}, r.since(before))
	require.ErrorIs(t, deliver(revoked.GetToken()), fault.TriggerRevoked)
	r.restart()
	require.ErrorIs(t, deliver(revoked.GetToken()), fault.TriggerRevoked,
		"revoked stays revoked and does not become unknown")
	_, err := r.service.CancelExternalTrigger(planetest.AsAgent(t.Context(), "other"),
		&waitingv1.CancelExternalTriggerRequest{AgentId: "other", TriggerId: revoked.GetTrigger().GetTriggerId()})
	require.ErrorIs(t, err, fault.NotFound)

	expiring := must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", ExpiresAt: timestamppb.New(epoch.Add(time.Minute)),
	}))(t)
	r.clk.Set(epoch.Add(time.Minute - time.Microsecond))
	require.NoError(t, deliver(expiring.GetToken()))
	r.clk.Set(epoch.Add(time.Minute))
	require.ErrorIs(t, deliver(expiring.GetToken()), fault.TriggerExpired)
	for _, at := range []*timestamppb.Timestamp{timestamppb.New(epoch), {Seconds: 1 << 40}} {
		must.Refuse(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
			AgentId: "keeper", ExpiresAt: at,
		}))(t, fault.InvalidArgument)
	}
}

func TestP3_BodyAtBelowAndAboveItsLimit(t *testing.T) {
	r := newRig(t)
	token := r.trigger("", contentful).GetToken()
	for n, ok := range map[int]bool{maxBody - 1: true, maxBody: true, maxBody + 1: false} {
		_, err := r.service.DeliverTrigger(context.Background(), &waitingv1.DeliverTriggerRequest{
			Token: token, Body: make([]byte, n),
		})
		if ok {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, fault.TooLarge)
			require.NotContains(t, err.Error(), token)
		}
	}
	require.Error(t, must.Err(r.service.DeliverTrigger(context.Background(), &waitingv1.DeliverTriggerRequest{
		Token: token, ContentType: strings.Repeat("c", 256),
	})))
}

func TestP3_AnIdempotencyKeyCountsOnce(t *testing.T) {
	r := newRig(t)
	token, other := r.trigger("", wakeHint).GetToken(), r.trigger("", wakeHint).GetToken()
	send := func(token, body string) (*waitingv1.DeliverTriggerResponse, error) {
		return r.service.DeliverTrigger(context.Background(), &waitingv1.DeliverTriggerRequest{
			Token: token, RequestId: "delivery-1", Body: []byte(body),
		})
	}
	first := must.Value(send(token, "x"))(t)
	before := len(r.events())
	r.restart()
	require.Equal(t, first.GetDeliveryId(), must.Value(send(token, "x"))(t).GetDeliveryId())
	require.Len(t, r.events(), before)
	must.Refuse(send(token, "y"))(t, fault.RequestIDReused)
	third := must.Value(send(other, "x"))(t)
	require.NotEqual(t, first.GetDeliveryId(), third.GetDeliveryId(), "another trigger's keys are its own")
}

// What a delivery comes to, by who waits (SPEC P2, P7).
func TestP2_Deliveries(t *testing.T) {
	type want struct {
		outcome    waitingv1.DeliveryOutcome
		contentful bool
		wake       bool // the agent itself
		waits      int
	}
	news, again := want{triggered, false, false, 1}, want{coalesced, false, false, 1}
	for name, c := range map[string]struct {
		trigger string // item
		mode    waitingv1.DeliveryMode
		setup   func(r *rig, trg *waitingv1.Trigger)
		want    []want // of deliveries in turn
	}{
		"nobody waits, wake hint": {"", wakeHint, nil, []want{{triggered, false, true, 1}, again, again}},
		"nobody waits, contentful": {
			"", contentful, nil,
			[]want{{triggered, true, false, 0}, {triggered, true, false, 0}},
		},
		"an item's, nobody waits": {itemA, wakeHint, nil, []want{news, again}},
		"an item waits for it": {itemA, wakeHint, func(r *rig, trg *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external, Resource: trg.GetTriggerId(), WorkItemId: itemA})
		}, []want{news, again, again}},
		"an item waits for any": {itemA, wakeHint, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA})
		}, []want{news, again}},
		"another item waits for any": {itemA, wakeHint, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemB})
		}, []want{news, again}},
		"the item wants the content, each time": {itemA, wakeHint, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, DeliveryMode: contentful})
		}, []want{{triggered, true, false, 1}, {triggered, true, false, 1}}},
		"the wait's mode counts, not the trigger's": {itemA, contentful, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, DeliveryMode: wakeHint})
		}, []want{news, again}},
		"a wait that says nothing takes what the trigger brings": {
			itemA, contentful, func(r *rig, trg *waitingv1.Trigger) {
				r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, Resource: trg.GetTriggerId()})
			}, []want{{triggered, true, false, 1}, {triggered, true, false, 1}},
		},
		"so does an interest": {itemA, contentful, func(r *rig, _ *waitingv1.Trigger) {
			must.Value(r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{
				AgentId: "keeper", WorkItemId: itemA,
			}))(r.t)
		}, []want{{triggered, true, false, 1}}},
		"so does the agent's own": {"", contentful, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external})
		}, []want{{triggered, true, false, 1}}},
		"one wants a hint, another inherits the content": {itemA, contentful, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA, DeliveryMode: wakeHint})
			must.Value(r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{
				AgentId: "keeper", WorkItemId: itemA,
			}))(r.t)
		}, []want{{triggered, true, false, 2}}},
		"the agent waits by itself": {"", wakeHint, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external})
		}, []want{{triggered, false, true, 1}, again}},
		"the agent waits by itself for the content": {"", wakeHint, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external, DeliveryMode: contentful})
		}, []want{{triggered, true, false, 1}}},
		"other waits are not meant": {itemA, wakeHint, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: taskResult, Resource: taskX, WorkItemId: itemB})
		}, []want{news}},
		"a wait and an interest": {itemA, wakeHint, func(r *rig, _ *waitingv1.Trigger) {
			r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA})
			must.Value(r.service.CreateWait(r.agent(), &waitingv1.CreateWaitRequest{
				AgentId: "keeper", WorkItemId: itemA, DeliveryMode: contentful,
			}))(r.t)
		}, []want{{triggered, true, false, 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			made := r.trigger(c.trigger, c.mode)
			if c.setup != nil {
				c.setup(r, made.GetTrigger())
			}
			for i, w := range c.want {
				before := len(r.events())
				out := r.deliver(made.GetToken(), "body")
				require.Equal(t, w.outcome, out.GetOutcome(), "delivery %d", i)
				var reached []string
				woken := false
				for _, ev := range r.events()[before:] {
					require.Equal(t, rpc.RoleIntegration, ev.Role)
					switch p := ev.Payload.(type) {
					case *waitingv1.TriggerDelivered:
						reached = p.GetWaitIds()
						require.Equal(t, w.contentful, p.GetContentful(), "delivery %d", i)
						require.EqualValues(t, 4, p.GetBodyBytes())
						require.Equal(t, w.contentful, len(p.GetBody()) > 0, "the body is kept for those who want it")
					case *waitingv1.DeliveriesCounted:
						reached = p.GetWaitIds()
						require.EqualValues(t, 1, p.GetCount())
						require.Len(t, r.events(), before+1, "what only counts is one line")
					case *waitingv1.WaitTriggered:
						woken = woken || p.GetWakeAgent()
						require.Equal(t, out.GetDeliveryId(), p.GetDeliveryId())
					}
				}
				require.Len(t, reached, w.waits)
				require.Equal(t, w.wake, woken, "delivery %d", i)
				got := r.listTriggers()[0]
				require.EqualValues(t, i+1, got.GetDeliveryCount())
				require.EqualValues(t, i+2, got.GetRevision())
				for _, id := range reached {
					require.EqualValues(t, i+1, r.wait(id).GetTriggerCount())
				}
			}
		})
	}
}

func (r *rig) listTriggers() []*waitingv1.Trigger {
	r.t.Helper()
	return must.Value(r.service.ListExternalTriggers(r.agent(), &waitingv1.ListExternalTriggersRequest{
		AgentId: "keeper", IncludeRevoked: true,
	}))(r.t).GetTriggers()
}

// An external wait stays active over many deliveries. Only completed turns consume those
// that they have shown (SPEC P2).
func TestP2_AnExternalWaitStaysAndCounts(t *testing.T) {
	r := newRig(t)
	token := r.trigger(itemA, wakeHint).GetToken()
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: external, WorkItemId: itemA}).GetWait().GetWaitId()
	for i := range 3 {
		r.clk.Advance(time.Second)
		r.deliver(token, "")
		got := r.wait(w)
		require.Equal(t, stands, got.GetStatus())
		require.EqualValues(t, i+1, got.GetTriggerCount())
		require.Equal(t, r.clk.Now(), got.GetLastTriggeredAt().AsTime())
		require.True(t, got.GetTriggered())
	}
	turn := &agentv1.Turn{TurnId: "trn_1", ShownWaits: []*agentv1.ShownWait{{WaitId: w, TriggerCount: 2}}}
	r.hear("", &agentv1.TurnFailed{Turn: turn})
	r.hear("", &agentv1.TurnInterrupted{Turn: turn})
	require.NotContains(t, r.since(0), "wait_consumed", "a turn that failed consumes nothing")
	r.hear("", &agentv1.TurnCompleted{Turn: turn})
	require.EqualValues(t, 2, r.wait(w).GetConsumedCount())
	require.True(t, r.wait(w).GetTriggered(), "the third came after that look")
	turn.ShownWaits[0].TriggerCount = 3
	r.hear("", &agentv1.TurnCompleted{Turn: turn})
	require.False(t, r.wait(w).GetTriggered())
	require.Equal(t, triggered, r.deliver(token, "").GetOutcome(), "the next one is news again")
	require.True(t, r.wait(w).GetTriggered())
	r.restart()
	require.EqualValues(t, 4, r.wait(w).GetTriggerCount())
	require.EqualValues(t, 3, r.wait(w).GetConsumedCount())
}
