package journal

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/fault"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
)

// execute runs one command in the loop: it looks the request up in the request memory, runs the rule, encodes
// and applies its events, and adds them to the collecting frame. A command that is answered without events, because it
// was refused too, completes once the state that it saw is durable (R4). A command for which evicted owners cannot be
// read is not completed: it runs again after the reload.
func (p *Partition[S]) execute(c *command[S]) {
	if c.consume != nil {
		p.executeConsume(c)
		return
	}
	if c.followUp {
		p.followUpArrived()
	}

	// Answer a repeated request from memory. A command without a request id gets one, by which a reload recognises it.
	if c.explicitID {
		if r, ok := p.core.memory.Lookup(c.key, p.cfg.ages.Now()); ok {
			p.answerRepeated(c, r)
			return
		}
		if c.recallOnly {
			c.err = requests.Unknown(c.requestID)
			p.finishWithoutEvents(c)
			return
		}
	} else if c.requestID == "" {
		p.loop.count++
		c.requestID = p.loop.prefix + strconv.FormatUint(p.loop.count, 36)
	} else if r, ok := p.core.recovered[c.requestID]; ok { // it ran before a reload, and its events are in the log
		c.argsHash = r.Args // the arguments of such a command are not compared
		p.answerRepeated(c, r)
		return
	}

	// Decide, and encode the events.
	now := micros(p.cfg.Now())
	events, err := p.decide(c, Env{Now: now, Actor: c.actor, NewID: p.cfg.NewID, Traceparent: c.traceparent})
	if p.loop.unreadable {
		p.runAgainAfterReload(c)
		return
	}
	if err == nil && len(events) > 0 {
		err = p.stamp(c, events, now)
	}
	if err != nil || len(events) == 0 {
		c.err = err
		p.finishWithoutEvents(c)
		return
	}
	body, err := p.encode(p.loop.scratch[:0], events)
	if err != nil {
		c.err = err
		p.finishWithoutEvents(c)
		return
	}
	p.loop.scratch = body[:0]

	// Apply the events, if there is room for them, and add them to the frame.
	if err := p.admit(len(body), c.frees); err != nil {
		c.err = err
		p.probeRoom()
		p.finishWithoutEvents(c)
		return
	}
	f := p.frameFor(len(body), len(events))
	if err := p.commit(c, f, events, body); err != nil {
		p.dropEmpty(f)
		if p.loop.unreadable {
			p.runAgainAfterReload(c)
			return
		}
		c.err = err
		p.finishWithoutEvents(c)
		return
	}

	// The frame completes the command. Remember its request.
	f.cmds = append(f.cmds, c)
	c.events, c.stored, c.seq = events, true, events[len(events)-1].WalSeq
	p.writePositions(c, f)
	if c.explicitID {
		p.core.memory.Add(c.key, requests.Entry{
			First: events[0].WalSeq, Args: c.argsHash, Count: uint32(len(events)),
			Unix: uint32(p.cfg.ages.Now().Unix()),
		})
	}
}

// decide runs the rule. A panic becomes an internal error, so that one rule cannot stop the process. If the rule
// panicked because evicted owners cannot be read, decide also makes the loop reload: see reloadIfUnreadable.
func (p *Partition[S]) decide(c *command[S], env Env) (events []*Event, err error) {
	defer func() {
		if r := recover(); r != nil {
			cause := snapshot.PanicError(r)
			p.reloadIfUnreadable(cause)
			events, err = nil, fault.Internal(fmt.Errorf("rule of %s: %w", c.method, cause))
		}
	}()
	return c.decide(p.core.state, env)
}

// finishWithoutEvents completes a command that produced no events. The answer still waits until the state it
// read is durable, and until then its caller may withdraw it.
func (p *Partition[S]) finishWithoutEvents(c *command[S]) {
	c.seq = p.core.applied
	c.stage.CompareAndSwap(stageTaken, stageDecided)
	p.completeWhenDurable(c)
}

// completeWhenDurable completes c with the newest frame that is not durable, or at once if there is none.
func (p *Partition[S]) completeWhenDurable(c *command[S]) {
	l := &p.loop
	if k := len(l.frames); k > 0 {
		l.frames[k-1].cmds = append(l.frames[k-1].cmds, c)
		return
	}
	p.complete(c)
}

