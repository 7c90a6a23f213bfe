// Package leasetable keeps leases in memory: for each key, until when its
// holder may be silent.
//
// A lease is armed when a holder gets something, such as a worker a command or
// a step, or a runner a turn; it is renewed by every sign of life; and it
// expires when its term passes without one. Leases are not part of a plane's
// state: a renewal writes no journal line, and after a restart the owner arms
// every live lease again, with a full term (SPEC X12).
//
// Time during which the journal could not be written does not count, because
// nobody could have renewed a lease then: a term that was running becomes longer
// by that time, and nothing expires while the journal still cannot be written.
package leasetable

import (
	"sync"
	"sync/atomic"
	"time"

	"quartet/pkg/clock"
)

// retryAfter is how much later a due lease is checked again that could not be
// expired yet.
const retryAfter = time.Second

// Config describes a table.
type Config[V any] struct {
	Clock clock.Clock
	// Term is how long a holder may be silent.
	Term time.Duration
	// Expired is called with leases whose term has passed, from one goroutine: no
	// other lease is reported until it returns. The leases stay in the table, and
	// are reported again after a second, until Drop, Arm or Renew.
	Expired func(leases []Lease[V])
}

// StallFunc reports how long the journal behind a lease has been unable to accept
// writes, in total since the process started, and whether it is unable to now.
type StallFunc[V any] func(value V) (total time.Duration, now bool)

// Lease is a copy of one lease in a table.
type Lease[V any] struct {
	Key     string
	Value   V
	Expires time.Time
	// Limit says that the lease ended by its limit, and not by the silence of its
	// holder.
	Limit bool
}

// Table holds leases by key. All methods are safe for concurrent use.
type Table[V any] struct {
	cfg Config[V]
	due *clock.Due
	// overdue counts the leases that have expired and were not dropped or renewed
	// since; it lets AnyExpired answer without a lock.
	overdue atomic.Int64

	mu     sync.Mutex
	stall  StallFunc[V]
	leases map[string]*lease[V]
}

type lease[V any] struct {
	value   V
	expires time.Time
	limit   time.Time     // the lease ends then whatever its holder says; zero: never
	stall   time.Duration // the journal's total stall when the term began
	expired bool
	busy    int // calls of Keep that have not been released
}

// New makes an empty table. Nothing expires before Start.
func New[V any](cfg Config[V]) *Table[V] {
	t := &Table[V]{
		cfg: cfg, leases: make(map[string]*lease[V]),
		stall: func(V) (time.Duration, bool) { return 0, false },
	}
	t.due = clock.NewDue(cfg.Clock, t.fire)
	return t
}

// Start begins to expire leases. A nil stall stands for a journal that never
// stalls. stall is called with the table locked and must not call the table.
func (t *Table[V]) Start(stall StallFunc[V]) {
	if stall != nil {
		t.mu.Lock()
		t.stall = stall
		t.mu.Unlock()
	}
	t.due.Start()
}

// Stop ends expiry and waits for a running Expired to return. The leases stay.
func (t *Table[V]) Stop() { t.due.Stop() }

// Settle waits until no lease is due and Expired has returned. It is for tests
// that moved the clock.
func (t *Table[V]) Settle() { t.due.Settle() }

// Arm gives key a full term and the given value, in place of any lease that it
// has, and returns when the term ends.
func (t *Table[V]) Arm(key string, value V) time.Time { return t.ArmUntil(key, value, time.Time{}) }

// ArmUntil is Arm for a lease that also ends at limit, however often it is
// renewed; a zero limit is none. A stalled journal does not move limit.
func (t *Table[V]) ArmUntil(key string, value V, limit time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	stall, _ := t.stall(value)
	l := t.leases[key]
	if l == nil {
		l = &lease[V]{}
		t.leases[key] = l
	}
	l.value, l.limit = value, limit
	return t.extend(key, l, t.cfg.Term, stall)
}

// Ensure renews the lease of key if its value is the same one by the given
// function, and else arms key with value. It returns the value that the lease has
// now, and when its term ends. So that of several callers that learn of a lease,
// all get the same value.
func (t *Table[V]) Ensure(key string, value V, same func(current V) bool) (V, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.leases[key]
	if l == nil || !same(l.value) {
		l = &lease[V]{value: value}
		if old := t.leases[key]; old != nil {
			t.setExpired(old, false)
		}
		t.leases[key] = l
	}
	stall, _ := t.stall(l.value)
	return l.value, t.extend(key, l, t.cfg.Term, stall)
}

// Renew gives the lease of key a full term. It reports when that ends, and false
// if key has no lease.
func (t *Table[V]) Renew(key string) (expires time.Time, ok bool) {
	return t.RenewFor(key, t.cfg.Term)
}

