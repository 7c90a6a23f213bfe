package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Hooks are how a service opens and closes its partitions. The keeper calls them from its goroutines, one at a
// time for each partition.
type Hooks struct {
	// Unused reports that nobody ever held a partition, so that there is no former holder to wait for. Nil
	// means that this cannot be determined.
	Unused func(ctx context.Context, n int) (bool, error)
	// Take opens a partition. ctx ends with the session, and when Stop is called. After an error the partition is
	// released, without Drop, and may be taken again after retryAfter.
	Take func(ctx context.Context, n int, l *Lease) error
	// Drop closes a partition that Take opened. After it returns nothing may be read or written.
	Drop func(n int)
	// Over reports that a partition that Take opened has stopped, because the session could not be renewed. It
	// is dropped and taken again. Nil means that this does not occur. It must not block or call the keeper.
	Over func(n int) bool
}

// Lease is the right to serve one partition.
type Lease struct {
	keeper *Keeper
	own    *ownSession
}

// Valid reports whether no other process can have written before the call.
func (l *Lease) Valid() bool { return l.keeper.valid(l.own) }

// Holder says where a partition is.
type Holder struct {
	// Here reports that the partition is open in this process.
	Here bool
	// Peer is the instance that holds the partition. It has no address if nobody holds it, or this process is
	// opening or closing it.
	Peer Peer
	// Lives ends with the instance's session, after which no response of it is to be expected. It is nil if
	// Peer has no address.
	Lives context.Context //nolint:containedctx // the life of a session
}

// Group is the partitions of one service.
type Group struct {
	keeper *Keeper
	name   string
	hooks  Hooks
	parts  []partState // guarded by keeper.mu
}

type partState struct {
	status status
	own    *ownSession
	again  time.Time // the partition is not taken before this time
}

type status int

const (
	none status = iota
	taking
	open
	dropping
)

// retryAfter is the pause after a partition that could not be opened.
const retryAfter = time.Second

// Group declares a service with n partitions. It is safe for concurrent use, and must be called before Start.
func (k *Keeper) Group(name string, n int, hooks Hooks) *Group {
	g := &Group{keeper: k, name: name, hooks: hooks, parts: make([]partState, n)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.groups = append(k.groups, g)
	slices.SortFunc(k.groups, func(a, b *Group) int { return strings.Compare(a.name, b.name) })
	return g
}

// Size returns the number of partitions.
func (g *Group) Size() int { return len(g.parts) }

// Where returns the holder of a partition, and a channel that is closed when the holder may have changed.
func (g *Group) Where(n int) (h Holder, changed <-chan struct{}) {
	k := g.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	p := g.parts[n]
	switch {
	case p.status == open && !p.own.dead.Load():
		h.Here = true
	case p.status == none:
		if id, lives := k.holder(g, n); lives && (k.own == nil || id != k.own.id) {
			h.Peer, h.Lives = k.table.sessions[id].Peer, k.sessionContext(id)
		}
	}
	return h, k.changes
}

// sessionContext returns a context that ends with another process's session. k.mu must be held.
func (k *Keeper) sessionContext(id string) context.Context {
	l, ok := k.others[id]
	if !ok {
		l.ctx, l.end = context.WithCancel(context.Background()) //nolint:gosec // expireSessionsLocked calls it
		k.others[id] = l
	}
	return l.ctx
}

// expireSessionsLocked ends the contexts of the sessions that no longer exist.
func (k *Keeper) expireSessionsLocked() {
	for _, id := range slices.Sorted(maps.Keys(k.others)) {
		if _, lives := k.table.sessions[id]; !lives {
			k.others[id].end()
			delete(k.others, id)
		}
	}
}

func (k *Keeper) holder(g *Group, n int) (string, bool) {
	return k.table.holder(partKey(g.name, n), time.Now(), k.expiry())
}

func (g *Group) readyLocked() error {
	k := g.keeper
	for n, p := range g.parts {
		if id, lives := k.holder(g, n); !lives || id == k.own.id && p.status != open {
			return fmt.Errorf("lease: nobody has partition %d of %s yet", n, g.name)
		}
	}
	return nil
}

// holds reports whether any partition is open, being opened or being closed.
func (k *Keeper) holds() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.groups {
		for _, p := range g.parts {
			if p.status != none {
				return true
			}
		}
	}
	return false
}

// reconcile compares what each group holds with what it should hold and starts the difference, without
// waiting for it. A partition is taken that this process should hold and no other does, but not while
// the pause after a failed attempt lasts. A partition is dropped that this process should not hold any
// more, that was opened under an expired session, or whose hooks say that it is over. A record that
// names this process as the holder of a partition that it neither has nor should have is released.
func (k *Keeper) reconcile() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.groups {
		g.reconcileLocked()
	}
}

