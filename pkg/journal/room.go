package journal

import (
	"errors"
	"time"

	"quartet/pkg/journal/framelog"
)

// probeEvery is how often a partition tries whether the store has space again, after the store refused an append.
const probeEvery = time.Second

// mayUseReserve is the argument of admit for events that may use the reserve of the store.
const mayUseReserve = true

// admit returns TOO_LARGE or STORAGE_FULL if events of size bytes may not be stored, or nil. frees says that they may
// use the reserve of the store. It must be called before the events are applied, so that a refusal leaves the state as
// it is.
func (p *Partition[S]) admit(size int, frees bool) error {
	if limit := p.maxBody(size); size > limit {
		return tooLarge("a command", size, limit)
	}
	if p.cfg.Room.Refusing() { // no partition of this process applies anything until an append succeeds
		return p.cfg.Room.Refused()
	}
	return p.cfg.Room.Check(size, frees)
}

// maxBody returns maxBytes, or the size of frames that the log allows now if that is smaller.
func (p *Partition[S]) maxBody(maxBytes int) int {
	if b, ok := p.cfg.Log.(framelog.Bounded); ok {
		return min(maxBytes, b.MaxBody())
	}
	return maxBytes
}

// probeRoom tests whether the store has space again, by opening an empty frame for the writer. It is called when a
// command was not admitted, and does nothing unless the last append of any partition of this process was refused for
// want of space (Room is shared), no frame is outstanding, and probeEvery has passed since this partition last tried.
// If the frame can be stored, all partitions admit commands again. If it is refused, there is no state to undo.
func (p *Partition[S]) probeRoom() {
	l := &p.loop
	now := p.cfg.Mono()
	if !p.cfg.Room.Refusing() || len(l.frames) > 0 || now.Sub(l.probed) < probeEvery {
		return
	}
	l.probed = now
	p.openEmptyFrame()
}

// handleRefusal applies the outcome of a frame that was not stored and never will be (SPEC X1.1). If the frame has
// events, the state is ahead of the log: it is loaded again, up to v.End, and without a new partition_opened, since
// no other writer was found.
func (p *Partition[S]) handleRefusal(f *pending[S], v framelog.Result) error {
	// The store answered, so this is the end of a stall; nothing was stored, so the log ends where it did.
	l := &p.loop
	full, large := errors.Is(v.Err, framelog.ErrFull), errors.Is(v.Err, framelog.ErrTooLarge)
	if full {
		l.probed = p.cfg.Mono()
		p.cfg.Room.SetRefusing(true)
	}
	p.stall.End(p.cfg.Mono())
	p.core.end = v.End

	// Without events the state is that of the log.
	if len(f.events) == 0 {
		f.result.Resolve()
		for _, c := range f.cmds {
			p.complete(c)
		}
		return nil
	}

	// Where admit now knows of the limit, run the commands again: it refuses them with the reason.
	if full || large && p.maxBody(len(f.Body)) < len(f.Body) {
		return p.reloadAfterRefusal(f, &v.End, f.cmds)
	}
	for _, c := range f.cmds {
		c.err = unavailable(outcomeNone, "the journal refused the write", v.Err)
		p.complete(c)
	}
	return p.reloadAfterRefusal(f, &v.End, nil)
}
