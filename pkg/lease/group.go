package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Hooks are what a service does about its partitions. They are called from
// goroutines of the keeper, for one partition at a time one of them.
type Hooks struct {
	// Unused says that nobody ever held a partition, so that there is nobody to be
	// waited for. nil: that cannot be told.
	Unused func(ctx context.Context, n int) (bool, error)
	// Take opens a partition. ctx ends with the session.
	Take func(ctx context.Context, n int, l *Lease) error
	// Drop closes one that Take opened. When it returns nothing is read or written
	// any more.
	Drop func(n int)
	// Over says of one that Take opened that it answers no more: it gave itself up
	// while the session could not be renewed. It is dropped, and taken again. nil:
	// that does not happen. It must not block, nor call the keeper.
	Over func(n int) bool
}

// Lease is the right to answer for one partition.
type Lease struct {
	keeper *Keeper
	own    *own
}

// Valid says whether what was looked at before the call is the newest there is.
func (l *Lease) Valid() bool { return l.keeper.valid(l.own) }

// Holder says where a partition is.
type Holder struct {
	// Here: in this process, open.
	Here bool
	// Peer is the instance that has it; without an address nobody has it now, or
	// this process is opening or closing it.
	Peer Peer
	// Lives ends with the instance's session: nobody needs to wait for its answer
	// any more. nil where Peer has no address.
	Lives context.Context //nolint:containedctx // the life of a session
}

// Group is the partitions of one service.
type Group struct {
	keeper *Keeper
	name   string
	hooks  Hooks
	places []place // guarded by keeper.mu
}

type place struct {
	status status
	own    *own
	again  time.Time // not to be taken before
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

// Group declares a service with n partitions. Call it before Start.
func (k *Keeper) Group(name string, n int, hooks Hooks) *Group {
	g := &Group{keeper: k, name: name, hooks: hooks, places: make([]place, n)}
	k.groups = append(k.groups, g)
	return g
}

// Size is how many partitions there are.
func (g *Group) Size() int { return len(g.places) }

// Where says who holds a partition; changed is closed when that may be
// different.
func (g *Group) Where(n int) (h Holder, changed <-chan struct{}) {
	k := g.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	p := g.places[n]
	switch {
	case p.status == open && !p.own.dead.Load():
		h.Here = true
	case p.status == none:
		if id, lives := k.holder(g, n); lives && (k.own == nil || id != k.own.id) {
			h.Peer, h.Lives = k.table.sessions[id].Peer, k.life(id)
		}
	}
	return h, k.news
}

// life is the context of another's session.
func (k *Keeper) life(id string) context.Context {
	l, ok := k.others[id]
	if !ok {
		l.ctx, l.end = context.WithCancel(context.Background())
		k.others[id] = l
	}
	return l.ctx
}

// mourn ends the lives of sessions that are no more.
func (k *Keeper) mournLocked() {
	for id, l := range k.others {
		if _, lives := k.table.sessions[id]; !lives {
			l.end()
			delete(k.others, id)
		}
	}
}

func (k *Keeper) holder(g *Group, n int) (string, bool) {
	return k.table.holder(partKey(g.name, n), time.Now(), k.silence())
}

func (g *Group) readyLocked() error {
	k := g.keeper
	for n, p := range g.places {
		if id, lives := k.holder(g, n); !lives || id == k.own.id && p.status != open {
			return fmt.Errorf("lease: nobody has partition %d of %s yet", n, g.name)
		}
	}
	return nil
}

// holds says whether anything is open, or on its way.
func (k *Keeper) holds() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.groups {
		for _, p := range g.places {
			if p.status != none {
				return true
			}
		}
	}
	return false
}

// reconcile begins whatever is to be done: take what this process should hold
// and nobody does, drop what others should, and give up what a lost session had.
func (k *Keeper) reconcile() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.groups {
		g.reconcileLocked()
	}
}

