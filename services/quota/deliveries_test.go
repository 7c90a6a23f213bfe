package quota

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// TestG9_RatesOfDeliveries: a namespace has a limit of deliveries and bytes per second and a burst of ten seconds'
// worth; one trigger may use half; a refused delivery consumes nothing, and its error has a time to retry.
func TestG9_RatesOfDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := Parse(map[string]int{Deliveries: 4, DeliveryKiB: 1000}, map[string]string{
			"free.deliveries":   "0",
			"free.delivery-kib": "0",
		})
		require.NoError(t, err)
		g := NewGate(Config{Limits: l})
		for range 20 { // half of ten seconds
			require.NoError(t, g.CheckDelivery("acme", "trg_1", 10<<10), "looking counts nothing")
			require.NoError(t, g.Delivery("acme", "trg_1", 10<<10))
		}
		for range 3 {
			err = g.Delivery("acme", "trg_1", 10<<10)
			require.ErrorIs(t, err, fault.RateLimited)
			require.ErrorContains(t, err, "trigger trg_1 receives more than 2 deliveries a second")
			require.Equal(t, 500*time.Millisecond, fault.From(err).RetryAfter())
			require.ErrorIs(t, g.CheckDelivery("acme", "trg_1", 10<<10), fault.RateLimited)
		}
		for i := range 20 { // the other half goes to other triggers
			require.NoError(t, g.Delivery("acme", "trg_"+string(rune('a'+i)), 10<<10))
		}
		err = g.Delivery("acme", "trg_2", 10<<10)
		require.ErrorContains(t, err, "namespace acme receives more than 4 deliveries a second")
		require.Equal(t, "deliveries", fault.From(err).Metadata()["quota"])
		require.NoError(t, g.Delivery("other", "trg_other", 10<<10), "another namespace is not concerned")
		<-time.After(500 * time.Millisecond)
		require.NoError(t, g.Delivery("acme", "trg_1", 10<<10))

		require.NoError(t, g.Delivery("large", "trg_l", 5000<<10)) // all of a trigger
		err = g.Delivery("large", "trg_l", 250<<10)
		require.ErrorContains(t, err, "trigger trg_l receives more than 500 KiB of deliveries a second")
		require.NoError(t, g.Delivery("large", "trg_l", 0), "without a body")
		for range 1000 {
			require.NoError(t, g.Delivery("free", "trg_f", 250<<10))
		}
	})
}

// TestG9_DeliveriesAreStoredWithinTheQuota: a namespace that has written what it may receives nothing.
func TestG9_DeliveriesAreStoredWithinTheQuota(t *testing.T) {
	p := open(t, map[string]string{"acme.mib": "1"})
	require.NoError(t, p.gate.Delivery("acme", "trg_1", 100))
	for range 3 {
		of(p.work, "acme",
			&journal.Event{
				Payload: &workv1.WorkItemCreated{
					WorkItem: &workv1.WorkItemRecord{Objective: fmt.Sprintf("%*d", 400<<10, 1)},
				},
			})
	}
	require.NoError(t, p.gate.counts.catchUp(t.Context(), MiB))
	require.ErrorIs(t, p.gate.CheckDelivery("acme", "trg_1", 100), fault.QuotaExceeded)
	err := p.gate.Delivery("acme", "trg_1", 100)
	require.ErrorIs(t, err, fault.QuotaExceeded)
	require.Equal(t, retryFull, fault.From(err).RetryAfter())
	require.NoError(t, p.gate.Delivery("other", "trg_2", 100))
	var none *Gate
	require.NoError(t, none.Delivery("acme", "trg_1", 100))
}
