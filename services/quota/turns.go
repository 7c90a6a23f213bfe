package quota

import (
	"context"
	"errors"
	"time"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

const (
	// delayTarget is how long a goroutine should wait for a processor at most, nine times out of ten. Calls of
	// namespaces wait for their turns while goroutines wait longer.
	delayTarget = time.Millisecond
	// turnAfter is the time after which a call may be repeated for which there was no room to wait.
	turnAfter = time.Second
)

// Enter waits until a call of an actor may run (see admission.Turns). The caller ends the turn when the call has
// ended. Calls of services, which are parts of calls that have a turn, do not wait.
func (g *Gate) Enter(ctx context.Context, a rpc.Actor) (*admission.Turn, error) {
	if a.Role == rpc.RoleService || rpc.Via(ctx) != "" {
		return nil, nil //nolint:nilnil // the nil Turn is that of a call that is not counted
	}
	turn, err := g.turns.Enter(ctx, a.Namespace)
	if errors.Is(err, admission.ErrTooManyWait) {
		g.refusals.WithLabelValues("turns").Inc()
		err = fault.Overloaded.New("the server is busy, and too many calls of namespace "+a.Namespace+" wait for it already; send fewer at a time", "bound", "turns", "namespace", a.Namespace).WithRetryAfter(turnAfter)
	}
	return turn, err
}

// ObserveDelay reports how long goroutines have waited for a processor lately, nine times out of ten. It is
// called 50 times per second.
func (g *Gate) ObserveDelay(waited time.Duration) { g.turnLimit.Set(float64(g.turns.Observe(waited))) }
