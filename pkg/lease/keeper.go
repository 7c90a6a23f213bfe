package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"quartet/pkg/retry"
)

// DefaultTerm is how long the partitions of a killed instance are unavailable at most, not counting the time to
// load them.
const DefaultTerm = 10 * time.Second

// Config configures a Keeper. ID is required, and Conn or Open.
type Config struct {
	Conn     *nats.Conn
	Replicas int
	// Open opens the bucket in place of one of Conn's.
	Open   func(ctx context.Context) (Bucket, error)
	Peer   Peer          // this instance; Groups is filled in by Start
	ID     string        // of the first session; later ones get a suffix
	Term   time.Duration // default DefaultTerm
	Logger *zap.Logger
	// Elapsed returns the time since some moment in the past, by a clock that also runs while the machine is
	// suspended. Default: that of the operating system; see elapsed.
	Elapsed func() time.Duration
}

// Keeper is a process's member of the lease protocol. It has at most one session at a time. mu guards what
// follows it.
type Keeper struct {
	cfg      Config
	kv       Bucket
	stop     context.CancelFunc
	ended    chan struct{}
	work     sync.WaitGroup  // takes and drops in progress
	leaving  context.Context //nolint:containedctx // until Stop: a partition that is being opened then is given up
	leave    context.CancelFunc
	sessions int // number of sessions so far

	mu       sync.Mutex
	table    table
	others   map[string]otherSession // sessions of other processes whose context was requested
	since    time.Time               // when the current session began
	complete bool                    // table holds everything that was in the bucket at the start
	own      *ownSession
	peer     Peer
	groups   []*Group      // by name; complete before Start
	changes  chan struct{} // closed and replaced at every change except a renewal
	wake     chan struct{} // capacity 1: reconcile
}

// ownSession is a session of this process.
type ownSession struct {
	id       string
	revision uint64       // guarded by Keeper.mu
	until    atomic.Int64 // by Config.Elapsed; until then the session is valid, and what was read may be shown
	dead     atomic.Bool
	ctx      context.Context //nolint:containedctx // the session's life
	end      context.CancelFunc
}

// otherSession is the context of a session of another process; it ends with the session.
type otherSession struct {
	ctx context.Context //nolint:containedctx // of a session
	end context.CancelFunc
}