func (g *Group) reconcileLocked() {
	k := g.keeper
	for n := range g.parts {
		p := &g.parts[n]
		if p.status == open && (k.own == nil || p.own != k.own) {
			g.beginDrop(n, false)
		}
	}
	if k.own == nil || !k.complete {
		return
	}
	holders := make([]string, len(g.parts))
	for n := range holders {
		if id, lives := k.holder(g, n); lives {
			holders[n] = id
		}
	}
	should := assign(g.name, k.table.members(g.name), holders)
	now := time.Now()
	for n := range g.parts {
		p := &g.parts[n]
		mine := should[n] == k.own.id && !k.peer.Leaving
		switch {
		case p.status == open && (!mine || g.hooks.Over != nil && g.hooks.Over(n)):
			g.beginDrop(n, true)
		case p.status == none && mine && (holders[n] == "" || holders[n] == k.own.id) && now.After(p.again):
			// Another process may take the partition meanwhile, so it is taken at the
			// revision that was seen here.
			o, seen := k.own, k.table.parts[partKey(g.name, n)]
			p.status, p.own = taking, o
			k.work.Go(func() { g.take(n, o, seen) })
		case p.status == none && !mine && holders[n] == k.own.id:
			o := k.own
			p.status, p.own = dropping, o // a key of ours that nothing stands behind
			k.work.Go(func() { g.drop(n, o, true, false) })
		}
	}
}

func (g *Group) beginDrop(n int, release bool) {
	p := &g.parts[n]
	o := p.own
	p.status = dropping
	g.keeper.work.Go(func() { g.drop(n, o, release, true) })
}

// setStatus records the end of a take or drop. The partition is not taken again before the given pause.
func (g *Group) setStatus(n int, s status, again time.Duration) {
	k := g.keeper
	k.mu.Lock()
	g.parts[n].status = s
	if again > 0 {
		g.parts[n].again = time.Now().Add(again)
	}
	k.changedLocked()
	k.mu.Unlock()
}

func (g *Group) take(n int, o *ownSession, seen part) {
	k := g.keeper
	log := k.cfg.Logger.With(zap.String("group", g.name), zap.Int("partition", n))
	if !g.mayTake(o.ctx, n, seen) {
		g.setStatus(n, none, k.renewEvery())
		return
	}
	if err := g.write(o.ctx, n, seen.revision, record{o.id}); err != nil {
		// Another process was faster, or the outcome is unknown. The watcher will receive
		// the record.
		log.Info("a partition was not taken", zap.Error(err))
		g.setStatus(n, none, k.renewEvery())
		return
	}
	began := time.Now()
	ctx, cancel := context.WithCancel(o.ctx)
	defer cancel()
	defer context.AfterFunc(k.leaving, cancel)()
	if err := g.hooks.Take(ctx, n, &Lease{k, o}); err != nil {
		log.Warn("a partition could not be opened; it is given back", zap.Error(err))
		_ = g.release(n, o) // if it fails, it is seen as ours and tried again
		g.setStatus(n, none, retryAfter)
		return
	}
	log.Info("holds a partition", zap.Duration("opened_in", time.Since(began)))
	g.setStatus(n, open, 0)
}

// mayTake reports whether a partition that nobody holds may be taken. If it has a record, it may be taken at once. A
// record that is missing may have been lost together with the session of a holder whose lease is still valid, so such
// a partition is not taken before this process's session is as old as that lease could be, unless Hooks.Unused
// reports that nobody ever held it.
func (g *Group) mayTake(ctx context.Context, n int, seen part) bool {
	k := g.keeper
	k.mu.Lock()
	waited := time.Since(k.since) >= k.expiry()
	k.mu.Unlock()
	if seen.revision > 0 || waited {
		return true
	}
	if g.hooks.Unused == nil {
		return false
	}
	unused, err := g.hooks.Unused(ctx, n)
	return err == nil && unused
}

func (g *Group) drop(n int, o *ownSession, release, opened bool) {
	k := g.keeper
	if opened {
		g.hooks.Drop(n)
		k.cfg.Logger.Info("dropped a partition", zap.String("group", g.name), zap.Int("partition", n))
	}
	if release && !o.dead.Load() {
		// If this fails, the next holder waits for the end of the session.
		if err := g.release(n, o); err != nil {
			k.cfg.Logger.Info("a partition was not given back", zap.String("group", g.name), zap.Int("partition", n),
				zap.Error(err))
		}
	}
	g.setStatus(n, none, 0)
}

// release removes this process from a partition's record, if the table has it as the holder.
func (g *Group) release(n int, o *ownSession) error {
	k := g.keeper
	k.mu.Lock()
	p := k.table.parts[partKey(g.name, n)]
	k.mu.Unlock()
	if p.Session != o.id {
		return nil
	}
	return g.write(o.ctx, n, p.revision, record{})
}

// write changes a partition's record if it is at a revision, 0 for a record that does not exist.
func (g *Group) write(ctx context.Context, n int, revision uint64, r record) error {
	k := g.keeper
	key := partKey(g.name, n)
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	rev, err := k.within(ctx, func(ctx context.Context) (uint64, error) {
		if revision == 0 {
			return k.kv.Create(ctx, key, value)
		}
		return k.kv.Update(ctx, key, value, revision)
	})
	if err != nil {
		return err
	}
	// The own change is applied before the watcher receives it.
	k.mu.Lock()
	if k.table.parts[key].revision < rev {
		k.table.parts[key] = part{record: r, revision: rev, seen: time.Now()}
	}
	k.mu.Unlock()
	return nil
}