// answerRepeated completes c with the first outcome of its request, which r remembers, once all that was applied is
// durable. If a frame that is not durable has the events, they are taken from it; otherwise c.recall says where the
// caller can read them. Other arguments under the same request id, unless they are in Op.Equivalent, are refused. A
// command that ran before a reload is not marked as replayed, since its caller sent it once.
func (p *Partition[S]) answerRepeated(c *command[S], r requests.Entry) {
	sameArgs := r.Args == c.argsHash || slices.Contains(c.equivalent, r.Args)
	if !sameArgs {
		c.err = requests.Reused(c.requestID)
	} else {
		c.replayed = !c.ran
		c.err = p.findOutcome(c, r)
	}
	c.seq = r.Next() - 1 // of its last event
	p.completeWhenDurable(c)
}

// findOutcome sets c.events to the events of r if they are in a frame that is not durable yet, and otherwise c.recall
// to where the log has them. Its error is internal: the request memory and the index of frames do not match.
func (p *Partition[S]) findOutcome(c *command[S], r requests.Entry) error {
	for _, f := range p.loop.frames {
		if i, ok := f.indexOf(r.First); ok {
			c.events = f.events[i : i+int(r.Count)]
			return nil
		}
	}
	seq, ok := p.core.frames.Find(r.First)
	if !ok {
		return fault.Internal(fmt.Errorf("no frame holds wal_seq %d", r.First))
	}
	c.recall = &recallAt{frame: seq, first: r.First, count: r.Count}
	return nil
}

// encode appends the events to dst as lines, and returns the longer dst. It refuses an event or command that exceeds
// the limits of the configuration with TOO_LARGE.
func (p *Partition[S]) encode(dst []byte, events []*Event) ([]byte, error) {
	for _, ev := range events {
		start := len(dst)
		var err error
		if dst, err = event.AppendLine(dst, ev); err != nil {
			return nil, fault.Internal(fmt.Errorf("encode %s: %w", ev.Type, err))
		}
		if n := len(dst) - start; n > p.cfg.MaxEvent {
			return nil, tooLarge("event "+ev.Type, n, p.cfg.MaxEvent)
		}
	}
	if limit := max(MaxCommand, p.cfg.MaxEvent); len(dst) > limit {
		return nil, tooLarge("a command of "+strconv.Itoa(len(events))+" events", len(dst), limit)
	}
	return dst, nil
}

// commit applies the events to the state and adds them, with their lines in body, to f. If Apply refuses an event that
// a rule emitted, the plane has a bug and the state is half changed: commit adds nothing to f, hides the state, makes
// the loop reload once the frames that were applied before are written, and returns an internal error.
func (p *Partition[S]) commit(c *command[S], f *pending[S], events []*Event, body []byte) error {
	// Change the state. Until f is durable, views wait for it.
	p.mu.Lock()
	for _, ev := range events {
		if err := p.core.apply(ev); err != nil {
			p.reloadSoon()
			p.core.applied = events[0].WalSeq - 1
			p.mu.Unlock()
			p.reloadIfUnreadable(err)
			p.cfg.Logger.Error("journal: Apply refused what Decide emitted",
				zap.String("method", c.method), zap.String("event_type", ev.Type), zap.Error(err))
			return fault.Internal(fmt.Errorf("apply %s: %w", ev.Type, err))
		}
	}
	if p.loop.pendingReload == nil { // otherwise the state remains hidden
		p.uncommitted = f.result
	}
	p.mu.Unlock()

	f.Body = append(f.Body, body...)
	f.content.Add(body)
	f.events = append(f.events, events...)

	// Notify the plane and the receivers of hints, which may prepare what follows while f is written.
	if p.cfg.OnApply != nil {
		p.reloadIfUnreadable(snapshot.Guarded(func() { f.followUps += p.cfg.OnApply(p.core.state, events) }))
	}
	p.cfg.Feed.HintApplied(events)
	return nil
}

