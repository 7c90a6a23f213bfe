package quota

import (
	"context"
	"errors"
	"time"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/rpc"
	"quartet/pkg/yield"
)

const (
	// delayTarget is how long a goroutine should wait for a processor at most. While goroutines wait longer, calls
	// of namespaces wait in a queue (see admission.Turns). It is more than the millisecond that the runtime itself
	// may take to wake a goroutine.
	delayTarget = 2 * time.Millisecond
	// turnAfter is after which time a client should repeat a call that was refused because too many wait.
	turnAfter = time.Second
)

// Enter waits until a call of an actor may run (see admission.Turns). The caller must end the admission.Turn when the
// call has ended. Calls that services make do not wait, because they are parts of calls that have waited; for them it
// returns nil and a nil error. It returns OVERLOADED if too many calls of the namespace wait already.
func (g *Gate) Enter(ctx context.Context, a rpc.Actor) (*admission.Turn, error) {
	if a.Role == rpc.RoleService || rpc.Via(ctx) != "" {
		return nil, nil //nolint:nilnil // the nil Turn is that of a call that is not counted
	}
	turn, err := g.turns.Enter(ctx, a.Namespace)
	if errors.Is(err, admission.ErrTooManyWait) {
		g.refusals.WithLabelValues("turns").Inc()
		err = fault.Overloaded.New("the server is busy, and too many calls of namespace "+a.Namespace+
			" wait for it already; send fewer at a time", "bound", "turns", "namespace", a.Namespace).
			WithRetryAfter(turnAfter)
	}
	return turn, err
}

// Step waits until a stream of a namespace may handle one more message, for a bounded time (see
// admission.Turns.Step).
func (g *Gate) Step(ctx context.Context, namespace string) *admission.Turn {
	return g.turns.Step(ctx, namespace)
}

// ObserveDelay measures how long goroutines wait for a processor, if several namespaces make calls, and sets the
// limit of calls that run at a time accordingly. The process should call it 50 times per second.
func (g *Gate) ObserveDelay(context.Context) {
	waited := time.Duration(0)
	if g.turns.Contended() {
		waited = admission.Delay(delayTarget)
	}
	limit := g.turns.Observe(waited)
	yield.Short(limit > 0)
	g.turnLimit.Set(float64(limit))
}
