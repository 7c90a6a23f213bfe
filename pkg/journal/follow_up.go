package journal

import "time"

// sequelTerm is how long a frame waits for sequels. They come within 0.2 ms if
// what they need is in this process; another write takes 0.5 ms and more.
const followUpTerm = 500 * time.Microsecond

// await waits with a frame for the sequels that its events announced, where that
// keeps nobody else waiting: a frame of several commands is sent.
func (p *Partition[S]) awaitFollowUps() {
	l := &p.loop
	if l.sending || len(l.frames) != 1 {
		return
	}
	f := l.frames[0]
	if f.followUps == 0 {
		return
	}
	if len(f.cmds) < minGather && l.adaptiveWait.shouldWait() {
		term := time.NewTimer(p.cfg.FollowUpTerm)
		defer term.Stop()
		for over := false; !over && f.followUps > 0 && len(f.cmds) < minGather && len(l.frames) == 1 && l.pendingReload == nil && !l.closed; {
			select {
			case <-p.inbox.signal:
				p.fill()
			case <-term.C:
				over = true
			case <-p.ctx.Done():
				over = true
			}
		}
		l.adaptiveWait.record(f.followUps == 0)
	}
	f.followUps = 0
}

// arrived counts a sequel that came, whatever it leads to.
func (p *Partition[S]) followUpArrived() {
	if k := len(p.loop.frames); k > 0 && p.loop.frames[k-1].followUps > 0 {
		p.loop.frames[k-1].followUps--
	}
}

// hope is whether sequels are worth waiting for. Where they come late, since what
// they need is far away, ever fewer frames wait.
type adaptiveWait struct {
	missed int // in a row
	skip   int // frames that do not wait
}

// mostMissed bounds what is doubled.
const maxMissed = 7

func (h *adaptiveWait) shouldWait() bool {
	if h.skip > 0 {
		h.skip--
		return false
	}
	return true
}

func (h *adaptiveWait) record(arrived bool) {
	if arrived {
		h.missed = 0
		return
	}
	h.missed = min(h.missed+1, maxMissed)
	h.skip = 1<<h.missed - 1
}
