package runners

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/clock"
	"quartet/pkg/leasetable"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
)

// Term is how long a run holds its agent without a heartbeat (SPEC X12).
const Term = 30 * time.Second

// WithExpiry returns a copy of a turn that shows when its lease expires.
func WithExpiry(t *agentv1.Turn, until time.Time) *agentv1.Turn {
	t = proto.CloneOf(t)
	t.LeaseExpiresAt = timestamppb.New(until)
	return t
}

// LeasedRun names a run of an agent's turn.
type LeasedRun struct {
	Agent plane.Key
	ID    string
}

// Leases holds the leases of open turns. A lease begins when the journal reports the turn's
// first frame, so no open turn is without one.
type Leases struct {
	table    *leasetable.Table[LeasedRun, plane.Key]
	onExpire func(context.Context, plane.Key, string)
	ctx      context.Context //nolint:containedctx // ends the expiries that run when the service stops
	cancel   context.CancelFunc
	expiring sync.WaitGroup
}

// NewLeases returns an empty set that has not started. expire is called, in a goroutine of its
// own, for a run whose lease has expired.
func NewLeases(clk clock.Clock, expire func(ctx context.Context, agent plane.Key, runID string)) *Leases {
	l := &Leases{onExpire: expire}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.table = leasetable.New(leasetable.Config[LeasedRun, plane.Key]{Clock: clk, Term: Term, Expired: l.expired})
	return l
}

// Start starts the expiry of leases. stall reports for how long an agent's journal could not be written, which does
// not count for its leases; nil means never. It must not call the Set.
func (l *Leases) Start(stall leasetable.StallFunc[plane.Key]) { l.table.Start(stall) }

// Stop stops ending leases and waits for the ends that are running. The next start grants
// every open turn a full term.
func (l *Leases) Stop() {
	l.table.Stop()
	l.cancel()
	l.expiring.Wait()
}

// expired ends turns whose leases have expired, each in a goroutine of its own: ending
// one may have to wait for another plane, which must not delay other agents (SPEC D5).
func (l *Leases) expired(leases []leasetable.Lease[LeasedRun, plane.Key]) {
	for _, ls := range leases {
		l.table.Drop(ls.Key)
		l.expiring.Go(func() { l.onExpire(l.ctx, ls.Key.Agent, ls.Key.ID) })
	}
}

// Arm grants a run a full term from now, whether or not it has a lease, and returns the time at
// which the term ends.
func (l *Leases) Arm(k plane.Key, runID string) time.Time { return l.table.Arm(LeasedRun{k, runID}, k) }

// ArmFor is Arm with the given term instead of Term.
func (l *Leases) ArmFor(k plane.Key, runID string, term time.Duration) {
	l.Arm(k, runID)
	l.table.RenewFor(LeasedRun{k, runID}, term)
}

// Hold keeps a lease from expiring until release is called. The calls of a round may take
// longer than a term, and a runner that waits for their results is alive.
func (l *Leases) Hold(k plane.Key, runID string) (release func()) {
	l.Arm(k, runID)
	return l.table.Keep(LeasedRun{k, runID})
}

// Expiry returns when the lease of a run ends unless it is renewed, and false if it has
// none.
func (l *Leases) Expiry(k plane.Key, runID string) (time.Time, bool) {
	return l.table.Expires(LeasedRun{k, runID})
}

// Release forgets the lease of a run that ended.
func (l *Leases) Release(k plane.Key, runID string) { l.table.Drop(LeasedRun{k, runID}) }

// Wait returns when every lease that has expired by the clock has been handled.
func (l *Leases) Wait() {
	l.table.Settle()
	l.expiring.Wait()
}
