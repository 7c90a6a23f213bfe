package journal

import (
	"context"
	"errors"
	"maps"
	"slices"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/tracing"
)

// Reaction is what a partition does in response to another partition's events.
type Reaction[S State] struct {
	Source   Source
	Registry *Registry // of the source's events
	Interest []string  // event types, empty for all; payloads of others are not parsed
	// Matters, if set, reports whether React would do anything about an event of interest in any state. It runs
	// outside the loop; events that it excludes cost the loop nothing.
	Matters func(ev *Event) bool
	// React returns the events that follow from ev. It is pure and runs in the loop; env.Now is the time of its
	// execution. A refusal is final: it is logged and the event is skipped. An event that React returned
	// nothing for may be passed to it again after a restart, but only with the state that it had before: the
	// position is written before the next change of state.
	React func(s S, env Env, ev *Event) ([]*Event, error)
}

const (
	// consumeWindow is how many frames may be queued at once, so that this partition keeps up with a source
	// that writes one frame per fsync although its own fsync takes as long.
	consumeWindow = 16
	// positionWriteInterval is the number of frames without effect after which the position is written. Frames
	// with nothing but events of the journal itself do not count: two planes that follow each other would
	// answer every written position with another one.
	positionWriteInterval = 1000
	// wakeInterval is the number of frames without relevant events after which the loop is given the position.
	// Waking the loop for each would keep a plane busy that follows a busy one.
	wakeInterval  = 64
	consumeMethod = "consume"
	// wholeFrame is the line of a position behind all lines of a frame.
	wholeFrame = 0
)

// consumption is one frame of a source, or several without relevant events, as the loop executes it.
type consumption[S State] struct {
	key         sourceKey
	end         framelog.End // of the frame, or of the last one of several
	previousEnd framelog.End // of the frame before that one
	// afterSeq and afterLine are how far p must have consumed the source before: up to the consumption that was
	// queued before this one, or, after a split, up to the previous part.
	afterSeq  uint64
	afterLine int
	events    []sourceEvent
	foreign   int // frames since the previous consumption that have events of the source's plane, relevant or not
	react     func(s S, env Env, ev *Event) ([]*Event, error)
	// fail ends the Consume that queued the consumption. It does not block.
	fail context.CancelCauseFunc
}

// errPassedOver completes a consumption whose predecessor is not consumed, because its append was refused or a
// reload returned to an earlier position. Consume then ends, and continues from the position when it is called again.
var errPassedOver = errors.New("journal: an earlier frame of the source is not consumed")

// follows reports whether everything before in is consumed at pos.
func (in *consumption[S]) follows(pos *position) bool {
	if pos.seq != in.afterSeq || pos.line == 0 {
		return pos.seq >= in.afterSeq
	}
	// Of the frame afterSeq only some lines are consumed: in has to be the rest of it, after a split.
	return in.afterLine > 0 && pos.line >= in.afterLine
}

// sourceEvent is a relevant event and the index of its line in the frame.
type sourceEvent struct {
	line int
	ev   *Event
}

