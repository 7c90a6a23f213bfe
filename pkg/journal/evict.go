package journal

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"quartet/pkg/journal/eviction"
	"quartet/pkg/journal/outcome"
	"quartet/pkg/resident"
)

// Evict lets owners leave memory that were not used since the last call; all that can, if unused is false. A batch takes about a millisecond,
// in which no command runs.
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

// Resident says how many owners are in memory, and how many in the file of those that are not used.
func (p *Partition[S]) Resident() eviction.Counts {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.core.evictor.Counts()
}

// release ends what a core has beside memory. It is not used any more.
func (c *core[S]) release() {
	c.memory.Release()
	c.evictor.Close()
}

// reloadSoon hides the state and has it loaded again once the frames that were begun are written. The caller has the lock of the state.
func (p *Partition[S]) reloadSoon() {
	p.loop.pendingReload = outcome.NewHidden()
	p.uncommitted = p.loop.pendingReload
}

// noteUnreadable has the state loaded again if an error says that evicted owners cannot be read. From then on all stay in memory. It is called by the
// loop.
func (p *Partition[S]) noteUnreadable(err error) {
	if !errors.Is(err, resident.ErrUnreadable) || p.loop.unreadable {
		return
	}
	p.cfg.Logger.Error("journal: owners that left memory cannot be read from their file; the partition is loaded again, and all stay in memory",
		zap.String("partition", p.core.name), zap.Error(err))
	p.loop.unreadable, p.cfg.Eviction = true, eviction.Off()
	if p.loop.pendingReload == nil {
		p.mu.Lock()
		p.reloadSoon()
		p.mu.Unlock()
	}
}

// again has a command run once more, after the state was loaded again.
func (p *Partition[S]) again(c *command[S]) {
	c.reset()
	p.requeue(c)
}

// reread waits until the state was loaded again in which a View found something unreadable.
func (p *Partition[S]) reread(ctx context.Context, cause error) error {
	p.mu.RLock()
	of := p.core
	p.mu.RUnlock()
	return p.internalCommand(ctx, "reread", func(S, Env) ([]*Event, error) {
		if p.core == of && p.cfg.Eviction.On() {
			panic(cause)
		}
		return nil, nil
	})
}
