package gateway

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/meter"
)

const (
	// deliveriesHeld is how many bytes of bodies of deliveries may be in progress in a process: being
	// received, or on their way to the journal. deliveriesHeldBy is how many of one source, of one
	// namespace and of one trigger.
	deliveriesHeld   = 16 << 20
	deliveriesHeldBy = 4 << 20
	// wrongRate is how many wrong tokens and signatures of a source per second are answered as such,
	// wrongBurst how many at once. Above that the answer is RATE_LIMITED, and costs the same.
	wrongRate, wrongBurst = 10, 100
	// sourceBurst is for how many seconds a source may send nothing and send the deliveries of them later.
	sourceBurst = 10
	// heldAfter is after how long a delivery that was refused because too much was in progress may be sent again.
	heldAfter = time.Second
)

// deliveryBounds bounds deliveries by source, and what is in progress of them in this process. The
// waiting plane bounds them by trigger and namespace.
//
// A wrong token or signature counts against its source only, and only changes how a further wrong delivery
// is answered: a valid token is never refused because of wrong ones, wherever they come from.
type deliveryBounds struct {
	held     *admission.Held
	wrongs   *admission.Rates[netip.Addr]
	count    *admission.Rates[netip.Addr] // deliveries, nil: not limited
	kib      *admission.Rates[netip.Addr] // KiB of deliveries, nil: not limited
	limits   [2]int                       // of count and kib per second, for messages
	refusals *prometheus.CounterVec
}

// newDeliveryBounds returns the bounds of a gateway.
func newDeliveryBounds(cfg Config, reg prometheus.Registerer) *deliveryBounds {
	d := &deliveryBounds{
		held:   admission.NewHeld(deliveriesHeld),
		wrongs: admission.NewRates[netip.Addr](wrongRate, wrongBurst),
		limits: [2]int{cfg.SourceDeliveries, cfg.SourceDeliveryKiB},
		refusals: meter.Counter(reg, "quartet_delivery_refusals_total",
			"Deliveries to triggers refused by the gateway before their body was read, by what was too much: "+
				"source_rate, source_kib, wrong, or what was in progress of a source, namespace, trigger or the "+
				"process.", "bound"),
	}
	if n := cfg.SourceDeliveries; n > 0 {
		d.count = admission.NewRates[netip.Addr](float64(n), n*sourceBurst)
	}
	if n := cfg.SourceDeliveryKiB; n > 0 {
		d.kib = admission.NewRates[netip.Addr](float64(n), n*sourceBurst)
	}
	return d
}

// admit counts a delivery whose token is valid and whose body has at most size bytes, or refuses it. done
// must be called when the delivery is stored or refused.
func (d *deliveryBounds) admit(source netip.Addr, namespace, triggerID string, size int64) (done func(), err error) {
	done, above, ok := d.held.Take(size, admission.Use{Kind: "source", Name: source.String(), Limit: deliveriesHeldBy},
		admission.Use{Kind: "namespace", Name: namespace, Limit: deliveriesHeldBy},
		admission.Use{Kind: "trigger", Name: triggerID, Limit: deliveriesHeldBy})
	if !ok {
		kind, limit, of := "process", int64(deliveriesHeld), "this server"
		if above != nil {
			kind, limit, of = above.Kind, above.Limit, "this "+above.Kind
		}
		d.refusals.WithLabelValues(kind).Inc()
		n := strconv.FormatInt(limit, 10)
		return nil, fault.Overloaded.New("deliveries of "+n+" bytes to "+of+
			" are in progress, the most there may be; send this one again in a moment", "bound", kind, "limit", n).
			WithRetryAfter(heldAfter)
	}
	for i, use := range []func(netip.Addr, int) time.Duration{d.count.Wait, d.kib.Wait, d.count.Take, d.kib.Take} {
		n := 1
		if i%2 == 1 {
			n = int((size + 1023) / 1024)
		}
		if wait := use(source, n); wait > 0 {
			done()
			kind, what := [2]string{"source_rate", "source_kib"}[i%2], [2]string{"deliveries", "KiB of deliveries"}[i%2]
			d.refusals.WithLabelValues(kind).Inc()
			limit := strconv.Itoa(d.limits[i%2])
			return nil, fault.RateLimited.New("this address sends more than "+limit+" "+what+
				" a second; send this one again in "+wait.Round(time.Millisecond).String(), "bound", kind, "limit",
				limit).WithRetryAfter(wait)
		}
	}
	return done, nil
}

// wrong counts a wrong token or signature of a source, and returns the refusal: err, or RATE_LIMITED if
// the source has had too many.
func (d *deliveryBounds) wrong(source netip.Addr, err error) error {
	wait := d.wrongs.Take(source, 1)
	if wait == 0 {
		return err
	}
	d.refusals.WithLabelValues("wrong").Inc()
	return fault.RateLimited.New("this address has sent too many deliveries with a wrong address or signature; check "+
		"both, and send this one again in "+wait.Round(time.Millisecond).String(), "bound", "wrong").
		WithRetryAfter(wait)
}
