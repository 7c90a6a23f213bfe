package waiting

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/services/waiting/records"
)

func (r *rig) operator() context.Context { return planetest.As(r.t.Context(), "operator") }

func (r *rig) tryDeliver(req *waitingv1.DeliverTriggerRequest) error {
	return must.Err(r.service.DeliverTrigger(context.Background(), req))
}

func (r *rig) rotate(triggerID, requestID string) *waitingv1.RotateExternalTriggerResponse {
	r.t.Helper()
	return must.Value(r.service.RotateExternalTrigger(r.agent(), &waitingv1.RotateExternalTriggerRequest{
		AgentId: "keeper", TriggerId: triggerID, RequestId: requestID,
	}))(r.t)
}

func TestP3_Rotation(t *testing.T) {
	r := newRig(t)
	first := r.trigger(itemA, wakeHint)
	id := first.GetTrigger().GetTriggerId()
	w := r.waitFor(&waitingv1.WaitForRequest{Wake: external, Resource: id, WorkItemId: itemA}).GetWait().GetWaitId()
	r.deliver(first.GetToken(), "")
	second := r.rotate(id, "r1")
	require.NotEqual(t, first.GetToken(), second.GetToken())
	require.Equal(t, "https://q.example/v1/triggers/"+second.GetToken(), second.GetUrl())
	require.Equal(t, second.GetToken(), r.rotate(id, "r1").GetToken(), "a repeated request answers with the same one")
	require.Empty(t, second.GetTrigger().GetTokenHash())

	require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: first.GetToken()}), fault.TriggerRevoked,
		"it was one, and is none any more")
	require.Equal(t, coalesced, r.deliver(second.GetToken(), "").GetOutcome(), "waits and counts stay")
	require.EqualValues(t, 2, r.wait(w).GetTriggerCount())
	third := r.rotate(id, "r2")
	r.restart()
	for _, old := range []string{first.GetToken(), second.GetToken()} {
		require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: old}), fault.TriggerRevoked)
	}
	r.deliver(third.GetToken(), "")
	require.EqualValues(t, 2, r.listTriggers()[0].GetGeneration())

	must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
		AgentId: "keeper", TriggerId: id,
	}))(t)
	for _, c := range []struct {
		agent, id string
		want      fault.Reason
	}{
		{"keeper", id, fault.TriggerRevoked},
		{"keeper", "trg_00000000000000000000000zzz", fault.NotFound},
		{"keeper", itemA, fault.InvalidArgument},
		{"other", id, fault.NotFound}, // another agent's looks like none
	} {
		must.Refuse(r.service.RotateExternalTrigger(planetest.AsAgent(t.Context(), c.agent),
			&waitingv1.RotateExternalTriggerRequest{AgentId: c.agent, TriggerId: c.id}))(t, c.want, c)
	}
}

// A trigger expires by itself, once, also while the process is down; what was
// registered for it ends, and what waits for it is weak from then on.
func TestP3_Expiry(t *testing.T) {
	for name, away := range map[string]bool{"while it runs": false, "while it is down": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			made := must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
				AgentId: "keeper", ExpiresAt: timestamppb.New(epoch.Add(time.Hour)),
			}))(t)
			id := made.GetTrigger().GetTriggerId()
			r.deliver(made.GetToken(), "") // registers an interest
			w := r.waitFor(&waitingv1.WaitForRequest{Wake: external, Resource: id, WorkItemId: itemA}).GetWait()
			require.Zero(t, w.GetWeakReason())
			if away {
				r.down()
				r.clk.Advance(2 * time.Hour)
				r.up()
			} else {
				r.clk.Advance(time.Hour - 1)
				require.NoError(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: made.GetToken()}))
				r.clk.Advance(1)
			}
			r.eventually(
				func() bool {
					return r.listTriggers()[0].GetStatus() == waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED
				})
			require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: made.GetToken()}),
				fault.TriggerExpired)
			r.service.fire([]string{dueKey(dueExpiry, "acme", "keeper", id)})
			r.restart()
			require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: made.GetToken()}),
				fault.TriggerExpired)
			var ends []*waitingv1.TriggerExpired
			for _, ev := range r.events() {
				if p, ok := ev.Payload.(*waitingv1.TriggerExpired); ok {
					ends = append(ends, p)
				}
			}
			require.Len(t, ends, 1)
			require.Equal(t, []string{w.GetWaitId()}, ends[0].GetWeakenedWaitIds())
			require.Equal(t, weakTriggerDead, r.wait(w.GetWaitId()).GetWeakReason())
			l := must.Value(r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{AgentId: "keeper"}))(t)
			require.Len(t, l.GetWaits(), 1, "the interest that the delivery registered is gone")
		})
	}
	r := newRig(t)
	for _, at := range []time.Time{epoch, epoch.Add(-time.Hour), epoch.Add(fault.Horizon + time.Second)} {
		require.Error(t, must.Err(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
			AgentId: "keeper", ExpiresAt: timestamppb.New(at),
		})), at)
	}
	require.Empty(t, r.events())
}

