package journal

import (
	"errors"
	"time"

	"go.uber.org/zap"
)

// writeResult is the outcome of sending a frame to the log.
type writeResult struct {
	outcome writeOutcome
	seq     uint64 // sequence number of the frame, if it was stored
	tail    uint64 // the end of the log, if no other writer was found
	foreign bool   // another writer was found: the partition must reload
	clean   bool   // no attempt was ambiguous: nothing else holds the body
	err     error
}

// writeOutcome is the kind of a writeResult.
type writeOutcome int

const (
	writeStored    writeOutcome = iota
	writeAbsent                 // not found in the log; only a reload is certain
	writeRefused                // not stored, and never will be
	writeAbandoned              // the partition ended before the outcome was known
)

// pendingWrite is a frame to append behind the sequence number tail.
type pendingWrite struct {
	frame Frame
	tail  uint64
}

// writer sends one frame at a time, outside the loop, so that the next one collects meanwhile (R3).
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

// deliver tries to append one frame, and blocks, until the outcome is known or is writeAbandoned because the partition
// ended. After an attempt without an answer it writes a fence, and once that is stored appends the frame again (R5).
func (p *Partition[S]) deliver(d pendingWrite) writeResult {
	expect := d.tail
	clean := true
	fences := make(map[string]struct{}) // of this call; those of earlier calls cannot be stored any more
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
			// Ambiguous: no command is accepted until the outcome is known.
			p.loop.fencing.Store(true)
			clean = false
			p.cfg.Logger.Warn("journal: append without an answer, fencing", zap.String("frame", d.frame.ID), zap.Uint64("expect", expect), zap.Error(err))
			next, err := p.fence(expect, d.frame.Generation, fences)
			if err == nil {
				// The fence has the sequence number that the frame expected, so that attempt can no
				// longer succeed. No other writer was found, so the state is still right and the
				// same frame is appended behind the fence.
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

// fence appends an empty frame at the expected sequence until that is acknowledged or refused with
// ErrWrongSequence. Any other error means that the partition ended. It adds the ids of its frames to fences.
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

// inspect reads the log behind expect after ErrWrongSequence. again reports that nothing but fences of this
// call is there, and that the frame is to be appended behind next.
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
	// If nothing is behind expect although the append was refused, the read was
	// outdated. A load ends with an acknowledged append, which detects that.
	if v.outcome == writeAbsent && !v.foreign && next > expect {
		return v, next, true
	}
	return v, next, false
}
