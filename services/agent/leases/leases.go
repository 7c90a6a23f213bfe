// Package leases keeps the leases of open turns: a run whose runner sends no heartbeat
// for a term loses its turn (SPEC X12).
package leases

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/clock"
	"quartet/pkg/leasetable"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/ref"
)

// Term is how long a run holds its agent without a heartbeat (SPEC X12).
const Term = 30 * time.Second

// WithExpiry returns a copy of a turn that shows when its lease expires.
func WithExpiry(t *agentv1.Turn, until time.Time) *agentv1.Turn {
	t = proto.CloneOf(t)
	t.LeaseExpiresAt = timestamppb.New(until)
	return t
}

// Run names a run of an agent's turn.
type Run struct {
	Agent ref.Agent
	ID    string
}

// Set holds the leases of open turns. A lease begins when the journal reports the turn's
// first frame, so no open turn is without one.
type Set struct {
	table    *leasetable.Table[Run, ref.Agent]
	onExpire func(context.Context, ref.Agent, string)
	ctx      context.Context //nolint:containedctx // ends the expiries that run when the service stops
	cancel   context.CancelFunc
	expiring sync.WaitGroup
}

// NewSet returns an empty Set that has not started. expire is called, in a goroutine of its
// own, for a run whose lease has expired.
func NewSet(clk clock.Clock, expire func(ctx context.Context, agent ref.Agent, runID string)) *Set {
	l := &Set{onExpire: expire}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.table = leasetable.New(leasetable.Config[Run, ref.Agent]{Clock: clk, Term: Term, Expired: l.expired})
	return l
}

// Start starts the expiry of leases. stall reports for how long an agent's journal could not be written, which does
// not count for its leases; nil means never. It must not call the Set.
func (l *Set) Start(stall leasetable.StallFunc[ref.Agent]) { l.table.Start(stall) }

// Stop stops ending leases and waits for the ends that are running. The next start grants
// every open turn a full term.
func (l *Set) Stop() {
	l.table.Stop()
	l.cancel()
	l.expiring.Wait()
}

// expired ends turns whose leases have expired, each in a goroutine of its own: ending
// one may have to wait for another plane, which must not delay other agents (SPEC D5).
func (l *Set) expired(leases []leasetable.Lease[Run, ref.Agent]) {
	for _, ls := range leases {
		l.table.Drop(ls.Key)
		l.expiring.Go(func() { l.onExpire(l.ctx, ls.Key.Agent, ls.Key.ID) })
	}
}

// Arm grants a run a full term from now, whether or not it has a lease, and returns the time at
// which the term ends.
func (l *Set) Arm(k ref.Agent, runID string) time.Time { return l.table.Arm(Run{k, runID}, k) }

// ArmFor is Arm with the given term instead of Term.
func (l *Set) ArmFor(k ref.Agent, runID string, term time.Duration) {
	l.Arm(k, runID)
	l.table.RenewFor(Run{k, runID}, term)
}

// Hold keeps a lease from expiring until release is called. The calls of a round may take
// longer than a term, and a runner that waits for their results is alive.
func (l *Set) Hold(k ref.Agent, runID string) (release func()) {
	l.Arm(k, runID)
	return l.table.Keep(Run{k, runID})
}

// Expiry returns when the lease of a run ends unless it is renewed, and false if it has
// none.
func (l *Set) Expiry(k ref.Agent, runID string) (time.Time, bool) {
	return l.table.Expires(Run{k, runID})
}

// Release forgets the lease of a run that ended.
func (l *Set) Release(k ref.Agent, runID string) { l.table.Drop(Run{k, runID}) }

// Wait returns when every lease that has expired by the clock has been handled.
func (l *Set) Wait() {
	l.table.Settle()
	l.expiring.Wait()
}
