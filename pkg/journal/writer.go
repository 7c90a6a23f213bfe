package journal

import (
	"time"

	"quartet/pkg/journal/framelog"
)

// pendingWrite is a frame to append behind an end of the log.
type pendingWrite struct {
	frame   framelog.Frame
	content *framelog.Content // of its body
	end     framelog.End
}

// writer writes one frame at a time, outside the loop, so that the next one collects meanwhile (R3).
func (p *Partition[S]) writer(work <-chan pendingWrite, results chan<- framelog.Result) {
	for d := range work {
		p.stall.Begin(p.cfg.Mono())
		began := time.Now()
		v := p.write(d)
		if v.Outcome == framelog.Stored {
			p.witness(v.At) // before anybody learns what is in the frame
			p.roller.Wrote(v.At.Segment, len(d.frame.Body))
			p.metrics.Written(len(d.frame.Body), time.Since(began))
			p.stall.End(p.cfg.Mono())
			p.cfg.Room.Wrote(len(d.frame.Body))
		}
		p.loop.fencing.Store(false)
		results <- v
	}
}

// write writes a frame, in a new segment if the present one is to be closed.
func (p *Partition[S]) write(d pendingWrite) framelog.Result {
	next := p.roller.Due(d.end.Segment)
	if next == 0 {
		return p.log.Write(p.ctx, d.end, d.frame, d.content)
	}
	v := p.log.CloseSegment(p.ctx, d.end, d.frame.Generation, next)
	switch {
	case v.Outcome == framelog.Stored && !v.Foreign:
		p.witness(v.At)
	case v.Outcome == framelog.Stored:
		v.Outcome = framelog.Absent
		return v
	case v.Outcome != framelog.Refused: // a refused one can be closed later
		return v
	}
	v = p.log.Write(p.ctx, v.End, d.frame, d.content)
	v.Clean = false // followers read the closing frame in the log
	return v
}

// witness records an end of the log.
func (p *Partition[S]) witness(end framelog.End) {
	if p.cfg.Witness != nil && !end.Hash.IsZero() {
		p.cfg.Witness.Record(end)
	}
}