// stamp fills in the envelopes of the events: type, wal_seq, ids, actor, request, trace and time. The wal_seqs follow
// those that are applied, so the events must be applied next. What the rule set remains, except type, wal_seq, method,
// request and the actor; of a reaction the actor remains too. Its error is internal: the rule returned no valid event.
func (p *Partition[S]) stamp(c *command[S], events []*Event, now time.Time) error {
	hash := ""
	if c.explicitID {
		hash = requests.FormatHash(c.argsHash)
	}
	for i, ev := range events {
		// Type, number and id.
		if ev == nil {
			return fault.Internal(fmt.Errorf("rule of %s emitted a nil event", c.method))
		}
		if !Internal(ev.Type) {
			t, err := p.cfg.Registry.TypeOf(ev.Payload)
			if err != nil {
				return fault.Internal(err)
			}
			ev.Type = t
		}
		ev.WalSeq = p.core.applied + 1 + uint64(i)
		if ev.ID == "" {
			ev.ID = p.cfg.NewID("evt_")
		}

		// Whom it is about, and who caused it.
		ev.Namespace = cmp.Or(ev.Namespace, c.actor.Namespace)
		ev.Plane = cmp.Or(ev.Plane, p.cfg.Plane)
		ev.AgentID = cmp.Or(ev.AgentID, c.agentID)
		if ev.Namespace != c.actor.Namespace {
			ev.ActorNamespace = cmp.Or(c.actor.Namespace, event.NoNamespace)
		}
		if c.consume == nil || ev.Principal == "" { // the rule of a reaction may have set the actor with Event.By
			// A connection that carries many runs has no run id itself; its rule
			// sets the run id of each event.
			ev.ActorAgentID, ev.ActorRunID = c.actor.AgentID, cmp.Or(c.actor.RunID, ev.ActorRunID)
			ev.Principal, ev.Role, ev.ActorKeyID = c.actor.Principal, c.actor.Role, c.actor.KeyID
		}

		// The request, the trace and the time.
		ev.Method, ev.RequestID, ev.RequestHash = c.method, c.requestID, hash
		ev.Traceparent = cmp.Or(c.traceparent, ev.Traceparent)
		if ev.CreatedAt.IsZero() {
			ev.CreatedAt = now
		}
		ev.CreatedAt = micros(ev.CreatedAt)
	}
	return nil
}

// frameFor returns the collecting frame, the last one that is not being written, if it is empty or has room for size
// bytes and count events, and otherwise a new one. A command that exceeds the limits of a frame gets a frame for
// itself.
func (p *Partition[S]) frameFor(size, count int) *pending[S] {
	if f := p.collectingFrame(); f != nil {
		if len(f.events) == 0 || len(f.Body)+size <= p.maxBody(p.cfg.MaxFrame) &&
			len(f.events)+count <= maxFrameEvents {
			return f
		}
	}
	return p.openFrame(size, count)
}

// collectingFrame returns the last frame if it is not being written, and otherwise nil.
func (p *Partition[S]) collectingFrame() *pending[S] {
	l := &p.loop
	if k := len(l.frames); k > 1 || k == 1 && !l.sending {
		return l.frames[k-1]
	}
	return nil
}

// openEmptyFrame makes sure that a frame will be written, even if no event is added to it.
func (p *Partition[S]) openEmptyFrame() { p.frameFor(0, 0) }

// openFrame appends a frame to loop.frames. It has capacity for size bytes and count events, or for more if recent
// frames were larger.
func (p *Partition[S]) openFrame(size, count int) *pending[S] {
	l := &p.loop
	likely := l.size
	body := l.spare
	if cap(body) < max(size, likely.Body) {
		body = make([]byte, 0, max(size, likely.Body))
	}
	id := p.cfg.NewID("")
	f := &pending[S]{
		Frame:  framelog.Frame{ID: id, Generation: p.core.generation, Body: body},
		first:  p.core.applied + 1,
		result: newFrameOutcome(),

		content: framelog.NewContent(p.log.Salt(id)),

		events: make([]*Event, 0, max(count, likely.Events)),
		cmds:   make([]*command[S], 0, max(1, likely.Cmds)),
	}
	l.spare = nil
	l.frames = append(l.frames, f)
	return f
}