// NewKeeper returns a keeper that holds nothing before Start.
func NewKeeper(cfg Config) *Keeper {
	if cfg.Term <= 0 {
		cfg.Term = DefaultTerm
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Elapsed == nil {
		cfg.Elapsed = elapsed
	}
	leaving, leave := context.WithCancel(context.Background())
	return &Keeper{
		leaving: leaving, leave: leave,
		cfg: cfg, peer: cfg.Peer, table: newTable(), others: map[string]otherSession{},
		changes: make(chan struct{}), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// Present sets the connection and how this process describes itself to others, in place of those in
// Config. Start adds the groups and the process to as. It must be called before Start.
func (k *Keeper) Present(conn *nats.Conn, as Peer) { k.cfg.Conn, k.peer = conn, as }

func (k *Keeper) renewEvery() time.Duration { return k.cfg.Term / 5 }
func (k *Keeper) validFor() time.Duration   { return k.cfg.Term * 6 / 10 }
func (k *Keeper) expiry() time.Duration     { return k.cfg.Term * 8 / 10 }

// Start opens the bucket and begins a session. It blocks until the holders of all partitions are known;
// partitions are taken in the background, until Stop. If ctx ends first, Start gives up and returns an error.
func (k *Keeper) Start(ctx context.Context) error {
	for _, g := range k.groups {
		k.peer.Groups = append(k.peer.Groups, g.name)
	}
	k.peer.Process = process()
	if err := k.open(ctx); err != nil {
		return err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	k.stop = stop
	go func() {
		defer close(k.ended)
		k.run(run)
	}()
	for {
		k.mu.Lock()
		complete, changes := k.complete && k.own != nil, k.changes
		k.mu.Unlock()
		if complete {
			return nil
		}
		select {
		case <-changes:
		case <-ctx.Done():
			stop()
			<-k.ended
			return fmt.Errorf("lease: nothing was heard of who holds what: %w", ctx.Err())
		}
	}
}

// open opens the bucket, and retries until ctx ends.
func (k *Keeper) open(ctx context.Context) error {
	open := k.cfg.Open
	if open == nil {
		open = natsBucket(k.cfg.Conn, k.cfg.Replicas)
	}
	for pacer := retry.New(50*time.Millisecond, time.Second); ; {
		kv, err := open(ctx)
		if err == nil {
			k.kv = kv
			return nil
		}
		// The cluster may have no leader at the moment.
		if pacer.Wait(ctx) != nil {
			return fmt.Errorf("lease: bucket %s: %w", BucketName, err)
		}
	}
}

// run keeps one session after another until ctx ends.
func (k *Keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := k.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		k.cfg.Logger.Warn("the session is over; what it held is given up", zap.Error(err))
		k.mu.Lock()
		k.own, k.complete = nil, false
		k.table = newTable()
		k.expireSessionsLocked()
		k.changedLocked()
		k.mu.Unlock()
		k.work.Wait()
		k.reconcile()
		k.work.Wait() // nothing of the old session is answered by the new one
		if !pause(ctx, k.renewEvery()) || k.open(ctx) != nil {
			return
		}
	}
}

// runSession begins a session and keeps it until ctx ends, or until another process has deleted it or the bucket is
// gone. A renewal that fails for another reason is tried again. The error says why it ended, or could not begin.
func (k *Keeper) runSession(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := k.begin(ctx)
	if err != nil {
		return err
	}
	defer o.end()
	defer o.dead.Store(true)
	var w watcher
	defer func() { w.stop() }()
	look := time.NewTicker(k.cfg.Term / looksInTerm) // a silence is seen when it is long enough, not a renewal later
	defer look.Stop()
	renew := time.Now().Add(k.renewEvery())
	for {
		if err := w.begin(ctx, k); err != nil {
			k.cfg.Logger.Warn("the bucket of leases cannot be followed; trying again", zap.Error(err))
		}
		switch e, why := k.next(ctx, &w, look.C); why {
		case toEnd:
			return ctx.Err()
		case toWatchAgain:
			w.stop()
			continue
		case toObserve:
			k.observe(e)
			if e == nil {
				// sessions of processes that were killed on this machine, such as the previous incarnation of this one
				k.deleteExpired(ctx, o, true)
			}
		case toLook:
			due := !time.Now().Before(renew)
			if due {
				renew = time.Now().Add(k.renewEvery())
				if err := k.renew(ctx, o); err != nil {
					return err
				}
				k.notify()
			}
			if k.deleteExpired(ctx, o, due); !due {
				continue
			}
		case toReconcile:
		}
		if len(w.updates) == 0 {
			k.reconcile()
		}
	}
}

// occasion is why the loop of a session goes on.
type occasion int

const (
	toEnd occasion = iota
	toWatchAgain
	toObserve
	toLook
	toReconcile
)

// next waits for something to do. Of several things it returns the first in the order of the occasions: what is known
// of sessions is read before it is decided which of them are silent.
func (k *Keeper) next(ctx context.Context, w *watcher, look <-chan time.Time) (*Change, occasion) {
	if ctx.Err() != nil {
		return nil, toEnd
	}
	select {
	case e, open := <-w.updates:
		return observed(e, open)
	default:
	}
	select {
	case <-look:
		return nil, toLook
	default:
	}
	select {
	case <-ctx.Done():
		return nil, toEnd
	case e, open := <-w.updates:
		return observed(e, open)
	case <-look:
		return nil, toLook
	case <-k.wake:
		return nil, toReconcile
	}
}

// observed returns what was received from a watcher.
func observed(e *Change, open bool) (*Change, occasion) {
	if !open {
		return nil, toWatchAgain
	}
	return e, toObserve
}

// looksInTerm is how often in a term a session looks for silent ones. Each fifth of a term it is renewed as well.
const looksInTerm = 40

// begin creates the session's key.
func (k *Keeper) begin(ctx context.Context) (*ownSession, error) {
	k.sessions++
	o := &ownSession{id: k.cfg.ID}
	if k.sessions > 1 {
		o.id = fmt.Sprintf("%s-%d", k.cfg.ID, k.sessions)
	}
	o.ctx, o.end = context.WithCancel(ctx)
	sent := k.cfg.Elapsed()
	rev, err := k.within(ctx, func(ctx context.Context) (uint64, error) {
		return k.kv.Create(ctx, sessionPrefix+o.id, k.value())
	})
	if err != nil {
		o.end()
		return nil, fmt.Errorf("lease: begin session %s: %w", o.id, err)
	}
	o.revision = rev
	k.extend(o, sent)
	k.mu.Lock()
	k.own, k.since = o, time.Now()
	k.mu.Unlock()
	return o, nil
}

// extend makes the session valid from the time at which its acknowledged renewal was sent.
func (k *Keeper) extend(o *ownSession, sent time.Duration) {
	o.until.Store(int64(sent + k.validFor()))
}

func (k *Keeper) value() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, err := json.Marshal(k.peer)
	if err != nil { // strings always marshal
		return []byte("{}")
	}
	return b
}

// within bounds one request to the bucket.
func (k *Keeper) within(ctx context.Context, f func(ctx context.Context) (uint64, error)) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, max(k.renewEvery(), 250*time.Millisecond))
	defer cancel()
	return f(ctx)
}

