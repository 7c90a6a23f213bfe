package waiting

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// full is a Quota that has room for so many deliveries.
type full struct {
	left  int
	bytes []int // of the deliveries that were counted
}

func (f *full) CheckDelivery(namespace, triggerID string, _ int) error {
	if f.left == 0 {
		return fault.RateLimited.New(namespace + " " + triggerID).WithRetryAfter(time.Second)
	}
	return nil
}

func (f *full) Delivery(namespace, triggerID string, bytes int) error {
	if err := f.CheckDelivery(namespace, triggerID, bytes); err != nil {
		return err
	}
	f.left--
	f.bytes = append(f.bytes, bytes)
	return nil
}

// TestG9_ADeliveryIsCheckedBeforeItsBody: CheckDelivery refuses what DeliverTrigger would, and changes nothing.
func TestG9_ADeliveryIsCheckedBeforeItsBody(t *testing.T) {
	r := newRig(t)
	quota := &full{left: 2}
	r.service.deps.Quota = quota
	check := func(token string) (*waitingv1.CheckDeliveryResponse, error) {
		return r.service.CheckDelivery(t.Context(), &waitingv1.CheckDeliveryRequest{Token: token, BodyBytes: 1 << 40})
	}
	must.Refuse(check("guess"))(t, fault.NotFound)
	live, revoked := r.trigger("", wakeHint), r.trigger("", wakeHint)
	expiring := must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", ExpiresAt: timestamppb.New(epoch.Add(time.Minute)),
	}))(t)
	must.Value(r.service.CancelExternalTrigger(r.agent(), &waitingv1.CancelExternalTriggerRequest{
		AgentId: "keeper", TriggerId: revoked.GetTrigger().GetTriggerId(),
	}))(t)
	// The expiry itself is recorded in the background.
	written := func() []*journal.Event {
		return slices.DeleteFunc(r.events(), func(ev *journal.Event) bool { return ev.Type == "trigger_expired" })
	}
	before := len(written())
	must.Refuse(check(revoked.GetToken()))(t, fault.TriggerRevoked)
	must.Value(check(expiring.GetToken()))(t)
	r.clk.Set(epoch.Add(time.Minute))
	must.Refuse(check(expiring.GetToken()))(t, fault.TriggerExpired)
	for range 5 {
		resp := must.Value(check(live.GetToken()))(t)
		require.Equal(t, live.GetTrigger().GetTriggerId(), resp.GetTriggerId())
		require.Equal(t, "acme", resp.GetNamespace())
	}
	require.Len(t, written(), before)

	deliver := func(requestID string) (*waitingv1.DeliverTriggerResponse, error) {
		return r.service.DeliverTrigger(t.Context(), &waitingv1.DeliverTriggerRequest{
			Token: live.GetToken(), RequestId: requestID, Body: []byte("four"),
		})
	}
	first := must.Value(deliver("one"))(t)
	must.Value(deliver(""))(t)
	require.Equal(t, []int{4, 4}, quota.bytes)
	_, err := check(live.GetToken())
	require.ErrorIs(t, err, fault.RateLimited)
	before = len(written())
	for _, requestID := range []string{"", "two"} {
		_, err = deliver(requestID)
		require.ErrorIs(t, err, fault.RateLimited)
		require.Equal(t, time.Second, fault.From(err).RetryAfter())
	}
	again := must.Value(deliver("one"))(t, "what was accepted before is answered again")
	require.Equal(t, first.GetDeliveryId(), again.GetDeliveryId())
	require.Len(t, written(), before)
}

// TestG9_AFullLaneTakesNoContent: a delivery whose content would become a message is refused while the lane of
// its agent is full; one that only wakes the agent is accepted.
func TestG9_AFullLaneTakesNoContent(t *testing.T) {
	r := newRig(t)
	hint, content := r.trigger("", wakeHint).GetToken(), r.trigger("", contentful).GetToken()
	deliver := func(token, body string) error {
		return must.Err(r.service.DeliverTrigger(t.Context(), &waitingv1.DeliverTriggerRequest{
			Token: token, Body: []byte(body),
		}))
	}
	r.others.lane = fault.Overloaded.New("full").WithRetryAfter(time.Second)
	before := len(r.events())
	require.ErrorIs(t, deliver(content, "x"), fault.Overloaded)
	require.Len(t, r.events(), before)
	require.NoError(t, deliver(hint, "x"))
	r.others.lane = fault.NotReady.New("the agent plane cannot be asked")
	require.NoError(t, deliver(content, "x"))
	r.others.lane = nil
	require.NoError(t, deliver(content, "x"))
}
