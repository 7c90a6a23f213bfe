package journal

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"quartet/pkg/journal/snapshot"
	"quartet/pkg/resident"
)

// Evict evicts owners not used since it last looked at them, or all if unused is false, in batches that take the loop
// a millisecond. Before a batch it ends if at most snapshot.EvictionPolicy.Keep are in memory. Errors of the file are
// logged.
func (p *Partition[S]) Evict(ctx context.Context, unused bool) error {
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

// reloadSoon hides the state, and makes the loop reload once the begun frames are written. The caller must hold p.mu.
func (p *Partition[S]) reloadSoon() {
	p.loop.pendingReload = newHiddenOutcome()
	p.uncommitted = p.loop.pendingReload
}

// noteUnreadable makes the loop reload if err says that evicted owners cannot be read. From then on all owners stay
// in memory. Only the loop may call it.
func (p *Partition[S]) noteUnreadable(err error) {
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

// again puts a command back at the front of the queue; it runs after the pending reload.
func (p *Partition[S]) again(c *command[S]) {
	c.reset()
	p.requeue(c)
}

// reread returns once the state in which a View found evicted owners unreadable was replaced. cause is what it found.
func (p *Partition[S]) reread(ctx context.Context, cause error) error {
	p.mu.RLock()
	of := p.core
	p.mu.RUnlock()
	return p.internalCommand(ctx, "reread", func(S, Env) ([]*Event, error) {
		if p.core == of && p.cfg.Eviction.On() {
			panic(cause) // decide gives it to noteUnreadable, and the command runs again after the reload
		}
		return nil, nil
	})
}