// renew sends a heartbeat. It returns an error only when the session has ended. An error of the broker does not
// end it, since then others cannot delete it either.
func (k *Keeper) renew(ctx context.Context, o *ownSession) error {
	key := sessionPrefix + o.id
	k.mu.Lock()
	revision := o.revision
	k.mu.Unlock()
	sent := k.cfg.Elapsed()
	rev, err := k.within(ctx, func(ctx context.Context) (uint64, error) {
		return k.kv.Update(ctx, key, k.value(), revision)
	})
	switch {
	case err == nil:
		k.mu.Lock()
		o.revision = rev
		k.mu.Unlock()
		k.extend(o, sent)
		return nil
	case !errors.Is(err, ErrConflict) && k.lost(ctx):
		return fmt.Errorf("lease: the bucket is gone: %w", err)
	case !errors.Is(err, ErrConflict):
		k.cfg.Logger.Warn("the session could not be renewed; trying again", zap.Error(err))
		return nil
	}
	// Either the session was deleted, or an earlier renewal was stored whose answer was lost.
	var gone bool
	rev, err = k.within(ctx, func(ctx context.Context) (uint64, error) {
		rev, err := k.kv.Revision(ctx, key)
		if errors.Is(err, ErrNoKey) {
			gone = true
			return 0, nil
		}
		return rev, err
	})
	switch {
	case gone:
		return errors.New("lease: another instance ended this session, since it was silent for too long")
	case err != nil:
		return nil //nolint:nilerr // asked again at the next renewal
	}
	k.mu.Lock()
	o.revision = max(o.revision, rev)
	k.mu.Unlock()
	return nil
}

// deleteExpired deletes the sessions that were not renewed in time and, if processes is set, those whose
// process has exited. It does so at the revision that was seen, so that a session renewed meanwhile stays.
func (k *Keeper) deleteExpired(ctx context.Context, o *ownSession, processes bool) {
	k.mu.Lock()
	silent := map[string]uint64{}
	if k.complete {
		for _, id := range k.table.silent(time.Now(), k.expiry()) {
			silent[id] = k.table.sessions[id].revision
		}
		for id, s := range k.table.sessions {
			if processes && over(s.Process, k.peer.Process) {
				silent[id] = s.revision
			}
		}
		delete(silent, o.id)
	}
	k.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(silent)) {
		revision := silent[id]
		_, err := k.within(ctx, func(ctx context.Context) (uint64, error) {
			return 0, k.kv.Delete(ctx, sessionPrefix+id, revision)
		})
		if err == nil {
			// The watcher will receive the deletion; until then it is not tried again.
			k.mu.Lock()
			delete(k.table.sessions, id)
			k.table.ended[id] = true
			k.expireSessionsLocked()
			k.changedLocked()
			k.mu.Unlock()
			k.cfg.Logger.Warn("an instance is over, or was silent for too long; what it held is taken",
				zap.String("session", id))
		}
	}
}

// watcher follows the bucket, beginning with its contents.
type watcher struct {
	updates <-chan *Change // nil while the bucket is not followed
	again   time.Time
	cancel  context.CancelFunc
}

