// Package leases keeps the terms of open turns. Terms live in memory: a heartbeat writes
// no journal line, and after a restart every open turn gets a full term (SPEC X12).
package leases

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/clock"
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

// Set holds the leases of open turns. A lease begins when the journal reports the turn's
// first frame, so no open turn is without one.
type Set struct {
	clk      clock.Clock
	due      *clock.Due
	onExpire func(context.Context, ref.Agent, string)
	ctx      context.Context //nolint:containedctx // ends the expiries that run when the service stops
	cancel   context.CancelFunc

	mu       sync.Mutex
	stalled  func() time.Duration // how long the journal has been unable to write, in total
	held     map[string]lease     // by dueKey
	expiring sync.WaitGroup
}

type lease struct {
	agent   ref.Agent
	runID   string
	stalled time.Duration // the value of Set.stalled when the term began
	calls   int           // SubmitRound calls that are running
}

// NewSet returns an empty Set that has not started. expire is called, in a goroutine of its
// own, for a run whose lease has expired.
func NewSet(clk clock.Clock, expire func(context.Context, ref.Agent, string)) *Set {
	l := &Set{clk: clk, onExpire: expire, held: map[string]lease{}, stalled: func() time.Duration { return 0 }}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.due = clock.NewDue(clk, l.expireDue)
	return l
}

// Start begins to end expired leases. stalled returns how long the journal has been
// unable to write in total.
func (l *Set) Start(stalled func() time.Duration) {
	l.mu.Lock()
	l.stalled = stalled
	l.mu.Unlock()
	l.due.Start()
}

// Stop stops ending leases and waits for the ends that are running. The next start grants
// every open turn a full term.
func (l *Set) Stop() {
	l.due.Stop()
	l.cancel()
	l.expiring.Wait()
}

// expireDue ends turns whose leases have expired, each in a goroutine of its own: ending
// one may have to wait for another plane, which must not delay other agents (SPEC D5).
func (l *Set) expireDue(keys []string) {
	for _, k := range keys {
		if ls, over := l.takeExpired(k); over {
			l.expiring.Go(func() { l.onExpire(l.ctx, ls.agent, ls.runID) })
		}
	}
}

func dueKey(k ref.Agent, runID string) string {
	return strings.Join([]string{k.Namespace, k.ID, runID}, "\x00")
}

// Arm starts a full term for a run, or renews it.
func (l *Set) Arm(k ref.Agent, runID string) time.Time { return l.ArmFor(k, runID, Term) }

// ArmFor gives a run a lease of a term of its own and returns when it expires. It replaces
// the lease that the run had.
func (l *Set) ArmFor(k ref.Agent, runID string, term time.Duration) time.Time {
	until := l.clk.Now().Add(term)
	dk := dueKey(k, runID)
	l.mu.Lock()
	ls := l.held[dk]
	ls.agent, ls.runID, ls.stalled = k, runID, l.stalled()
	l.held[dk] = ls
	l.mu.Unlock()
	l.due.Set(dk, until)
	return until
}

// Hold keeps a lease from expiring until release is called. The calls of a round may take
// longer than a term, and a runner that waits for their results is alive.
func (l *Set) Hold(k ref.Agent, runID string) (release func()) {
	l.Arm(k, runID)
	count := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if ls, ok := l.held[dueKey(k, runID)]; ok {
			ls.calls += n
			l.held[dueKey(k, runID)] = ls
		}
	}
	count(1)
	return func() { count(-1) }
}

// Expiry returns when the lease of a run ends unless it is renewed.
func (l *Set) Expiry(k ref.Agent, runID string) (time.Time, bool) { return l.due.At(dueKey(k, runID)) }

// Release forgets the lease of a run that ended.
func (l *Set) Release(k ref.Agent, runID string) {
	dk := dueKey(k, runID)
	l.mu.Lock()
	delete(l.held, dk)
	l.mu.Unlock()
	l.due.Remove(dk)
}

// takeExpired removes and returns a lease whose term is over. Time in which the journal
// could not be written does not count: no runner could have renewed.
func (l *Set) takeExpired(dk string) (lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ls, ok := l.held[dk]
	if !ok {
		return lease{}, false
	}
	if ls.calls > 0 {
		l.due.Set(dk, l.clk.Now().Add(Term))
		return lease{}, false
	}
	if grew := l.stalled() - ls.stalled; grew > 0 {
		ls.stalled += grew
		l.held[dk] = ls
		l.due.Set(dk, l.clk.Now().Add(grew))
		return lease{}, false
	}
	delete(l.held, dk)
	return ls, true
}

// Wait returns when every term that is over by the clock has been handled.
func (l *Set) Wait() {
	l.due.Settle()
	l.expiring.Wait()
}
