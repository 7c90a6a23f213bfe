package journal

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"quartet/pkg/journal/snapshot"
	"quartet/pkg/resident"
)

// EvictUnused moves owners from memory to the file that were not used since it last looked at them, in batches that
// take the loop a millisecond. Before a batch it ends if at most snapshot.EvictionPolicy.Keep are in memory. It returns
// the errors of Do; errors of the file are logged.
func (p *Partition[S]) EvictUnused(ctx context.Context) error { return p.evict(ctx, true) }

// EvictAll is EvictUnused for all owners, used or not, down to snapshot.EvictionPolicy.Keep.
func (p *Partition[S]) EvictAll(ctx context.Context) error { return p.evict(ctx, false) }

// evict evicts batches of owners, of unused ones only if unused is set, until the evictor has no more. Each batch is a
// command of the loop, so that others run in between.
func (p *Partition[S]) evict(ctx context.Context, unused bool) error {
	for more := true; more; {
		err := p.internalCommand(ctx, "evict", func(S, Env) ([]*Event, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			more = p.core.evictor.Evict(unused)
			return nil, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Resident returns how many owners are in memory, and how many are evicted to the file.
func (p *Partition[S]) Resident() snapshot.OwnerCounts {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.core.evictor.Counts()
}

// release gives up the request memory's entries in the pool and the evictor's file. c must not be used afterwards.
func (c *core[S]) release() {
	c.memory.Release()
	c.evictor.Close()
}

// reloadSoon hides the state, and makes the loop reload once all frames are written that were begun. The caller must
// hold p.mu.
func (p *Partition[S]) reloadSoon() {
	p.loop.pendingReload = newHiddenOutcome()
	p.uncommitted = p.loop.pendingReload
}

// reloadIfUnreadable does nothing unless err says that evicted owners cannot be read. Then it hides the state, sets
// loop.unreadable, and makes the loop reload; from then on all owners stay in memory. A caller whose command failed
// with err must call runAgainAfterReload. Only the loop may call it.
func (p *Partition[S]) reloadIfUnreadable(err error) {
	if !errors.Is(err, resident.ErrUnreadable) || p.loop.unreadable {
		return
	}
	p.cfg.Logger.Error("journal: owners that left memory cannot be read from their file; the partition is loaded "+
		"again, and all stay in memory",
		zap.String("partition", p.core.name), zap.Error(err))
	p.loop.unreadable, p.cfg.Eviction = true, snapshot.NoEviction()
	if p.loop.pendingReload == nil {
		p.mu.Lock()
		p.reloadSoon()
		p.mu.Unlock()
	}
}

// runAgainAfterReload puts a command back at the front of the queue; it runs after the pending reload.
func (p *Partition[S]) runAgainAfterReload(c *command[S]) {
	c.reset()
	p.requeue(c)
}

// awaitReload returns nil once the state in which a View found evicted owners unreadable was replaced. cause is the
// error that the View found. It may also return the errors of Do.
func (p *Partition[S]) awaitReload(ctx context.Context, cause error) error {
	p.mu.RLock()
	unreadable := p.core
	p.mu.RUnlock()
	return p.internalCommand(ctx, "reread", func(S, Env) ([]*Event, error) {
		if p.core == unreadable && p.cfg.Eviction.On() {
			panic(cause) // decide passes it to reloadIfUnreadable, and the command runs again after the reload
		}
		return nil, nil
	})
}