func (w *watcher) begin(ctx context.Context, k *Keeper) error {
	if w.updates != nil || time.Now().Before(w.again) {
		return nil
	}
	w.again = time.Now().Add(k.renewEvery())
	// The watcher ends with its context, so its start is bounded by a timer and not by a deadline.
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(k.renewEvery(), cancel)
	updates, err := k.kv.Watch(ctx)
	if err == nil && !late.Stop() {
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return err
	}
	w.updates, w.cancel = updates, cancel
	return nil
}

func (w *watcher) stop() {
	if w.cancel != nil {
		w.cancel()
	}
	w.updates, w.cancel = nil, nil
}

// lost reports whether the bucket no longer exists: it is in memory, and the server that held it was restarted.
func (k *Keeper) lost(ctx context.Context) bool {
	_, err := k.within(ctx, func(ctx context.Context) (uint64, error) {
		return 0, k.kv.Exists(ctx)
	})
	return errors.Is(err, ErrNoBucket)
}

// observe applies one change of the bucket; nil means that all of its initial contents were received.
func (k *Keeper) observe(e *Change) {
	k.mu.Lock()
	var changes bool
	if e == nil {
		changes = !k.complete
		k.complete = true
	} else {
		changes = k.table.apply(e.Key, e.Value, e.Revision, e.Gone, time.Now())
	}
	if changes {
		k.expireSessionsLocked()
		k.changedLocked()
	}
	k.mu.Unlock()
}

// changedLocked wakes everybody who waits for a change, and makes the loop reconcile. It is called before k.mu is
// unlocked after the change, so that nobody sees a change and then is woken for it.
func (k *Keeper) changedLocked() {
	close(k.changes)
	k.changes = make(chan struct{})
	k.notify()
}

// notify makes the loop reconcile. It does not block.
func (k *Keeper) notify() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Stop closes and releases all partitions, each as soon as its Drop returns, while the process still serves and
// forwards. If ctx ends first, the remaining ones are closed and become free with the end of the session, and Stop
// returns the error of ctx. It then ends the session. In either case every Drop has returned when Stop returns.
func (k *Keeper) Stop(ctx context.Context) error {
	if k.stop == nil {
		return nil
	}
	k.mu.Lock()
	k.peer.Leaving = true
	o := k.own
	k.mu.Unlock()
	// Neither a partition that cannot be opened, because the broker does not answer, nor the loop, which may wait for
	// an answer, delays what can be closed.
	k.leave()
	k.reconcile()
	if o != nil {
		_ = k.renew(ctx, o) // tells the others; if it fails they see it by what is given back
	}
	k.mu.Lock()
	k.changedLocked()
	k.mu.Unlock()
	var err error
	for err == nil && k.holds() {
		k.mu.Lock()
		changes := k.changes
		k.mu.Unlock()
		if !k.holds() {
			break
		}
		select {
		case <-changes:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	k.stop()
	<-k.ended
	k.mu.Lock()
	k.own, k.table = nil, newTable()
	k.expireSessionsLocked()
	k.mu.Unlock()
	k.reconcile() // what could not be given back in time is closed all the same
	k.work.Wait()
	if o != nil {
		k.mu.Lock()
		revision := o.revision
		k.mu.Unlock()
		_, _ = k.within(context.WithoutCancel(ctx), func(ctx context.Context) (uint64, error) {
			return 0, k.kv.Delete(ctx, sessionPrefix+o.id, revision)
		}) // if it fails the others wait the session out
	}
	return err
}

// Ready returns nil while this process's session is valid and every partition of its groups is held: by this
// process, where it must be open, or by another.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.own == nil || !k.complete:
		return errors.New("lease: no session; NATS was not reachable for too long")
	case !k.valid(k.own):
		return errors.New("lease: the session could not be renewed")
	}
	for _, g := range k.groups {
		if err := g.readyLocked(); err != nil {
			return err
		}
	}
	return nil
}

// valid reports whether the session can be relied on.
func (k *Keeper) valid(o *ownSession) bool {
	return !o.dead.Load() && int64(k.cfg.Elapsed()) < o.until.Load()
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
