package quota

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
)

// burst is for how many seconds' worth of deliveries a namespace or a trigger may save up: outside systems
// send in bursts.
const burst = 10

// deliveryRates limits the rates of deliveries to namespaces and to single triggers. A trigger may use half of
// the limit of its namespace. The zero value is ready to use.
type deliveryRates struct {
	mu    sync.Mutex
	rates map[int64]*admission.Rates[string] // by limit: most namespaces have the same
}

// of returns the rates for a limit per second.
func (d *deliveryRates) of(limit int64) *admission.Rates[string] {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rates == nil {
		d.rates = map[int64]*admission.Rates[string]{}
	}
	r := d.rates[limit]
	if r == nil {
		r = admission.NewRates[string](float64(limit), int(limit)*burst)
		d.rates[limit] = r
	}
	return r
}

// CheckDelivery returns the error that Delivery would return now for a delivery with a body of that many bytes.
// It counts nothing. A nil Gate refuses nothing.
func (g *Gate) CheckDelivery(namespace, triggerID string, bytes int) error {
	return g.delivery(namespace, triggerID, bytes, (*admission.Rates[string]).Wait)
}

// Delivery counts a delivery to a trigger with a body of that many bytes, or refuses it: QUOTA_EXCEEDED if the
// journals of the namespace have reached their limit, OVERLOADED if memory is short (see Gate.memory), and
// RATE_LIMITED, with the time after which to retry, if the namespace or the trigger receives too many deliveries
// or bytes.
func (g *Gate) Delivery(namespace, triggerID string, bytes int) error {
	// All rates are checked before any is consumed, so that a refused delivery consumes none.
	if err := g.CheckDelivery(namespace, triggerID, bytes); err != nil {
		return err
	}
	return g.delivery(namespace, triggerID, bytes, (*admission.Rates[string]).Take)
}

// delivery checks the memory and the bytes of the namespace, and then calls use with each rate that limits a
// delivery, its key and the amount. It returns an error for the first for which use returns a time to wait.
func (g *Gate) delivery(namespace, triggerID string, bytes int, use func(r *admission.Rates[string], key string,
	n int) time.Duration,
) error {
	if g == nil {
		return nil
	}
	if err := g.stored(namespace); err != nil {
		return err
	}
	for _, c := range []struct {
		kind  string
		rates *deliveryRates
		n     int
	}{{Deliveries, &g.deliveries, 1}, {DeliveryKiB, &g.bodies, (bytes + 1023) / 1024}} {
		limit := g.cfg.Limits.limit(namespace, c.kind)
		if limit == 0 || c.n == 0 {
			continue
		}
		half := max(1, limit/2)
		// A trigger's id is unique in the installation and is no name of a namespace.
		if wait := use(c.rates.of(half), triggerID, c.n); wait > 0 {
			return g.tooFast(namespace, c.kind, half, wait, "trigger "+triggerID)
		}
		if wait := use(c.rates.of(limit), namespace, c.n); wait > 0 {
			return g.tooFast(namespace, c.kind, limit, wait, "namespace "+namespace)
		}
	}
	return nil
}

// tooFast counts a refusal and returns RATE_LIMITED. kind is Deliveries or DeliveryKiB, and who names the
// namespace or trigger that receives more than limit of it per second.
func (g *Gate) tooFast(namespace, kind string, limit int64, wait time.Duration, who string) error {
	g.refusals.WithLabelValues(kind).Inc()
	what := map[string]string{Deliveries: "deliveries", DeliveryKiB: "KiB of deliveries"}[kind]
	return fault.RateLimited.New(fmt.Sprintf("%s receives more than %d %s a second; send this one again in %s", who,
		limit, what, wait.Round(time.Millisecond)),
		"quota", kind, "limit", strconv.FormatInt(limit, 10), "namespace", namespace).WithRetryAfter(wait)
}