// RenewFor is Renew with a term of its own, such as a short one after which an
// expiry that failed is tried again.
func (t *Table[V]) RenewFor(key string, term time.Duration) (expires time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.leases[key]
	if l == nil {
		return time.Time{}, false
	}
	stall, _ := t.stall(l.value)
	return t.extend(key, l, term, stall), true
}

// extend begins a term. The caller holds mu.
func (t *Table[V]) extend(key string, l *lease[V], term, stall time.Duration) time.Time {
	l.expires, l.stall = t.cfg.Clock.Now().Add(term), stall
	t.setExpired(l, false)
	t.due.Set(key, l.due())
	return l.expires
}

// due is the moment at which the lease has to be checked.
func (l *lease[V]) due() time.Time {
	if !l.limit.IsZero() && l.limit.Before(l.expires) {
		return l.limit
	}
	return l.expires
}

func (t *Table[V]) setExpired(l *lease[V], expired bool) {
	switch {
	case expired && !l.expired:
		t.overdue.Add(1)
	case !expired && l.expired:
		t.overdue.Add(-1)
	}
	l.expired = expired
}

// Keep renews the lease of key and keeps it from expiring until release is
// called, which begins a full term: a holder that waits for an answer of ours is
// alive. It does nothing for a key without a lease.
func (t *Table[V]) Keep(key string) (release func()) {
	t.mu.Lock()
	l := t.leases[key]
	if l != nil {
		l.busy++
	}
	t.mu.Unlock()
	t.Renew(key)
	return func() {
		t.mu.Lock()
		if l != nil {
			l.busy--
		}
		t.mu.Unlock()
		t.Renew(key)
	}
}

// Drop forgets the lease of key; an unknown key is no error.
func (t *Table[V]) Drop(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.leases[key]; l != nil {
		t.setExpired(l, false)
		delete(t.leases, key)
		t.due.Remove(key)
	}
}

// Get returns the value of the lease of key, and false if it has none.
func (t *Table[V]) Get(key string) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.leases[key]; l != nil {
		return l.value, true
	}
	var none V
	return none, false
}

// Expires returns until when the holder of key may be silent, as known now, and
// false if key has no lease.
func (t *Table[V]) Expires(key string) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.leases[key]; l != nil {
		return l.expires, true
	}
	return time.Time{}, false
}

// Each calls f with every lease, in no order, while it holds the table's lock:
// f must be quick and must not call the table.
func (t *Table[V]) Each(f func(key string, value V)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, l := range t.leases {
		f(key, l.value)
	}
}

// AnyDue reports whether some lease may have expired: one has and was not dropped
// since, or the earliest one is due. Callers that must see every expiry before
// they read use it to skip the search for expired leases.
func (t *Table[V]) AnyDue() bool {
	if t.overdue.Load() > 0 {
		return true
	}
	at, any := t.due.Earliest()
	return any && !at.After(t.cfg.Clock.Now())
}

// Expired reports whether the lease of key has expired, and whether it reached
// its limit rather than the end of its term. It compensates for stalls as the
// table itself does.
func (t *Table[V]) Expired(key string) (expired, limit bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.leases[key]
	if l == nil {
		return false, false
	}
	return t.check(l)
}

// ListExpired returns the leases that have expired and whose value matches.
func (t *Table[V]) ListExpired(matches func(value V) bool) []Lease[V] {
	var out []Lease[V]
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, l := range t.leases {
		if !matches(l.value) {
			continue
		}
		if expired, limit := t.check(l); expired {
			out = append(out, Lease[V]{key, l.value, l.expires, limit})
		}
	}
	return out
}

// check decides whether a lease has expired now. The caller holds mu.
func (t *Table[V]) check(l *lease[V]) (expired, limit bool) {
	total, stalled := t.stall(l.value)
	if stalled || l.busy > 0 {
		return false, false
	}
	now := t.cfg.Clock.Now()
	l.expires, l.stall = l.expires.Add(total-l.stall), total
	if !l.limit.IsZero() && !l.limit.After(now) {
		return true, true
	}
	return !l.expires.After(now), false
}

// fire checks leases that are due. Those that were renewed, or whose term is
// longer because the journal stalled, are due again later.
func (t *Table[V]) fire(keys []string) {
	var expired []Lease[V]
	t.mu.Lock()
	for _, key := range keys {
		l := t.leases[key]
		if l == nil {
			continue
		}
		over, limit := t.check(l)
		if over {
			t.setExpired(l, true)
			expired = append(expired, Lease[V]{key, l.value, l.expires, limit})
		}
		again := l.due()
		if soon := t.cfg.Clock.Now().Add(retryAfter); again.Before(soon) && (over || !again.After(t.cfg.Clock.Now())) {
			again = soon // expired, or held back by a stall or a call in flight
		}
		t.due.Set(key, again)
	}
	t.mu.Unlock()
	if len(expired) > 0 {
		t.cfg.Expired(expired)
	}
}
