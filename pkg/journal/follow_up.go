package journal

import "time"

// followUpTerm is how long a frame waits for expected follow-ups. They arrive within 0.2 ms if what they need
// is in this process; a second write takes at least 0.5 ms.
const followUpTerm = 500 * time.Microsecond

// awaitFollowUps delays a frame until the follow-ups that its events announced have arrived, but for
// FollowUpTerm at most. It does not delay a frame with minGather commands or more, since that would delay their
// callers, nor a frame for which adaptiveWait says not to wait because the last waits were in vain. While another frame
// is being written it returns at once: the collecting frame has to wait for that one anyway.
func (p *Partition[S]) awaitFollowUps() {
	l := &p.loop
	if l.sending || len(l.frames) != 1 {
		return
	}
	f := l.frames[0]
	if f.followUps == 0 {
		return
	}
	if len(f.cmds) < minGather && l.adaptiveWait.ShouldWait() {
		term := time.NewTimer(p.cfg.FollowUpTerm)
		defer term.Stop()
		waiting := true
		for waiting && f.followUps > 0 && len(f.cmds) < minGather && len(l.frames) == 1 &&
			l.pendingReload == nil && !l.closed {
			select {
			case <-p.inbox.Signal():
				p.executeQueued()
			case <-term.C:
				waiting = false
			case <-p.ctx.Done():
				waiting = false
			}
		}
		l.adaptiveWait.Record(f.followUps == 0)
	}
	f.followUps = 0
}

// followUpArrived counts the arrival of a follow-up, whatever its outcome.
func (p *Partition[S]) followUpArrived() {
	if k := len(p.loop.frames); k > 0 && p.loop.frames[k-1].followUps > 0 {
		p.loop.frames[k-1].followUps--
	}
}
