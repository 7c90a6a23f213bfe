package journal

import (
	"context"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"quartet/pkg/tracing"
)

// Source is another partition's journal. Follow calls fn for each frame from
// fromSeq on, in order, each once; it ends with ctx or an error of fn, and may
// end with trouble, after which it is called again. lines must not be changed.
type Source interface {
	Plane() string
	Partition() int
	Follow(ctx context.Context, fromSeq uint64, fn func(seq uint64, lines []Line) error) error
	// End is the sequence that the next frame will be at or after.
	End(ctx context.Context) (uint64, error)
}

type logSource struct {
	plane     string
	partition int
	log       Log
}

// NewSource makes a Source of a log.
func NewSource(plane string, partition int, log Log) Source {
	return logSource{plane, partition, log}
}

func (s logSource) Plane() string  { return s.plane }
func (s logSource) Partition() int { return s.partition }

func (s logSource) End(ctx context.Context) (uint64, error) {
	_, seq, err := s.log.Tail(ctx)
	return seq + 1, err
}

func (s logSource) Follow(ctx context.Context, from uint64, fn func(uint64, []Line) error) error {
	return s.log.Follow(ctx, from, func(seq uint64, f Frame) error { return fn(seq, textLines(f.Body)) })
}

// Reaction is what a partition does about another one's events.
type Reaction[S State] struct {
	Source   Source
	Registry *Registry // of the source's events
	Interest []string  // event types, none for all; others are not even parsed
	// Matters, if set, says of an event of interest whether React would do
	// anything about it, whatever the state: what it refuses costs the
	// partition's loop nothing.
	Matters func(ev *Event) bool
	// React gives the events that follow from ev: pure, in the loop, env.Now
	// the time of hearing. A refusal is final: it is logged and passed. An
	// event that led to nothing may be seen again after a restart, by the same
	// state: whatever changes the state writes down what was heard before it.
	React func(s S, env Env, ev *Event) ([]*Event, error)
}

const (
	// consumeWindow frames are on their way at once: a frame every fsync of
	// the source is matched although this side's fsync takes as long.
	consumeWindow = 16
	// markEvery frames without effect the position is written down. Frames of
	// nothing but journal-level events do not count: two planes that consume
	// each other would answer each mark with a mark.
	positionWriteInterval = 1000
	// passEvery frames without anything to react to the loop hears how far it
	// is. Waking it for each would make a plane that follows a busy one busy.
	wakeInterval  = 64
	consumeMethod = "consume"
)

// consumption is one frame of a source on its way through the loop.
type consumption[S State] struct {
	key     sourceKey
	seq     uint64
	events  []sourceEvent
	foreign int // frames up to this one with events of the plane, of interest or not
	react   func(s S, env Env, ev *Event) ([]*Event, error)
}

type sourceEvent struct {
	line int
	ev   *Event
}

