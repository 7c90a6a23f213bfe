// Package leasetable keeps leases in memory: for each key, until when its holder must send a sign
// of life.
//
// A lease is armed when a worker receives a command or a step, or a runner a turn. It is
// renewed by each heartbeat, and expires when its term passes without one. Leases are not
// part of a plane's state: a renewal writes no journal line, and after a restart the owner
// arms all leases again, with a full term (SPEC X12).
//
// Time during which the journal could not be written does not count, because no lease could
// be renewed then: running terms are extended by that time, and no lease expires while the
// journal cannot be written.
package leasetable

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"quartet/pkg/clock"
)

const (
	// retryAfter is the pause after which leases are checked again that have expired and were
	// not dropped, or that could not expire, because of Keep or a stall.
	retryAfter = time.Second

	// leastPause is the minimum time between two checks of all leases, so that many
	// leases that expire one after the other do not cause one check each.
	leastPause = 20 * time.Millisecond

	// checkKey is the only key in the index of due times. It is due when all leases must be checked.
	checkKey = "check"

	never = math.MaxInt64
)

// Config describes a table.
type Config[K comparable, V any] struct {
	Clock clock.Clock
	// Term is how long a lease lasts without a renewal.
	Term time.Duration
	// Expired is called with the leases that have expired, from one goroutine, so that no
	// other lease is reported until it returns. The leases stay in the table, and each is
	// reported again every second until Drop, Arm or Renew is called for it.
	Expired func(leases []Lease[K, V])
}

// StallFunc reports how long the journal behind a lease has been unable to accept
// writes, in total since the process started, and whether it is unable to now.
type StallFunc[V any] func(value V) (total time.Duration, now bool)

// Lease is a copy of one lease in a table.
type Lease[K comparable, V any] struct {
	Key     K
	Value   V
	Expires time.Time
	// Limit says that the lease expired because it reached its limit (see ArmUntil), and not
	// because its term ended.
	Limit bool

	serial uint64
}

// Table holds leases by key. Its methods are safe for concurrent use.
type Table[K comparable, V any] struct {
	cfg Config[K, V]
	due *clock.Due
	// next is a time, in Unix microseconds, before which no lease is due. All terms are
	// of one length, so a lease that is armed or renewed is nearly always due after all
	// others, and neither costs an operation on an index.
	next atomic.Int64
	// nextCheck is when checkAll runs, and lastCheck when it last ran. Guarded by mu.
	nextCheck, lastCheck time.Time

	mu     sync.Mutex
	stall  StallFunc[V]
	leases map[K]*lease[V]
	serial uint64 // of the lease that was made last
}

type lease[V any] struct {
	value   V
	expires time.Time
	limit   time.Time     // the lease ends then whatever its holder says; zero: never
	stall   time.Duration // the journal's total stall up to which expires is extended
	busy    int           // calls of Keep that have not been released
	serial  uint64
}

// New returns an empty table. Nothing expires before Start.
func New[K comparable, V any](cfg Config[K, V]) *Table[K, V] {
	t := &Table[K, V]{
		cfg: cfg, leases: make(map[K]*lease[V]),
		stall: func(V) (time.Duration, bool) { return 0, false },
	}
	t.next.Store(never)
	t.due = clock.NewDue(cfg.Clock, func([]string) { t.checkAll() })
	return t
}

// Start starts the expiry of leases. A nil stall means that the journal never stalls. stall
// is called with the table locked and must not call the table.
func (t *Table[K, V]) Start(stall StallFunc[V]) {
	if stall != nil {
		t.mu.Lock()
		t.stall = stall
		t.mu.Unlock()
	}
	t.due.Start()
}

// Stop stops the expiry and waits for a running Expired to return. The leases stay.
func (t *Table[K, V]) Stop() { t.due.Stop() }

// Settle waits until no lease is due and Expired has returned. It is for tests that move the
// clock.
func (t *Table[K, V]) Settle() { t.due.Settle() }

