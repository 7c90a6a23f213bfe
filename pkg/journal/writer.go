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
		v := p.log.Write(p.ctx, d.end, d.frame, d.content)
		if v.Outcome == framelog.Stored {
			if p.cfg.Witness != nil && !v.At.Hash.IsZero() { // before anybody learns what is in the frame
				p.cfg.Witness.Record(v.At)
			}
			p.metrics.Written(len(d.frame.Body), time.Since(began))
			p.stall.End(p.cfg.Mono())
			p.cfg.Room.Wrote(len(d.frame.Body))
		}
		p.loop.fencing.Store(false)
		results <- v
	}
}
