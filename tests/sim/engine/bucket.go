package engine

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"quartet/pkg/lease"
)

// Leases is the bucket of leases that all processes of a run share.
type Leases struct {
	mu       sync.Mutex
	keys     map[string]*lease.Change // also of those that are gone, of which a broker keeps a marker
	revision uint64
	watches  map[*watch]struct{}
}

// watch is what one process is still to be sent; nil is the end of the contents.
type watch struct {
	queued []sent
	signal chan struct{} // capacity 1
}

// sent is a change for a watch; news says that it is more than a renewal.
type sent struct {
	*lease.Change
	news bool
}

// next removes and returns the changes that are passed on together: renewals, and the first other change behind them.
// If more were passed on together, chance would decide whether a process acts between two changes.
func (w *watch) next() []sent {
	n := slices.IndexFunc(w.queued, func(s sent) bool { return s.news }) + 1
	if n == 0 {
		n = len(w.queued)
	}
	out := w.queued[:n:n]
	if w.queued = w.queued[n:]; len(w.queued) > 0 {
		w.wake()
	}
	return out
}

// hasNews reports whether anything but renewals is queued.
func (w *watch) hasNews() bool {
	return slices.ContainsFunc(w.queued, func(s sent) bool { return s.news })
}

// NewLeases returns an empty bucket.
func NewLeases() *Leases {
	return &Leases{keys: map[string]*lease.Change{}, watches: map[*watch]struct{}{}}
}

// change stores a key if it is at a revision, 0 for one that does not exist, and returns the new revision.
func (l *Leases) change(key string, value []byte, gone bool, revision uint64) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := uint64(0)
	if c := l.keys[key]; c != nil && (!c.Gone || revision > 0) {
		at = c.Revision
	}
	if at != revision {
		return 0, fmt.Errorf("%w: %s is at %d and not at %d", lease.ErrConflict, key, at, revision)
	}
	l.revision++
	c := &lease.Change{Key: key, Value: bytes.Clone(value), Revision: l.revision, Gone: gone}
	l.keys[key] = c
	for w := range l.watches {
		w.queued = append(w.queued, sent{c, gone || at == 0 || !lease.IsSession(key)})
		w.wake()
	}
	return l.revision, nil
}

// Bucket is Leases as one process sees them: a request other than Exists is a crossing, and so is each change that the
// process is sent.
// Once the run is calm, renewals of sessions are no crossings, since they go on for as long as there are processes.
type Bucket struct {
	Queue  *Queue
	Of     *Process
	Leases *Leases
}

var _ lease.Bucket = (*Bucket)(nil)

var bucketFaults = []Outcome{Lost, Unanswered}

// do makes one request. A dead process gets ErrDead, and so does a crossing after Close of the queue. If ctx ends
// before a crossing passes, do makes no request and returns the error of ctx.
func (b *Bucket) do(ctx context.Context, what, key string, request func() (uint64, error)) (uint64, error) {
	o, err := Pass, error(nil)
	if b.Of.isDead() {
		o = Died
	} else if what != "update" || !lease.IsSession(key) || !b.Queue.Calmed() {
		o, err = b.Queue.Park(ctx, Crossing{
			Edge: "lease " + b.Of.Name + " " + what + " " + key, Of: b.Of,
			Faults: bucketFaults,
		})
	}
	if err != nil {
		return 0, err
	}
	switch o {
	case Died:
		return 0, ErrDead
	case Lost:
		return 0, ErrNoAnswer
	default:
	}
	revision, err := request()
	switch o {
	case Kept:
		return 0, ErrDead
	case Unanswered:
		return 0, ErrNoAnswer
	default:
		return revision, err
	}
}

// Create implements lease.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	return b.do(ctx, "create", key, func() (uint64, error) { return b.Leases.change(key, value, false, 0) })
}

// Update implements lease.Bucket.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	return b.do(ctx, "update", key, func() (uint64, error) { return b.Leases.change(key, value, false, revision) })
}

// Delete implements lease.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string, revision uint64) error {
	_, err := b.do(ctx, "delete", key, func() (uint64, error) { return b.Leases.change(key, nil, true, revision) })
	return err
}

// Revision implements lease.Bucket.
func (b *Bucket) Revision(ctx context.Context, key string) (uint64, error) {
	return b.do(ctx, "read", key, func() (uint64, error) {
		b.Leases.mu.Lock()
		defer b.Leases.mu.Unlock()
		if c := b.Leases.keys[key]; c != nil && !c.Gone {
			return c.Revision, nil
		}
		return 0, lease.ErrNoKey
	})
}

// Exists implements lease.Bucket. It is no crossing.
func (b *Bucket) Exists(context.Context) error {
	if b.Of.isDead() {
		return ErrDead
	}
	return nil
}

func (w *watch) wake() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// Watch implements lease.Bucket. Renewals are passed on together.
func (b *Bucket) Watch(ctx context.Context) (<-chan *lease.Change, error) {
	if b.Of.isDead() {
		return nil, ErrDead
	}
	w := &watch{signal: make(chan struct{}, 1)}
	b.Leases.mu.Lock()
	for _, key := range slices.Sorted(maps.Keys(b.Leases.keys)) {
		w.queued = append(w.queued, sent{b.Leases.keys[key], false})
	}
	w.queued = append(w.queued, sent{nil, true})
	b.Leases.watches[w] = struct{}{}
	b.Leases.mu.Unlock()
	w.wake()
	changes := make(chan *lease.Change, 64)
	go func() {
		defer close(changes)
		b.pass(ctx, w, changes)
		b.Leases.mu.Lock()
		defer b.Leases.mu.Unlock()
		delete(b.Leases.watches, w)
	}()
	return changes, nil
}

// pass sends to changes what next returns, each time that w is woken. It returns when ctx ends, and when a crossing
// does not pass; the changes that are still queued are then lost.
func (b *Bucket) pass(ctx context.Context, w *watch, changes chan<- *lease.Change) {
	for {
		select {
		case <-w.signal:
		case <-ctx.Done():
			return
		}
		b.Leases.mu.Lock()
		news := w.hasNews()
		b.Leases.mu.Unlock()
		if news || !b.Queue.Calmed() {
			o, err := b.Queue.Park(ctx, Crossing{Edge: "leases " + b.Of.Name, Of: b.Of, Faults: answerFaults})
			if err != nil || o != Pass {
				return
			}
		}
		b.Leases.mu.Lock()
		queued := w.next()
		b.Leases.mu.Unlock()
		for _, c := range queued {
			select {
			case changes <- c.Change:
			case <-ctx.Done():
				return
			}
		}
	}
}