// Arm creates a lease of key with a full term and the given value, or replaces the existing
// one, and returns when the term ends.
func (t *Table[K, V]) Arm(key K, value V) time.Time { return t.ArmUntil(key, value, time.Time{}) }

// ArmUntil is Arm for a lease that also expires at limit, however often it is renewed. A zero
// limit means none. It returns when the term ends, or limit if that is earlier. A stall of the journal
// does not move limit. But a lease that reaches its limit during a stall, or under Keep, expires only
// after that.
func (t *Table[K, V]) ArmUntil(key K, value V, limit time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	stall, _ := t.stall(value)
	l := t.leases[key]
	if l == nil {
		t.serial++
		l = &lease[V]{serial: t.serial}
		t.leases[key] = l
	}
	l.value, l.limit = value, limit
	return t.extend(l, t.cfg.Term, stall)
}

// Ensure renews the lease of key if same reports true for its value, and otherwise arms key
// with value. It returns the value of the lease and when its term ends. Concurrent callers
// with the same lease get the same value.
func (t *Table[K, V]) Ensure(key K, value V, same func(current V) bool) (V, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.leases[key]
	if l == nil || !same(l.value) {
		t.serial++
		l = &lease[V]{value: value, serial: t.serial}
		t.leases[key] = l
	}
	stall, _ := t.stall(l.value)
	return l.value, t.extend(l, t.cfg.Term, stall)
}

// Renew starts a full term of key's lease now, also if the lease has expired but was not dropped. It
// returns when that term ends, or the limit of the lease (see ArmUntil) if that is earlier, and false
// if key has no lease. The limit stays as it is.
func (t *Table[K, V]) Renew(key K) (expires time.Time, ok bool) {
	return t.RenewFor(key, t.cfg.Term)
}

// RenewFor is Renew with another term, such as a short one after which an expiry that failed
// is tried again.
func (t *Table[K, V]) RenewFor(key K, term time.Duration) (expires time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.leases[key]
	if l == nil {
		return time.Time{}, false
	}
	stall, _ := t.stall(l.value)
	return t.extend(l, term, stall), true
}

// extend starts a term of l that begins now, and returns when l is due. stall is the journal's total stall. The
// caller holds mu.
func (t *Table[K, V]) extend(l *lease[V], term, stall time.Duration) time.Time {
	l.expires, l.stall = t.cfg.Clock.Now().Add(term), stall
	t.checkAt(l.due())
	return l.due()
}

// checkAt schedules a check of all leases for a time, unless an earlier one is scheduled. The
// caller holds mu.
func (t *Table[K, V]) checkAt(at time.Time) {
	if micro := at.UnixMicro(); micro < t.next.Load() {
		t.next.Store(micro)
	}
	if t.nextCheck.IsZero() || at.Before(t.nextCheck) {
		t.nextCheck = at
		t.due.Set(checkKey, at)
	}
}

// due returns when the lease expires and has to be checked: when its term ends, or at its limit if that is earlier.
func (l *lease[V]) due() time.Time {
	if !l.limit.IsZero() && l.limit.Before(l.expires) {
		return l.limit
	}
	return l.expires
}

// Keep prevents the lease of key from expiring, also at its limit, until release is called. Both Keep and
// release give the lease that key has then a full term. Keep is for the time in which the holder waits for a
// response. The caller must call release exactly once. Keep does nothing for a key without a lease.
func (t *Table[K, V]) Keep(key K) (release func()) {
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

// Drop removes the lease of key, if there is one.
func (t *Table[K, V]) Drop(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.leases, key)
}

// DropIf removes the lease of key if its value matches.
func (t *Table[K, V]) DropIf(key K, matches func(value V) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.leases[key]; l != nil && matches(l.value) {
		delete(t.leases, key)
	}
}

