package journal

import (
	"errors"
	"time"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/refusal"
)

// probeEvery is how often a partition whose log is full tries whether it still is.
const probeEvery = time.Second

// admit returns why a command whose events have size bytes may not be stored, or nil. It is asked before the events are
// applied, so that a refusal leaves the state as it is.
func (p *Partition[S]) admit(size int, frees bool) error {
	if most := p.maxBody(size); size > most {
		return refusal.TooLarge("a command", size, most)
	}
	if p.cfg.Room.Refusing() { // nothing is applied meanwhile, in no partition of this process, so nothing has to be undone
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

// probe appends an empty frame to a log that is full, at most every probeEvery. It changes no state, so nothing has
// to be undone if it is refused as well.
func (p *Partition[S]) probe() {
	l := &p.loop
	now := p.cfg.Mono()
	if !p.cfg.Room.Refusing() || len(l.frames) > 0 || now.Sub(l.probed) < probeEvery {
		return
	}
	l.probed = now
	p.frameFor(0, 0)
}

// handleRefusal applies the outcome of a frame that was not stored and never will be (SPEC X1.1). The state ran ahead
// of the log only if the frame has events: then it is built from the log again, up to the end that is known, without a
// write, since no other writer was found.
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
		c.err = refusal.Unavailable(refusal.None, "the journal refused the write", v.Err)
		p.complete(c)
	}
	return p.reload(f, &v.End, nil)
}