// Ended triggers leave the memory; their addresses stay refused, not unknown.
func TestX8_EndedTriggersAreForgottenAndRefused(t *testing.T) {
	r := newRig(t)
	first := r.trigger("", wakeHint)
	for i := range records.KeptEnded + 5 {
		made := first
		if i > 0 {
			made = r.trigger("", wakeHint)
		}
		must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
			AgentId: "keeper", TriggerId: made.GetTrigger().GetTriggerId(),
		}))(t)
	}
	require.Equal(t, records.KeptEnded, r.service.state().agents.Get(plane.KeyOf("acme", "keeper")).triggers.Len())
	r.restart()
	require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: first.GetToken()}), fault.TriggerRevoked)
}

// Nothing that anybody can read has a secret in it: no event, no list, no error.
func TestP3_SigningSecretsAreInNoEvent(t *testing.T) {
	r := newRig(t)
	const own = "the-outside-systems-own-secret"
	made := must.Value(r.service.CreateExternalTrigger(r.operator(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", SignatureScheme: hub, SigningSecret: own, RequestId: "r1",
	}))(t)
	require.Empty(t, made.GetSigningSecret(), "its owner knows it")
	again := must.Value(r.service.CreateExternalTrigger(r.operator(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", SignatureScheme: hub, SigningSecret: own, RequestId: "r1",
	}))(t)
	require.Equal(t, made.GetToken(), again.GetToken())
	must.Refuse(r.service.CreateExternalTrigger(r.operator(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", SignatureScheme: hub, SigningSecret: own + "2", RequestId: "r1",
	}))(t, fault.RequestIDReused, "another secret is another request")
	minted := must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", SignatureScheme: hub,
	}))(t)
	require.Greater(t, len(minted.GetSigningSecret()), 40)

	id := made.GetTrigger().GetTriggerId()
	body := []byte("x")
	require.NoError(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{
		Token: made.GetToken(), Body: body, HubSignature_256: signHub(own, body),
	}))
	const newer = "another-secret-of-the-same"
	rotated := must.Value(r.service.RotateExternalTrigger(r.operator(), &waitingv1.RotateExternalTriggerRequest{
		AgentId: "keeper", TriggerId: id, SigningSecret: newer,
	}))(t)
	r.restart()
	require.NoError(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{
		Token: rotated.GetToken(), Body: body, HubSignature_256: signHub(newer, body),
	}))
	require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{
		Token: rotated.GetToken(), Body: body, HubSignature_256: signHub(own, body),
	}), fault.SignatureInvalid)
	kept := r.rotate(id, "")
	require.NoError(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{
		Token: kept.GetToken(), Body: body, HubSignature_256: signHub(newer, body),
	}), "a secret of the caller's stays")
	fresh := r.rotate(minted.GetTrigger().GetTriggerId(), "")
	require.NotEqual(t, minted.GetSigningSecret(), fresh.GetSigningSecret(), "one that was made here is replaced")
	require.NoError(t,
		r.tryDeliver(&waitingv1.DeliverTriggerRequest{
			Token:            fresh.GetToken(),
			HubSignature_256: signHub(fresh.GetSigningSecret(), nil),
		}))

	for _, tr := range r.listTriggers() {
		require.Empty(t, tr.GetSealedSigningSecret())
		require.Equal(t, hub, tr.GetSignatureScheme())
	}
	raw := r.rawLog()
	for _, s := range []string{
		own, newer, minted.GetSigningSecret(), fresh.GetSigningSecret(), made.GetToken(),
		kept.GetToken(),
	} {
		require.NotContains(t, raw, s)
	}
}

func TestP3_SigningSecretRefusals(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		scheme waitingv1.SignatureScheme
		secret string
		ok     bool
	}{
		"15": {hub, strings.Repeat("s", 15), false}, "16": {hub, strings.Repeat("s", 16), true},
		"256": {hub, strings.Repeat("s", 256), true}, "257": {hub, strings.Repeat("s", 257), false},
		"no scheme": {0, strings.Repeat("s", 20), false}, "a blank": {hub, "aaaaaaaaaaaaaaaa b", false},
		"not ASCII":  {hub, "äöüäöüäöüäöü", false},
		"not whsec_": {standard, strings.Repeat("s", 20), false}, "not base64": {
			standard, "whsec_!!!!!!!!!!!!!!",
			false,
		},
		"whsec_": {standard, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true},
	} {
		_, err := r.service.CreateExternalTrigger(r.operator(), &waitingv1.CreateExternalTriggerRequest{
			AgentId: "keeper", SignatureScheme: c.scheme, SigningSecret: c.secret,
		})
		require.Equal(t, c.ok, err == nil, "%s: %v", name, err)
		if err != nil && c.secret != "" {
			require.NotContains(t, err.Error(), c.secret, name)
		}
	}
	must.Refuse(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", SignatureScheme: hub, SigningSecret: strings.Repeat("s", 16),
	}))(t, fault.PermissionDenied, "what an agent says is written down")
}