// DropAll removes the leases whose value matches and returns their keys, in no particular order. It looks at every
// lease. matches is called with the table locked and must not call the table.
func (t *Table[K, V]) DropAll(matches func(value V) bool) []K {
	t.mu.Lock()
	defer t.mu.Unlock()
	var dropped []K
	for key, l := range t.leases {
		if matches(l.value) {
			dropped = append(dropped, key)
			delete(t.leases, key)
		}
	}
	return dropped
}

// Get returns the value of the lease of key, and false if it has none.
func (t *Table[K, V]) Get(key K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.leases[key]; l != nil {
		return l.value, true
	}
	var none V
	return none, false
}

// Expires returns when the term of the lease of key ends, or its limit if that is earlier, and false if
// key has no lease. The time may have passed.
func (t *Table[K, V]) Expires(key K) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.leases[key]; l != nil {
		return l.due(), true
	}
	return time.Time{}, false
}

// Each calls f for each lease, in no particular order, with the table locked. f must not
// block or call the table.
func (t *Table[K, V]) Each(f func(key K, value V)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, l := range t.leases {
		f(key, l.value)
	}
}

// AnyDue reports whether some lease may have expired; false means that none has. A caller that
// must handle every expiry before it reads can use it to skip the search for expired leases. It
// takes no lock.
func (t *Table[K, V]) AnyDue() bool { return t.cfg.Clock.Now().UnixMicro() >= t.next.Load() }

// Expired reports whether the lease of key has expired, and whether it reached
// its limit rather than the end of its term. It compensates for stalls as the
// table itself does.
func (t *Table[K, V]) Expired(key K) (expired, limit bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.leases[key]
	if l == nil {
		return false, false
	}
	return t.check(l)
}

// ListExpired returns the leases that have expired and whose value matches, in no particular order.
func (t *Table[K, V]) ListExpired(matches func(value V) bool) []Lease[K, V] {
	var out []Lease[K, V]
	t.mu.Lock()
	defer t.mu.Unlock()
	next := int64(never)
	for key, l := range t.leases {
		if matches(l.value) {
			if expired, limit := t.check(l); expired {
				out = append(out, Lease[K, V]{key, l.value, l.expires, limit, l.serial})
			}
		}
		next = min(next, l.due().UnixMicro())
	}
	t.next.Store(next)
	return out
}

// check extends the term of a lease by the stalls of the journal since it was last extended, and reports whether
// the lease has expired, and whether at its limit. The caller holds mu.
func (t *Table[K, V]) check(l *lease[V]) (expired, limit bool) {
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

// checkAll calls Config.Expired with the leases that have expired, in the order in which they were made, and
// schedules the next check for when the earliest of the others is due.
func (t *Table[K, V]) checkAll() {
	var expired []Lease[K, V]
	t.mu.Lock()
	now := t.cfg.Clock.Now()
	next, check := int64(never), time.Time{}
	for key, l := range t.leases {
		if !l.due().After(now) {
			if over, limit := t.check(l); over {
				expired = append(expired, Lease[K, V]{key, l.value, l.expires, limit, l.serial})
			}
		}
		at := l.due() // later than before if the journal stalled
		next = min(next, at.UnixMicro())
		if !at.After(now) { // it has expired, or cannot expire now
			at = now.Add(retryAfter)
		}
		if check.IsZero() || at.Before(check) {
			check = at
		}
	}
	t.next.Store(next)
	if soonest := now.Add(leastPause); now.Sub(t.lastCheck) < leastPause && check.Before(soonest) && !check.IsZero() {
		check = soonest
	}
	t.lastCheck, t.nextCheck = now, check
	if !check.IsZero() {
		t.due.Set(checkKey, check)
	}
	t.mu.Unlock()
	if len(expired) > 0 {
		slices.SortFunc(expired, func(a, b Lease[K, V]) int { return cmp.Compare(a.serial, b.serial) })
		t.cfg.Expired(expired)
	}
}
