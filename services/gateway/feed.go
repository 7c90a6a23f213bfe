package gateway

import (
	"bytes"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/bus"
	"quartet/pkg/journal"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/pbjson"
)

// feed reads one partition's journal for a stream.
type feed struct {
	src   journal.Source
	track int          // the index of its plane in watch.at
	part  int          // the index of the partition in that track
	from  position     // where the stream begins
	after framelog.End // behind the frame that from names
	last  uint64       // sequence number of the last frame that existed when the stream was opened
	past  chan batch   // the frames up to last
}

// batch holds the events of one frame that a stream sends.
type batch struct {
	feed *feed
	end  framelog.End // behind the frame
	at   time.Time    // of the first hit; zero without one
	hits []hit        // in the order of their lines
	last bool         // no later frame existed when the stream was opened
	// removed says that the batch stands for frames that were removed. It does not move cursors.
	removed bool
	sent    func() // gives back what is held for the hits; nil: nothing is
}

// hit is an event that passed the filter.
type hit struct {
	line    uint64 // its line in the frame, from 0
	event   *eventv1.Event
	payload []byte // of the event, as JSON, if the sink takes it so; then the event has none
}

// follow sends a batch for every frame, also for those without hits, which advance the cursor: frames up to f.last to
// f.past, later ones to live. It blocks while nobody receives. It returns when ctx ends, if the journal is damaged,
// which ends the stream, and, if w.stop is set, after the frames up to f.last.
//
// Reading a journal takes memory. So when a later frame cannot be sent within sendTime, follow stops reading until
// it can be, and then waits for a place among the streams that read (see events.turn).
func (f *feed) follow(ctx context.Context, w *watch, live chan<- batch) {
	r := &reading{feed: f, watch: w, live: live, read: f.after, kept: f.after, caughtUp: func() {}}
	for r.readOn(ctx) {
		if !r.unblock(ctx) {
			return
		}
	}
}

// sendTime is how long follow goes on to read while a batch cannot be sent.
const sendTime = time.Second

// reading is the state of follow.
type reading struct {
	*feed
	*watch
	live chan<- batch
	read framelog.End // behind the last frame that was sent
	kept framelog.End // behind the last of them that was not removed

	// If readOn stopped because something blocks, it is one of these: the bytes that must be held for the next frame,
	// or the batch that nobody receives.
	needs   int64
	blocked *batch
	held    func() // gives back what is held for the next frame; nil: nothing is

	end      uint64 // sequence number of the journal's last frame when reading began again
	caughtUp func() // gives back the place of events.turn, when the frames up to end are read
}

