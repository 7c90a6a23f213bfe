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

// writer writes the frames of work, one at a time, and sends the results, while the loop fills the next frame (R3). It
// returns once work is closed.
func (p *Partition[S]) writer(work <-chan pendingWrite, results chan<- framelog.Result) {
	for d := range work {
		p.stall.Begin(p.cfg.Mono())
		began := time.Now()
		v := p.roller.Write(p.ctx, p.log, d.end, d.frame, d.content, p.witness)
		if v.Outcome == framelog.Stored {
			p.witness(v.At)
			p.metrics.Written(len(d.frame.Body), time.Since(began))
			p.stall.End(p.cfg.Mono())
			p.cfg.Room.Wrote(len(d.frame.Body))
		}
		p.loop.fencing.Store(false)
		results <- v
	}
}

// witness records with Config.Witness that the log reaches end. Call it before anybody learns what is in the last
// frame.
func (p *Partition[S]) witness(end framelog.End) {
	if p.cfg.Witness != nil && !end.Hash.IsZero() {
		p.cfg.Witness.Record(end)
	}
}
