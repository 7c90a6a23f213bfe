package gateway

import (
	"context"
	"math"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/follower"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/pbjson"
)

// feed reads one partition's journal for a stream.
type feed struct {
	src   journal.Source
	track int        // the index of its plane in watch.at
	part  int        // the index of the partition in that track
	from  position   // where the stream begins
	end   uint64     // the sequence after the last frame that existed when the stream was opened
	past  chan batch // the frames before end
}

// batch holds the events of one frame that a stream sends.
type batch struct {
	feed *feed
	seq  uint64
	at   time.Time // of the first hit; zero without one
	hits []hit     // in the order of their lines
	last bool      // no later frame existed when the stream was opened
}

// hit is an event that passed the filter.
type hit struct {
	line  uint64 // its line in the frame, from 0
	event *eventv1.Event
}

// follow sends a batch for every frame, also for those without hits, which advance the
// cursor: frames before f.end to f.past, later ones to live. It blocks while nobody receives,
// and returns when ctx ends or, for a watch that stops, after the frames before f.end.
func (f *feed) follow(ctx context.Context, w *watch, live chan<- batch) {
	follower.Run(ctx, f.src, f.from.seq, w.events.log, func(seq uint64, lines []journal.Line) error {
		if w.stop && seq >= f.end {
			return follower.Stop
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
		if w.stop && b.last {
			return follower.Stop
		}
		return nil
	})
}

// hits returns the events of a frame's lines that the filter accepts and that are not before
// f.from. A line that cannot be read is logged and skipped.
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

// eventOf returns an event as clients get it, without its cursor.
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

// concealed are the fields of records that clients are never sent: the hash of a trigger's secret
// and its encrypted signing secret.
var concealed = []string{"token_hash", "sealed_signing_secret"}

// conceal removes the concealed fields from a payload and from the records in it, one level below.
func conceal(payload *structpb.Struct) {
	for _, name := range concealed {
		delete(payload.GetFields(), name)
		for _, v := range payload.GetFields() {
			delete(v.GetStructValue().GetFields(), name)
		}
	}
}
