package waiting

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// rotateKey makes another key the active one of the rig, and returns the id of the one before.
func (r *rig) rotateKey() (old string) {
	r.t.Helper()
	ring := r.keys.Ring()
	old = ring.Active().ID
	ring = must.Value(ring.Add(time.Now()))(r.t)
	next, _ := ring.Pending()
	ring = must.Value(ring.Activate(next.ID))(r.t)
	r.keys.Set(ring)
	return old
}

func (r *rig) retireKey(id string) {
	r.t.Helper()
	ring := must.Value(r.keys.Ring().Retire(id))(r.t)
	r.keys.Set(ring)
}

// A repeated request returns the secrets of its key after a rotation, also after a restart, and
// another signing secret is still another request. A key that is gone is named.
func TestI20_TriggersSurviveARotation(t *testing.T) {
	const own = "the-outside-systems-own-secret"
	r := newRig(t)
	generated := &waitingv1.CreateExternalTriggerRequest{AgentId: "keeper", SignatureScheme: hub, RequestId: "r1"}
	given := &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", SignatureScheme: hub, SigningSecret: own, RequestId: "r2",
	}
	create := func(req *waitingv1.CreateExternalTriggerRequest) *waitingv1.CreateExternalTriggerResponse {
		t.Helper()
		resp := must.Value(r.service.CreateExternalTrigger(r.operator(), req))(t)
		require.Empty(t, resp.GetTrigger().GetInstallationKeyId())
		return resp
	}
	first, second := create(generated), create(given)
	deliver := func(made *waitingv1.CreateExternalTriggerResponse, secret, body string) error {
		return r.tryDeliver(&waitingv1.DeliverTriggerRequest{
			Token: made.GetToken(), Body: []byte(body), HubSignature_256: signHub(secret, []byte(body)),
		})
	}
	var old string
	for _, step := range []func(){
		func() {}, func() { old = r.rotateKey() }, func() { r.restart() },
		func() { r.rotateKey() },
	} {
		step()
		require.NoError(t, deliver(first, first.GetSigningSecret(), "one"))
		require.NoError(t, deliver(second, own, "one"))
		require.ErrorIs(t, deliver(second, own+"x", "one"), fault.SignatureInvalid)
		again := create(generated)
		require.Equal(t, []string{first.GetToken(), first.GetSigningSecret()},
			[]string{again.GetToken(), again.GetSigningSecret()})
		require.Equal(t, second.GetToken(), create(given).GetToken())
		must.Refuse(r.service.CreateExternalTrigger(r.operator(), &waitingv1.CreateExternalTriggerRequest{
			AgentId: "keeper", SignatureScheme: hub, SigningSecret: own + "x", RequestId: "r2",
		}))(t, fault.RequestIDReused)
	}

	// A rotated trigger is of the active key, and so is the signing secret that its caller gave.
	rotated := must.Value(r.service.RotateExternalTrigger(r.operator(), &waitingv1.RotateExternalTriggerRequest{
		AgentId: "keeper", TriggerId: second.GetTrigger().GetTriggerId(),
	}))(t)
	r.retireKey(old)
	body := []byte("two")
	require.NoError(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{
		Token: rotated.GetToken(), Body: body, HubSignature_256: signHub(own, body),
	}))
	require.ErrorIs(t, deliver(first, first.GetSigningSecret(), "two"), fault.InstallationKeyRetired)
	must.Refuse(r.service.CreateExternalTrigger(r.operator(), generated))(t, fault.InstallationKeyRetired)
	renewed := must.Value(r.service.RotateExternalTrigger(r.operator(), &waitingv1.RotateExternalTriggerRequest{
		AgentId: "keeper", TriggerId: first.GetTrigger().GetTriggerId(),
	}))(t)
	require.NoError(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{
		Token: renewed.GetToken(), Body: body, HubSignature_256: signHub(renewed.GetSigningSecret(), body),
	}))
}

// A signing secret that cannot be decrypted any more must be given again.
func TestI20_ASealedSecretOfARetiredKey(t *testing.T) {
	const own = "the-outside-systems-own-secret"
	r := newRig(t)
	made := must.Value(r.service.CreateExternalTrigger(r.operator(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", SignatureScheme: hub, SigningSecret: own,
	}))(t)
	r.retireKey(r.rotateKey())
	rotate := &waitingv1.RotateExternalTriggerRequest{AgentId: "keeper", TriggerId: made.GetTrigger().GetTriggerId()}
	_, err := r.service.RotateExternalTrigger(r.operator(), rotate)
	require.ErrorIs(t, err, fault.InstallationKeyRetired)
	require.ErrorContains(t, err, "signing_secret")
	rotate.SigningSecret = own
	again := must.Value(r.service.RotateExternalTrigger(r.operator(), rotate))(t)
	body := []byte("one")
	require.NoError(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{
		Token: again.GetToken(), Body: body, HubSignature_256: signHub(own, body),
	}))
}