// Consume applies the source's events to p, each exactly once: the position is written in the same frame as the effect,
// as source_consumed. It blocks until ctx ends or p refuses or fails a command, and returns the reason, which is
// ErrNotHeld once p is closed. p may still be usable after another error, such as a full queue or a refused append;
// calling Consume again continues from the position. Errors of the source are logged and the source is followed again.
// There must be at most one Consume for each pair of p and source.
func Consume[S State](ctx context.Context, p *Partition[S], r Reaction[S]) error {
	key := sourceKey{r.Source.Plane(), r.Source.Partition()}
	interest := make(map[string]struct{}, len(r.Interest))
	for _, t := range r.Interest {
		interest[t] = struct{}{}
	}
	begin, after, err := p.firstToConsume(ctx, key)
	if err != nil {
		return err
	}

	// following ends with ctx, and with the first consumption that fails, which is its cause.
	following, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var window []*command[S]
	pacer := framelog.NewPacer()
	sinceQueued, foreign := 0, 0 // frames since the last consumption, and those of them with events of the plane
	consumed := p.consumed.Of(key)
	consumed.Receive(begin.WalSeq, nil) // nil: nothing has to complete first
	for {
		err = r.Source.Follow(following, begin, func(end framelog.End, lines []Line) error {
			if following.Err() != nil {
				return following.Err()
			}

			// Pass over frames without relevant events, except that the loop gets a position now and then.
			in := p.parseSourceFrame(r, interest, key, end, lines)
			sinceQueued++
			foreign += in.foreign
			if len(in.events) == 0 && sinceQueued < wakeInterval {
				begin = end
				consumed.Receive(end.WalSeq, nil)
				return nil
			}

			// Queue the consumption. It is received before its effects can be read, since their readers ask for the
			// position (AwaitConsumed).
			in.previousEnd, in.afterSeq, in.foreign, in.fail = begin, after, foreign, fail
			sinceQueued, foreign = 0, 0
			c := &command[S]{method: consumeMethod, consume: in, done: make(chan struct{})}
			consumed.Receive(end.WalSeq, c.done)
			if err := p.enqueue(c); err != nil {
				close(c.done) // the loop does not have c; AwaitConsumed must not wait for it
				fail(err)
				return err
			}
			after, begin = end.Seq, end
			pacer.Reset()

			// Wait while too many are queued.
			if window = append(window, c); len(window) < consumeWindow {
				return nil
			}
			select {
			case <-window[0].done:
				window = append(window[:0], window[1:]...)
				return nil
			case <-following.Done():
				return following.Err()
			}
		})

		// Follow the source again if it failed. Otherwise p or a consumption did.
		if following.Err() == nil && !p.ended() {
			p.cfg.Logger.Info("journal: following a source again", zap.String("source", key.plane),
				zap.Int("source_partition", key.partition), zap.Uint64("after", begin.Seq), zap.Error(err))
			if pacer.Wait(following) == nil {
				continue
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case p.ended():
			return ErrNotHeld
		}
		return context.Cause(following)
	}
}

// firstToConsume returns the end behind which to follow a source, and the sequence number of the frame that the first
// consumption follows: the last frame that is consumed completely, or the one before the frame that is not. It blocks
// until the position that it read is durable, or ctx ends: a position that is lost by a reload must not be continued
// from.
func (p *Partition[S]) firstToConsume(ctx context.Context, key sourceKey) (begin framelog.End, after uint64,
	err error,
) {
	for {
		p.mu.RLock()
		begin, after = framelog.End{}, 0
		if pos, ok := p.core.positions[key]; ok {
			begin, after = pos.consumed, pos.seq
			if pos.line > 0 {
				after = pos.seq - 1
			}
		}
		result := p.uncommitted
		p.mu.RUnlock()
		if result == nil {
			return begin, after, nil
		}
		select {
		case <-result.Done():
			if !result.Lost() {
				return begin, after, nil
			}
			if p.ended() {
				return begin, 0, ErrNotHeld
			}
		case <-ctx.Done():
			return begin, 0, ctx.Err()
		}
	}
}

// ended reports whether p is closed, or about to be, or has failed.
func (p *Partition[S]) ended() bool { return p.closing.Load() || p.failed.Load() != nil }

// parseSourceFrame returns the consumption of one frame with its relevant events, which it parses outside the loop. The
// caller sets what depends on the frames before. A line that cannot be read is logged and skipped, since waiting does
// not make it readable.
func (p *Partition[S]) parseSourceFrame(r Reaction[S], interest map[string]struct{}, key sourceKey, end framelog.End,
	lines []Line,
) *consumption[S] {
	in := &consumption[S]{key: key, end: end, react: r.React}
	for i, line := range lines {
		eventType, _ := line.Type()
		if Internal(eventType) {
			continue
		}
		in.foreign = 1
		if _, interested := interest[eventType]; !interested && len(interest) > 0 {
			continue
		}
		ev, err := line.Read(r.Registry)
		if err == nil {
			if r.Matters == nil || r.Matters(ev) {
				in.events = append(in.events, sourceEvent{i, ev})
			}
			continue
		}
		p.cfg.Logger.Error("journal: a source's event cannot be read and is skipped", zap.String("source", key.plane),
			zap.Uint64("sequence", end.Seq), zap.Int("line", i), zap.Error(err))
	}
	return in
}

// executeConsume executes one consumption. Each event sees the effects of the one before; all effects and the
// position are put into one frame. If they do not fit, or the state refuses an effect, the consumption is split
// between two events: the position then includes the line, and the consumption is queued again for the rest. A
// consumption whose predecessor or previous part was lost changes nothing, so that the position passes no event.
func (p *Partition[S]) executeConsume(c *command[S]) {
	in := c.consume
	// The map of positions is read by Consume in other goroutines.
	p.mu.Lock()
	pos := p.core.position(in.key)
	p.mu.Unlock()

	// Determine where to begin: it may be consumed already, completely or up to a line.
	start := 0
	switch {
	case in.end.Seq < pos.seq || in.end.Seq == pos.seq && pos.line == 0:
		p.finishWithoutEvents(c)
		return
	case !in.follows(pos):
		c.err = errPassedOver
		p.finishWithoutEvents(c)
		return
	case in.end.Seq == pos.seq:
		start = pos.line
	}

	f := p.frameFor(0, 1) // the size of the first effect is not known yet
	base := len(f.Body)
	// finish writes the position behind the source's frame, and completes c with f.
	finish := func() {
		p.writePosition(c, f, in.key, in.end, in.end.Seq, wholeFrame)
		p.writePositions(c, f)
		f.cmds = append(f.cmds, c)
		c.stored, c.seq = true, p.core.applied
	}
	// split writes the position before a line of the source's frame, and queues c again for that line and the rest.
	split := func(line int) {
		p.writePosition(c, f, in.key, in.previousEnd, in.end.Seq, line)
		p.writePositions(c, f)
		in.afterSeq, in.afterLine = in.end.Seq, line
		c.reset()
		p.requeue(c)
	}
	// suspend ends before a line whose event has to wait until the state was loaded again.
	suspend := func(line int) {
		if len(f.Body) > base {
			split(line)
			return
		}
		p.dropEmpty(f)
		p.runAgainAfterReload(c)
	}

	for _, h := range in.events {
		if h.line < start {
			continue
		}
		events, body := p.reaction(c, h)
		if p.loop.unreadable {
			suspend(h.line)
			return
		}
		if len(events) == 0 {
			continue
		}

		// The effects of another plane's event may use the reserve. If they cannot be stored, those of the events
		// before it are, and the position does not pass this event.
		used := len(f.Body) - base
		refused := p.admit(len(body), mayUseReserve)
		switch {
		case used > 0 && (refused != nil || used+len(body) > p.cfg.MaxFrame):
			split(h.line)
			return
		case refused != nil:
			c.err = refused
			p.dropEmpty(f)
			p.probeRoom()
			p.finishWithoutEvents(c)
			return
		}

		err := p.commit(c, f, events, body)
		switch {
		case err != nil && p.loop.unreadable:
			suspend(h.line)
			return
		case err != nil:
			// The effects before this event are applied and need their position;
			// the event that broke the state is skipped.
			split(h.line + 1)
			return
		}
	}

	effects := len(f.Body) > base
	if !effects {
		// There is nothing to write except, occasionally, the position. In memory
		// it advances at once; after a restart these frames are read again.
		p.mu.Lock()
		pos.consumed, pos.seq, pos.line = in.end, in.end.Seq, wholeFrame
		p.mu.Unlock()
		pos.framesSinceWrite += in.foreign
		pos.needsWrite = pos.needsWrite || len(in.events) > 0
	}
	if effects || pos.framesSinceWrite >= positionWriteInterval {
		finish()
		return
	}
	p.dropEmpty(f)
	p.finishWithoutEvents(c)
}

// requeue makes c the next command that the loop executes.
func (p *Partition[S]) requeue(c *command[S]) {
	l := &p.loop
	l.backlog = append([]*command[S]{c}, l.backlog[l.next:]...)
	l.next = 0
}

// reaction runs the rule for one event, and returns its events and their lines, which are valid until the next use of
// loop.scratch. It returns no events if the rule returns none or refuses, which it logs, and also if evicted owners
// cannot be read, which the caller must look up in loop.unreadable.
func (p *Partition[S]) reaction(c *command[S], h sourceEvent) ([]*Event, []byte) {
	now := micros(p.cfg.Now())
	c.actor = Actor{Namespace: h.ev.Namespace, Principal: "quartet", Role: "service"}
	c.agentID = h.ev.AgentID
	c.decide = func(s S, env Env) ([]*Event, error) { return c.consume.react(s, env, h.ev) }
	var span trace.Span
	c.traceparent = ""
	if p.cfg.Tracer.On() && h.ev.Traceparent != "" {
		span, c.traceparent = reactionSpan(p.cfg.Tracer, p.cfg.Plane, h.ev)
	}

	events, err := p.decide(c, Env{Now: now, Actor: c.actor, NewID: p.cfg.NewID, Traceparent: c.traceparent})
	if err == nil && len(events) > 0 {
		err = p.stamp(c, events, now)
	}
	var body []byte
	if err == nil && len(events) > 0 {
		body, err = p.encode(p.loop.scratch[:0], events)
	}
	if err != nil && p.loop.unreadable {
		return nil, nil
	}
	if err != nil {
		p.cfg.Logger.With(tracing.FieldsOf(h.ev.Traceparent)...).
			Warn("journal: a source's event is refused and skipped", zap.String("source", c.consume.key.plane),
				zap.String("event_type", h.ev.Type), zap.String("event_id", h.ev.ID), zap.Error(err))
		return nil, nil
	}

	// A reaction that produces no events records no span.
	if body != nil {
		p.loop.scratch = body[:0]
		if span != nil {
			span.End()
		}
	}
	return events, body
}

// writePositions adds the positions of all sources whose last events led to nothing to f, a frame that changes the
// state. Without them, a restart would process these events again, with a state that is newer than they are: an
// operator's message would end a wait that was made after it (SPEC P6).
func (p *Partition[S]) writePositions(c *command[S], f *pending[S]) {
	for _, key := range slices.SortedFunc(maps.Keys(p.core.positions), sourceKey.compare) {
		if pos := p.core.positions[key]; pos.needsWrite {
			p.writePosition(c, f, key, pos.consumed, pos.seq, wholeFrame)
		}
	}
}

// writePosition adds a source_consumed event to f. line is the number of lines of the frame at seq that were consumed,
// wholeFrame for all; consumed is the end of the last frame that was consumed completely.
func (p *Partition[S]) writePosition(c *command[S], f *pending[S], key sourceKey, consumed framelog.End, seq uint64,
	line int,
) {
	ev := &Event{
		WalSeq: p.core.applied + 1, ID: p.cfg.NewID("evt_"), Type: TypeSourceConsumed, Plane: p.cfg.Plane,
		Principal: "quartet", Role: "service", Payload: event.Consumed(key.plane, key.partition, consumed.String(), seq,
			line), CreatedAt: micros(p.cfg.Now()),
	}
	// Neither can fail, since the payload is a Struct of this package.
	body, err := event.AppendLine(p.loop.scratch[:0], ev)
	if err == nil {
		p.loop.scratch = body[:0]
		err = p.commit(c, f, []*Event{ev}, body)
	}
	if err != nil {
		p.cfg.Logger.Error("journal: position not written", zap.Error(err))
	}
}

// dropEmpty removes a frame that frameFor opened if nothing was added to it.
func (p *Partition[S]) dropEmpty(f *pending[S]) {
	l := &p.loop
	if k := len(l.frames); k > 0 && l.frames[k-1] == f && len(f.events) == 0 && len(f.cmds) == 0 {
		l.frames = l.frames[:k-1]
		l.spare = f.Body
	}
}
