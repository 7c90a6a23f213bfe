package gateway

import (
	"context"
	"errors"
	"math"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/retry"
)

// feed is one partition's journal on its way into a stream.
type feed struct {
	src   journal.Source
	track int // where its position stands in the vector
	part  int
	from  position
	end   uint64     // at the call
	past  chan batch // what was there at the call
}

// batch is what a stream makes of one frame.
type batch struct {
	feed *feed
	seq  uint64
	at   time.Time // of the first hit; zero without one
	hits []hit
	last bool // the frames that were there at the call are through
}

type hit struct {
	line  uint64
	event *eventv1.Event
}

var errEnd = errors.New("gateway: the end of the call")

// follow hands over every frame, empty ones too: they move the cursor. It
// blocks while the stream does, and mends what Follow cannot.
func (f *feed) follow(ctx context.Context, w *watch, live chan<- batch) {
	next := f.from.seq
	pacer := retry.New(10*time.Millisecond, time.Second)
	for ctx.Err() == nil {
		err := f.src.Follow(ctx, next, func(seq uint64, lines []journal.Line) error {
			switch {
			case seq < next:
				return nil
			case w.stop && seq >= f.end:
				return errEnd
			}
			b := batch{feed: f, seq: seq, hits: f.hits(w, seq, lines), last: seq+1 >= f.end}
			if len(b.hits) > 0 {
				b.at = b.hits[0].event.GetCreatedAt().AsTime()
			}
			out := live
			if seq < f.end {
				out = f.past
			}
			select {
			case out <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
			next = seq + 1
			pacer.Reset()
			if w.stop && b.last {
				return errEnd
			}
			return nil
		})
		if ctx.Err() != nil || errors.Is(err, errEnd) {
			return
		}
		w.events.log.Info("gateway: following a journal again", zap.String("plane", f.src.Plane()),
			zap.Int("partition", f.src.Partition()), zap.Uint64("from", next), zap.Error(err))
		_ = pacer.Wait(ctx) // the loop checks ctx
	}
}

// hits reads the lines that the stream wants. One that cannot be read is
// logged and passed over: it would not become readable by waiting.
func (f *feed) hits(w *watch, seq uint64, lines []journal.Line) []hit {
	var hits []hit
	for i, line := range lines {
		if seq == f.from.seq && uint64(i) < f.from.line { // sent before
			continue
		}
		if !w.filter.wantsLine(line.Type()) {
			continue
		}
		raw, err := journal.ParseLine(line.Text)
		if err == nil && !w.filter.wants(raw) {
			continue
		}
		var ev *eventv1.Event
		if err == nil {
			ev, err = eventOf(raw)
		}
		if err != nil {
			w.events.log.Error("gateway: an event cannot be read and is passed over", zap.String("plane", f.src.Plane()),
				zap.Int("partition", f.src.Partition()), zap.Uint64("sequence", seq), zap.Int("line", i), zap.Error(err))
			continue
		}
		hits = append(hits, hit{uint64(i), ev})
	}
	return hits
}

func eventOf(raw *journal.RawEvent) (*eventv1.Event, error) {
	payload := &structpb.Struct{}
	if len(raw.Payload) > 0 {
		if err := pbjson.Unmarshal(raw.Payload, payload); err != nil {
			return nil, err
		}
	}
	conceal(payload)
	return &eventv1.Event{
		EventId: raw.ID, EventType: raw.Type, WalSeq: int64(raw.WalSeq & math.MaxInt64), Namespace: raw.Namespace, Plane: raw.Plane,
		AgentId: raw.AgentID, SessionId: raw.SessionID, TaskId: raw.TaskID, StepId: raw.StepID, WorkItemId: raw.WorkItemID,
		ActorAgentId: raw.ActorAgentID, ActorRunId: raw.ActorRunID, Principal: raw.Principal, RequestId: raw.RequestID,
		Payload: payload, CreatedAt: timestamppb.New(raw.CreatedAt),
		ReadinessFrom: raw.ReadinessFrom, ReadinessTo: raw.ReadinessTo, ReadinessReason: raw.ReadinessReason, Traceparent: raw.Traceparent,
	}, nil
}

// conceal drops what records keep and clients are never sent: the hash of a
// trigger's secret, which lies in the trigger inside the payload.
func conceal(payload *structpb.Struct) {
	const hash = "token_hash"
	delete(payload.GetFields(), hash)
	for _, v := range payload.GetFields() {
		if inner := v.GetStructValue(); inner != nil {
			delete(inner.GetFields(), hash)
		}
	}
}