// readOn reads frames and sends them until something blocks, and then returns true. It returns false when there is
// nothing more to do.
func (r *reading) readOn(ctx context.Context) bool {
	defer func() { r.caughtUp() }()
	damage := follower.Read(ctx, r.src, r.read, r.events.log, func(at framelog.End, lines []journal.Line) error {
		if r.stop && at.Seq > r.last {
			return follower.Stop
		}
		if at.Seq >= r.end {
			r.caughtUp()
		}
		b := batch{feed: r.feed, end: at, last: at.Seq >= r.last, removed: len(lines) == 0 && at.WalSeq > r.read.WalSeq}
		if at.Seq > r.last { // few streams read what is before
			if !r.hold(ctx, &b, lines) {
				return follower.Stop
			}
		}
		// Each frame is read for each stream of the namespace.
		turn := r.events.admission.Step(ctx, r.filter.namespace)
		b.hits = r.hits(r.watch, r.kept, at, lines)
		if turn.Leave(); len(b.hits) > 0 {
			b.at = b.hits[0].event.GetCreatedAt().AsTime()
		} else {
			b.received()
		}
		if at.Seq <= r.last {
			select {
			case r.past <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
		} else if !r.send(ctx, b) {
			return follower.Stop
		}
		r.passed(b)
		if r.stop && b.last {
			return follower.Stop
		}
		return nil
	})
	if damage != nil {
		r.cancel(damaged(damage))
		return false
	}
	return ctx.Err() == nil && (r.needs > 0 || r.blocked != nil)
}

// hold holds the bytes of a frame for its batch, and returns false if there is no room.
func (r *reading) hold(ctx context.Context, b *batch, lines []journal.Line) bool {
	if r.held != nil { // since unblock
		b.sent, r.held = r.held, nil
		return true
	}
	bytes := int64(0)
	for _, line := range lines {
		if r.filter.wantsLine(line.Type()) {
			bytes += int64(len(line.Text))
		}
	}
	if bytes == 0 {
		return true
	}
	var ok bool
	if b.sent, ok = r.share.Try(ctx, r.cancel, bytes); !ok {
		r.needs = bytes
	}
	return ok
}

// send sends a batch to live, and returns false if nobody receives it for sendTime.
func (r *reading) send(ctx context.Context, b batch) bool {
	select {
	case r.live <- b:
		return true
	default:
	}
	late := time.NewTimer(sendTime)
	defer late.Stop()
	select {
	case r.live <- b:
		return true
	case <-late.C:
		r.blocked = &b
	case <-ctx.Done():
	}
	return false
}

// unblock waits until the blocked batch is sent, or the needed bytes are held. If the journal then has unread frames,
// it also waits for a place among the streams that read (see events.turn). It returns false when ctx ends.
func (r *reading) unblock(ctx context.Context) bool {
	if r.blocked != nil {
		select {
		case r.live <- *r.blocked:
		case <-ctx.Done():
			return false
		}
		r.passed(*r.blocked)
		r.blocked = nil
	}
	if r.needs > 0 {
		var err error
		if r.held, err = r.share.Wait(ctx, r.cancel, r.needs); err != nil {
			return false
		}
		r.needs = 0
	}
	end, err := r.src.End(ctx)
	if r.end = end.Seq; err != nil || r.end <= r.read.Seq {
		return ctx.Err() == nil
	}
	done, err := r.events.turn(ctx, r.caller)
	if err != nil {
		return false
	}
	r.caughtUp = sync.OnceFunc(done)
	return true
}

// passed records that a batch was sent.
func (r *reading) passed(b batch) {
	if r.read = b.end; !b.removed {
		r.kept = b.end
	}
}

// received gives back what is held for the hits of a batch. It is called once they were sent, or if there are none.
func (b *batch) received() {
	if b.sent != nil {
		b.sent()
	}
}

// hits returns the events of a frame's lines that the filter accepts and that are not before
// f.from. before and at are the ends of the log around the frame. A line that cannot be read is logged and skipped.
func (f *feed) hits(w *watch, before, at framelog.End, lines []journal.Line) []hit {
	var hits []hit
	for i, line := range lines {
		if before.Seq == f.from.seq && uint64(i) < f.from.line { // sent before
			continue
		}
		if !w.filter.wantsLine(line.Type()) {
			continue
		}
		raw, err := journal.ParseLine(line.Text)
		if err == nil && !w.filter.wants(raw) {
			continue
		}
		h := hit{line: uint64(i)}
		if err == nil {
			h.event, h.payload, err = eventOf(raw, w.json)
		}
		if err != nil {
			w.events.log.Error("gateway: an event cannot be read and is passed over",
				zap.String("plane", f.src.Plane()),
				zap.Int("partition", f.src.Partition()), zap.Uint64("sequence", at.Seq), zap.Int("line", i),
				zap.Error(err))
			continue
		}
		hits = append(hits, h)
	}
	return hits
}

// eventOf returns an event as clients get it, without its cursor. Its payload is in the event, or beside it if it is
// wanted as JSON.
func eventOf(raw *journal.RawEvent, asJSON bool) (*eventv1.Event, []byte, error) {
	var payload *structpb.Struct
	text := bus.Conceal(raw.Plane, raw.Payload)
	switch {
	case !asJSON:
		payload = &structpb.Struct{}
		if len(text) > 0 {
			if err := pbjson.Unmarshal(text, payload); err != nil {
				return nil, nil, err
			}
		}
	case len(text) == 0:
		text = []byte("{}")
	case text[0] != '{':
		return nil, nil, errors.New("its payload is no object")
	default:
		text = bytes.Clone(text) // the line is valid during the call only
	}
	if !asJSON {
		text = nil
	}
	return &eventv1.Event{
		EventId: raw.ID, EventType: raw.Type, WalSeq: int64(raw.WalSeq & math.MaxInt64), Namespace: raw.Namespace,
		Plane:   raw.Plane,
		AgentId: raw.AgentID, SessionId: raw.SessionID, TaskId: raw.TaskID, StepId: raw.StepID,
		WorkItemId:   raw.WorkItemID,
		ActorAgentId: raw.ActorAgentID, ActorRunId: raw.ActorRunID, ActorKeyId: raw.ActorKeyID,
		Principal: raw.Principal, RequestId: raw.RequestID,
		Payload: payload, CreatedAt: timestamppb.New(raw.CreatedAt),
		ReadinessFrom: raw.ReadinessFrom, ReadinessTo: raw.ReadinessTo, ReadinessReason: raw.ReadinessReason,
		Traceparent: raw.Traceparent,
	}, text, nil
}
