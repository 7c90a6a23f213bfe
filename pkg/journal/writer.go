package journal

import (
	"errors"
	"time"

	"go.uber.org/zap"
)

// verdict is what became of a frame that was sent.
type writeResult struct {
	outcome writeOutcome
	seq     uint64 // of the frame, if it landed
	tail    uint64 // where the next frame goes, if the partition is still mine
	foreign bool   // somebody else wrote: the partition must load again
	clean   bool   // no attempt was ambiguous: nobody holds the body any more
	err     error
}

type writeOutcome int

const (
	writeStored    writeOutcome = iota
	writeAbsent                 // it is not in the log as far as can be read; load to be sure
	writeRefused                // it was never stored and cannot be
	writeAbandoned              // the partition gave up before it knew
)

type pendingWrite struct {
	frame Frame
	tail  uint64
}

// writer sends one frame at a time, off the loop, so that the next one
// collects meanwhile (R3).
func (p *Partition[S]) writer(work <-chan pendingWrite, results chan<- writeResult) {
	for d := range work {
		p.stall.Begin(p.cfg.Mono())
		began := time.Now()
		v := p.deliver(d)
		if v.outcome == writeStored {
			p.metrics.written(d.frame, time.Since(began))
			p.stall.End(p.cfg.Mono())
		}
		p.loop.fencing.Store(false)
		results <- v
	}
}

// deliver brings one frame into the log and finds out what became of it: the
// whole of R5.
func (p *Partition[S]) deliver(d pendingWrite) writeResult {
	expect := d.tail
	clean := true
	fences := make(map[string]struct{}) // of this delivery; older ones cannot land
	pacer := newPacer()
	for {
		seq, err := p.append(p.ctx, expect, d.frame)
		p.metrics.appended(err)
		switch {
		case err == nil:
			return writeResult{outcome: writeStored, seq: seq, tail: seq, clean: clean}
		case errors.Is(err, ErrRefused):
			return writeResult{outcome: writeRefused, err: err}
		case errors.Is(err, ErrBusy):
			if pacer.Wait(p.ctx) != nil {
				return writeResult{outcome: writeAbandoned, err: err}
			}
			continue
		case errors.Is(err, ErrWrongSequence):
		default:
			// Ambiguous. From here on nothing is accepted until the log says.
			p.loop.fencing.Store(true)
			clean = false
			p.cfg.Logger.Warn("journal: append without an answer, fencing", zap.String("frame", d.frame.ID), zap.Uint64("expect", expect), zap.Error(err))
			next, err := p.fence(expect, d.frame.Generation, fences)
			if err == nil {
				// The fence holds the place: the old frame can never land
				// there. Nobody else wrote, so the state still fits and the
				// same frame goes behind the fence.
				expect = next
				continue
			}
			if !errors.Is(err, ErrWrongSequence) {
				return writeResult{outcome: writeAbandoned, err: err}
			}
		}
		v, next, again := p.inspect(expect, d.frame, fences)
		if !again {
			return v
		}
		expect = next
	}
}

// fence writes an empty frame at the expected sequence until it is
// acknowledged or refused with ErrWrongSequence; any other error means that the
// partition gave up.
func (p *Partition[S]) fence(expect, generation uint64, fences map[string]struct{}) (uint64, error) {
	pacer := newPacer()
	for {
		f := Frame{ID: p.cfg.NewID(""), Generation: generation}
		fences[f.ID] = struct{}{}
		seq, err := p.append(p.ctx, expect, f)
		if err == nil || errors.Is(err, ErrWrongSequence) {
			return seq, err
		}
		if pacer.Wait(p.ctx) != nil {
			return 0, errors.Join(p.ctx.Err(), err)
		}
	}
}

// inspect reads what stands behind expect after a wrong sequence. again says
// that only fences of mine are there and the frame goes behind next.
func (p *Partition[S]) inspect(expect uint64, f Frame, fences map[string]struct{}) (v writeResult, next uint64, again bool) {
	pacer := newPacer()
	for {
		v, next = writeResult{outcome: writeAbsent}, expect
		err := p.cfg.Log.Scan(p.ctx, expect+1, func(seq uint64, got Frame) error {
			_, fence := fences[got.ID]
			switch {
			case got.ID == f.ID:
				v.outcome, v.seq = writeStored, seq
			case !fence:
				v.foreign = true
			}
			next = seq
			return nil
		})
		if err == nil {
			break
		}
		if pacer.Wait(p.ctx) != nil {
			return writeResult{outcome: writeAbandoned, err: errors.Join(p.ctx.Err(), err)}, 0, false
		}
	}
	v.tail = next
	// Nothing behind expect although it was refused: an old answer of a reader
	// that lags. Loading ends with an acknowledged frame and cannot be fooled.
	if v.outcome == writeAbsent && !v.foreign && next > expect {
		return v, next, true
	}
	return v, next, false
}