// Consume applies the source's events to p, each exactly once: the position is
// written in the same frame as the effect (source_consumed). It runs until ctx
// ends or p is closed, and returns why. One Consume for each pair of p and source.
func Consume[S State](ctx context.Context, p *Partition[S], r Reaction[S]) error {
	key := sourceKey{r.Source.Plane(), r.Source.Partition()}
	interest := make(map[string]struct{}, len(r.Interest))
	for _, t := range r.Interest {
		interest[t] = struct{}{}
	}
	p.mu.RLock()
	next := uint64(1)
	if pos, ok := p.core.positions[key]; ok {
		if next = pos.seq + 1; pos.line > 0 {
			next = pos.seq
		}
	}
	p.mu.RUnlock()
	var window []*command[S]
	pacer := newPacer()
	passed, foreign := 0, 0
	for {
		var stop error // the partition's, not the source's
		err := r.Source.Follow(ctx, next, func(seq uint64, lines []Line) error {
			if seq < next {
				return nil
			}
			in := p.parseSourceFrame(r, interest, key, seq, lines)
			passed++
			foreign += in.foreign
			if len(in.events) == 0 && passed < wakeInterval {
				next = seq + 1
				return nil
			}
			in.foreign = foreign
			passed, foreign = 0, 0
			c := &command[S]{method: consumeMethod, consume: in, done: make(chan struct{})}
			if stop = p.enqueue(c); stop != nil {
				return stop
			}
			next = seq + 1
			pacer.Reset()
			if window = append(window, c); len(window) < consumeWindow {
				return nil
			}
			select {
			case <-window[0].done:
				stop = window[0].err
				window = append(window[:0], window[1:]...)
				return stop
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if p.closing.Load() || p.failed.Load() != nil {
			return ErrNotHeld
		}
		if stop != nil {
			return stop
		}
		p.cfg.Logger.Info("journal: following a source again", zap.String("source", key.plane), zap.Int("source_partition", key.partition), zap.Uint64("from", next), zap.Error(err))
		if pacer.Wait(ctx) != nil {
			return ctx.Err()
		}
	}
}

// hear parses what is of interest, outside the loop. A line that cannot be
// read is logged and passed: it would not become readable by waiting.
func (p *Partition[S]) parseSourceFrame(r Reaction[S], interest map[string]struct{}, key sourceKey, seq uint64, lines []Line) *consumption[S] {
	in := &consumption[S]{key: key, seq: seq, react: r.React}
	for i, line := range lines {
		t, _ := line.Type()
		if !Internal(t) {
			in.foreign = 1
		}
		if _, ok := interest[t]; !ok && len(interest) > 0 || Internal(t) {
			continue
		}
		ev, err := line.Read(r.Registry)
		if err == nil {
			if r.Matters == nil || r.Matters(ev) {
				in.events = append(in.events, sourceEvent{i, ev})
			}
			continue
		}
		p.cfg.Logger.Error("journal: a source's event cannot be read and is passed", zap.String("source", key.plane), zap.Uint64("sequence", seq), zap.Int("line", i), zap.Error(err))
	}
	return in
}

// executeConsume runs one source frame. Each event sees the effects of the one
// before; all of them and the position go into one frame. What does not fit is
// cut between two events, and the position then names the line.
func (p *Partition[S]) executeConsume(c *command[S]) {
	in := c.consume
	// Another source's Consume may be looking for its position right now.
	p.mu.Lock()
	pos := p.core.position(in.key)
	p.mu.Unlock()
	start := 0
	if in.seq < pos.seq || in.seq == pos.seq && pos.line == 0 {
		p.finishWithoutEvents(c)
		return
	}
	if in.seq == pos.seq {
		start = pos.line
	}
	f := p.frameFor(0, 1)
	base := len(f.Body)
	mark := func(line int) {
		p.writePosition(c, f, in.key, in.seq, line)
		p.writePositions(c, f)
		f.cmds = append(f.cmds, c)
		c.stored, c.seq = true, p.core.applied
	}
	for _, h := range in.events {
		if h.line < start {
			continue
		}
		events, body := p.reaction(c, h)
		if len(events) == 0 {
			continue
		}
		if used := len(f.Body) - base; used > 0 && used+len(body) > p.cfg.MaxFrame {
			mark(h.line)
			rest := &command[S]{method: consumeMethod, consume: in, done: make(chan struct{})}
			l := &p.loop
			l.backlog = append([]*command[S]{rest}, l.backlog[l.next:]...)
			l.next = 0
			return
		}
		if err := p.commit(c, f, events, body); err != nil {
			// What was heard before is applied and must carry its position;
			// the event that broke the state is passed.
			mark(h.line + 1)
			return
		}
	}
	effects := len(f.Body) > base
	if !effects {
		// Nothing to write but, now and then, the position: in memory it moves
		// at once, and after a restart these frames are read again.
		pos.seq, pos.line = in.seq, 0
		pos.framesSinceWrite += in.foreign
		pos.needsWrite = pos.needsWrite || len(in.events) > 0
	}
	if effects || pos.framesSinceWrite >= positionWriteInterval {
		mark(0)
		return
	}
	p.dropEmpty(f)
	p.finishWithoutEvents(c)
}

// reaction asks the rule and encodes what it says. Every refusal ends here.
func (p *Partition[S]) reaction(c *command[S], h sourceEvent) ([]*Event, []byte) {
	now := micros(p.cfg.Now())
	c.actor = Actor{Namespace: h.ev.Namespace, Principal: "quartet", Role: "service"}
	c.agentID = h.ev.AgentID
	c.decide = func(s S, env Env) ([]*Event, error) { return c.consume.react(s, env, h.ev) }
	var span trace.Span
	if c.traceparent = ""; p.cfg.Tracer.On() && h.ev.Traceparent != "" {
		span = p.startReactionSpan(c, h.ev)
	}
	events, err := p.decide(c, Env{Now: now, Actor: c.actor, NewID: p.cfg.NewID, Traceparent: c.traceparent})
	if err == nil && len(events) > 0 {
		err = p.stamp(c, events, now)
	}
	var body []byte
	if err == nil && len(events) > 0 {
		body, err = p.encode(p.loop.scratch[:0], events)
	}
	if err != nil {
		p.cfg.Logger.With(tracing.FieldsOf(h.ev.Traceparent)...).Warn("journal: a source's event is refused and passed", zap.String("source", c.consume.key.plane),
			zap.String("event_type", h.ev.Type), zap.String("event_id", h.ev.ID), zap.Error(err))
		return nil, nil
	}
	if body != nil {
		p.loop.scratch = body[:0]
		if span != nil {
			span.End()
		}
	}
	return events, body
}

// markHeard writes into a frame that changes the state how far the sources were
// heard whose events led to nothing. Without it they would be heard again after a
// restart, in a state that came later: an operator's message would end a wait that
// was made after it (SPEC P6).
func (p *Partition[S]) writePositions(c *command[S], f *pending[S]) {
	for key, pos := range p.core.positions {
		if pos.needsWrite {
			p.writePosition(c, f, key, pos.seq, 0)
		}
	}
}

// mark writes a source_consumed into f.
func (p *Partition[S]) writePosition(c *command[S], f *pending[S], key sourceKey, seq uint64, line int) {
	ev := &Event{
		WalSeq: p.core.applied + 1, ID: p.cfg.NewID("evt_"), Type: TypeSourceConsumed, Plane: p.cfg.Plane,
		Principal: "quartet", Role: "service", Payload: consumedEvent(key, seq, line), CreatedAt: micros(p.cfg.Now()),
	}
	// The payload is a Struct of this package: neither can fail.
	body, err := appendLine(p.loop.scratch[:0], ev)
	if err == nil {
		p.loop.scratch = body[:0]
		err = p.commit(c, f, []*Event{ev}, body)
	}
	if err != nil {
		p.cfg.Logger.Error("journal: position not written", zap.Error(err))
	}
}

// dropEmpty takes back a frame that frameFor opened and nobody used.
func (p *Partition[S]) dropEmpty(f *pending[S]) {
	l := &p.loop
	if k := len(l.frames); k > 0 && l.frames[k-1] == f && len(f.events) == 0 && len(f.cmds) == 0 {
		l.frames = l.frames[:k-1]
		l.spare = f.Body
	}
}
