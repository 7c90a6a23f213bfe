package agent

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/services/agent/tools"
)

// The secrets of a trigger that an agent makes reach the runner, again with a
// repeated round, and no line of the journal (SPEC P3).
func TestP3_ARoundsSecretsAreNotWrittenDown(t *testing.T) {
	secrets := []string{"qtr_thetoken", "https://q.example/v1/triggers/qtr_thetoken", "qts_thesigningsecret"}
	r := newRig(t)
	r.others.answer["CreateExternalTrigger"] = func(context.Context, proto.Message) (proto.Message, error) {
		return &waitingv1.CreateExternalTriggerResponse{
			Trigger: &waitingv1.Trigger{TriggerId: "trg_1"}, Token: secrets[0], Url: secrets[1],
			SigningSecret: secrets[2],
		}, nil
	}
	r.spawn("keeper")
	r.send("keeper", "make one", normal)
	a := r.take("keeper")
	shown := func(resp *agentv1.SubmitRoundResponse) []string {
		f := resp.GetToolResults()[0].GetResult().GetFields()
		return []string{f["token"].GetStringValue(), f["url"].GetStringValue(), f["signing_secret"].GetStringValue()}
	}
	made := use("CreateExternalTrigger", "signature_scheme", "SIGNATURE_SCHEME_HUB_SHA256")
	require.Equal(t, secrets, shown(r.submit(a, 0, "", made)))
	require.Equal(t, secrets, shown(r.submit(a, 0, "", made)), "a repeated round has them too")
	log, err := r.journals.Log(Plane, 0)
	require.NoError(t, err)
	require.NoError(t, log.Scan(context.Background(), 0, func(_ uint64, f framelog.Frame) error {
		for _, s := range secrets {
			require.NotContains(t, string(f.Body), s)
		}
		return nil
	}))

	// A result without a signing secret does not get one.
	r.others.answer["CreateExternalTrigger"] = func(context.Context, proto.Message) (proto.Message, error) {
		return &waitingv1.CreateExternalTriggerResponse{
			Trigger: &waitingv1.Trigger{TriggerId: "trg_2"}, Token: secrets[0], Url: secrets[1],
		}, nil
	}
	require.Equal(t, []string{secrets[0], secrets[1], ""}, shown(r.submit(a, 1, "", use("CreateExternalTrigger"))))
}

// A round may be repeated when its call is no longer remembered. Then the call is not made again, which
// would make a second trigger, and the secrets stay out.
func TestX2_ALateRepetitionMakesNoSecondTrigger(t *testing.T) {
	r := newRig(t)
	made, forgotten := 0, false
	r.on("CreateExternalTrigger", func(ctx context.Context, _ proto.Message) (proto.Message, error) {
		md, _ := metadata.FromOutgoingContext(ctx)
		recalls := slices.Contains(md.Get("quartet-recall"), "true")
		switch {
		case recalls && forgotten:
			return nil, fault.NotFound.New("not remembered")
		case !recalls:
			made++
		}
		return &waitingv1.CreateExternalTriggerResponse{
			Trigger: &waitingv1.Trigger{TriggerId: fmt.Sprint("trg_", made)}, Token: fmt.Sprint("token of ", made),
		}, nil
	})
	r.spawn("keeper")
	r.send("keeper", "make one", normal)
	a := r.take("keeper")
	require.Equal(t, "token of 1", r.submit(a, 0, "", use("CreateExternalTrigger")).GetToolResults()[0].GetResult().
		GetFields()["token"].GetStringValue())
	forgotten = true
	again := r.submit(a, 0, "", use("CreateExternalTrigger")).GetToolResults()[0]
	require.Equal(t, tools.StatusSuccess, again.GetStatus())
	require.Equal(t, "shown to the caller alone", again.GetResult().GetFields()["token"].GetStringValue())
	require.Equal(t, 1, made)
}