func (g *Group) reconcileLocked() {
	k := g.keeper
	for n := range g.places {
		p := &g.places[n]
		if p.status == open && (k.own == nil || p.own != k.own) {
			g.beginDrop(n, false)
		}
	}
	if k.own == nil || !k.whole {
		return
	}
	holders := make([]string, len(g.places))
	for n := range holders {
		if id, lives := k.holder(g, n); lives {
			holders[n] = id
		}
	}
	should := assign(g.name, k.table.members(g.name), holders)
	now := time.Now()
	for n := range g.places {
		p := &g.places[n]
		mine := should[n] == k.own.id && !k.peer.Leaving
		switch {
		case p.status == open && (!mine || g.hooks.Over != nil && g.hooks.Over(n)):
			g.beginDrop(n, true)
		case p.status == none && mine && (holders[n] == "" || holders[n] == k.own.id) && now.After(p.again):
			// What was free here may be another's by the time that it is taken: it is
			// taken as it was seen.
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

func (g *Group) beginDrop(n int, giveBack bool) {
	p := &g.places[n]
	o := p.own
	p.status = dropping
	g.keeper.work.Go(func() { g.drop(n, o, giveBack, true) })
}

// settle ends what was begun.
func (g *Group) settle(n int, s status, again time.Duration) {
	k := g.keeper
	k.mu.Lock()
	g.places[n].status = s
	if again > 0 {
		g.places[n].again = time.Now().Add(again)
	}
	k.mu.Unlock()
	k.changed()
}

func (g *Group) take(n int, o *own, seen part) {
	k := g.keeper
	log := k.cfg.Logger.With(zap.String("group", g.name), zap.Int("partition", n))
	if !g.mayTake(o.ctx, n, seen) {
		g.settle(n, none, k.renewEvery())
		return
	}
	if err := g.write(o.ctx, n, seen.revision, record{o.id}); err != nil {
		// Somebody was quicker, or nobody knows. The bucket tells.
		log.Info("a partition was not taken", zap.Error(err))
		g.settle(n, none, k.renewEvery())
		return
	}
	began := time.Now()
	if err := g.hooks.Take(o.ctx, n, &Lease{k, o}); err != nil {
		log.Warn("a partition could not be opened; it is given back", zap.Error(err))
		_ = g.giveBack(n, o) // if it fails, it is seen as ours and tried again
		g.settle(n, none, retryAfter)
		return
	}
	log.Info("holds a partition", zap.Duration("opened_in", time.Since(began)))
	g.settle(n, open, 0)
}

// mayTake waits out a holder that nothing is known of: where the bucket knows no
// record, it may have been lost together with the session of a holder who is
// still within his term.
func (g *Group) mayTake(ctx context.Context, n int, seen part) bool {
	k := g.keeper
	k.mu.Lock()
	waited := time.Since(k.since) >= k.silence()
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

func (g *Group) drop(n int, o *own, giveBack, opened bool) {
	k := g.keeper
	if opened {
		g.hooks.Drop(n)
		k.cfg.Logger.Info("dropped a partition", zap.String("group", g.name), zap.Int("partition", n))
	}
	if giveBack && !o.dead.Load() {
		// Without this the next holder waits for the end of the session.
		if err := g.giveBack(n, o); err != nil {
			k.cfg.Logger.Info("a partition was not given back", zap.String("group", g.name), zap.Int("partition", n), zap.Error(err))
		}
	}
	g.settle(n, none, 0)
}

// giveBack makes a partition free that is ours as the table has it.
func (g *Group) giveBack(n int, o *own) error {
	k := g.keeper
	k.mu.Lock()
	p := k.table.parts[partKey(g.name, n)]
	k.mu.Unlock()
	if p.Session != o.id {
		return nil
	}
	return g.write(o.ctx, n, p.revision, record{})
}

// write changes a partition's record if it is at a revision, 0 for none.
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
	// Our own change is known before the bucket tells of it.
	k.mu.Lock()
	if k.table.parts[key].revision < rev {
		k.table.parts[key] = part{record: r, revision: rev, seen: time.Now()}
	}
	k.mu.Unlock()
	return nil
}
