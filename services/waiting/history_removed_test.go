package waiting

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane/planetest"
)

// No event of this plane is needed once it is old: its records have all that it reads (SPEC P10).
func TestP10_NoOldEventIsNeeded(t *testing.T) {
	r := newRig(t)
	trigger := r.trigger("", waitingv1.DeliveryMode_DELIVERY_MODE_UNSPECIFIED)
	wait := r.waitFor(&waitingv1.WaitForRequest{Wake: operatorInput}).GetWait()
	events := r.events()
	require.NotEmpty(t, events)
	require.Len(t, planetest.Forget(t, r.journals, Plane, registry, NewState(), r.clk.Now().Add(time.Hour)),
		len(events))
	require.Equal(t, wait.GetRevision(), r.wait(wait.GetWaitId()).GetRevision())
	r.deliver(trigger.GetToken(), "hello")
	list, err := r.service.ListWaits(r.agent(), &waitingv1.ListWaitsRequest{AgentId: "keeper"})
	require.NoError(t, err)
	require.Len(t, list.GetWaits(), 2, "with that of the trigger")
}
