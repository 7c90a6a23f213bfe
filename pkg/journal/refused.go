package journal

import (
	"errors"
	"time"

	"quartet/pkg/journal/framelog"
)

// probeEvery is how often a partition tries whether the store has space again, after it refused an append.
const probeEvery = time.Second

// admit returns why a command whose events have size bytes may not be stored, or nil. It must be called before the
// events are applied, so that a refusal leaves the state as it is.
func (p *Partition[S]) admit(size int, frees bool) error {
	if most := p.maxBody(size); size > most {
		return tooLarge("a command", size, most)
	}
	if p.cfg.Room.Refusing() { // no partition of this process applies anything until an append succeeds
		return p.cfg.Room.Refused()
	}
	return p.cfg.Room.Check(size, frees)
}

// maxBody returns most, or the size of frames that the log allows now if that is smaller.
func (p *Partition[S]) maxBody(most int) int {
	if b, ok := p.cfg.Log.(framelog.Bounded); ok {
		return min(most, b.MaxBody())
	}
	return most
}

// probe opens an empty frame if the last append was refused for want of space, at most every probeEvery: if it can be
// appended, commands are admitted again. If it is refused as well, there is no state to undo.
func (p *Partition[S]) probe() {
	l := &p.loop
	now := p.cfg.Mono()
	if !p.cfg.Room.Refusing() || len(l.frames) > 0 || now.Sub(l.probed) < probeEvery {
		return
	}
	l.probed = now
	p.frameFor(0, 0)
}

// handleRefusal applies the outcome of a frame that was not stored and never will be (SPEC X1.1). If the frame has
// events, the state is ahead of the log: it is loaded again, up to v.End, and without a new partition_opened, since
// no other writer was found.
func (p *Partition[S]) handleRefusal(f *pending[S], v framelog.Result) error {
	l := &p.loop
	full, large := errors.Is(v.Err, framelog.ErrFull), errors.Is(v.Err, framelog.ErrTooLarge)
	if full {
		l.probed = p.cfg.Mono()
		p.cfg.Room.SetRefusing(true)
	}
	p.stall.End(p.cfg.Mono()) // it was answered
	p.core.end = v.End
	if len(f.events) == 0 {
		f.result.Resolve(false)
		for _, c := range f.cmds {
			p.complete(c)
		}
		return nil
	}
	if full || large && p.maxBody(len(f.Body)) < len(f.Body) {
		return p.reload(f, &v.End, f.cmds)
	}
	for _, c := range f.cmds {
		c.err = unavailable(outcomeNone, "the journal refused the write", v.Err)
		p.complete(c)
	}
	return p.reload(f, &v.End, nil)
}
