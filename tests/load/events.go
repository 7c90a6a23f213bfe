package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	eventv1 "quartet/pkg/pb/quartet/event/v1"
)

// Watcher follows all events from the first one on and keeps those that it received. After
// an error it continues at its cursor.
type Watcher struct {
	events eventv1.EventServiceClient
	Seen   []*eventv1.Event
	cursor string
}

// NewWatcher returns a watcher that has received nothing yet.
func NewWatcher(conn grpc.ClientConnInterface) *Watcher {
	return &Watcher{events: eventv1.NewEventServiceClient(conn)}
}

// Run follows until ctx ends, and then returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	_, err := Again(ctx, func(context.Context) (struct{}, error) { return struct{}{}, w.once(ctx, false) })
	return unlessOver(ctx, err)
}

// unlessOver returns err, or nil if ctx has ended.
func unlessOver(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// CatchUp receives the events up to the last one that exists when it is called.
func (w *Watcher) CatchUp(ctx context.Context) error {
	_, err := Again(ctx, func(context.Context) (struct{}, error) { return struct{}{}, w.once(ctx, true) })
	return err
}

func (w *Watcher) once(ctx context.Context, stopAtEnd bool) error {
	stream, err := w.events.WatchEvents(ctx, &eventv1.WatchEventsRequest{
		Cursor: w.cursor, FromStart: w.cursor == "",
		StopAtEnd: stopAtEnd,
	})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if stopAtEnd {
				return nil
			}
			return status.Error(codes.Unavailable, "the stream ended")
		}
		if err != nil {
			return err
		}
		if e := m.GetEvent(); e != nil {
			w.cursor = e.GetCursor()
			w.Seen = append(w.Seen, e)
		}
	}
}

// Audit checks that the events that live received are those of the journals: each once, in
// order, without a gap; and that the journals include what the drivers recorded. It makes
// live catch up before. Of each agent in each plane, live may still lack up to 200 of the
// last events.
func Audit(ctx context.Context, conn grpc.ClientConnInterface, live *Watcher, drivers []*Driver) error {
	afresh := NewWatcher(conn)
	if err := errors.Join(afresh.CatchUp(ctx), live.CatchUp(ctx)); err != nil {
		return err
	}
	// The live watcher read on while the other had stopped, or the other way
	// round: compare per plane and agent, which are in one partition, up to the
	// shorter one.
	seen, kept := byOwner(live.Seen), byOwner(afresh.Seen)
	for plane, want := range kept {
		got := seen[plane]
		for i := range min(len(got), len(want)) {
			if got[i].GetEventId() != want[i].GetEventId() {
				return fmt.Errorf("plane %s: the live watcher saw %s (%d) where the journal has %s (%d)", plane,
					got[i].GetEventId(), got[i].GetWalSeq(), want[i].GetEventId(), want[i].GetWalSeq())
			}
		}
		if d := len(got) - len(want); d < -200 {
			return fmt.Errorf("plane %s: the live watcher saw %d events of %d", plane, len(got), len(want))
		}
		if !slices.IsSortedFunc(want, func(a, b *eventv1.Event) int { return int(a.GetWalSeq() - b.GetWalSeq()) }) {
			return fmt.Errorf("plane %s: events are out of order", plane)
		}
	}
	ids := map[string]int{}
	requests := map[string]int{}
	messages := map[string]int{}
	created := map[string]int{}
	revisions := map[string]int{}
	for _, e := range afresh.Seen {
		if ids[e.GetEventId()]++; ids[e.GetEventId()] > 1 {
			return fmt.Errorf("event %s stands twice", e.GetEventId())
		}
		switch e.GetEventType() {
		case "work_item_created", "work_item_updated", "work_item_completed":
			requests[e.GetRequestId()]++
			it := e.GetPayload().GetFields()["work_item"].GetStructValue().GetFields()
			revisions[fmt.Sprintf("%s@%v", e.GetWorkItemId(), it["revision"].GetNumberValue())]++
			if e.GetEventType() == "work_item_created" {
				created[e.GetAgentId()]++
			}
		case "message_queued":
			m := e.GetPayload().GetFields()["message"].GetStructValue().GetFields()
			messages[m["message_id"].GetStringValue()]++
			requests[e.GetRequestId()]++
		}
	}
	for at, n := range revisions {
		if n != 1 {
			return fmt.Errorf("item revision %s was written %d times", at, n)
		}
	}
	for _, d := range drivers {
		if err := d.audit(requests, messages, created, revisions); err != nil {
			return fmt.Errorf("agent %s: %w", d.AgentID, err)
		}
	}
	return nil
}

func (d *Driver) audit(requests, messages, created, revisions map[string]int) error {
	for _, id := range d.messages {
		if messages[id] != 1 {
			return fmt.Errorf("message %s was queued %d times", id, messages[id])
		}
	}
	if n := created[d.AgentID]; n < len(d.items) || n > len(d.items)+d.spare {
		return fmt.Errorf("%d items stand in the journal; %d were answered, %d have an unknown outcome", n,
			len(d.items), d.spare)
	}
	for _, it := range d.items {
		for rev := int64(1); rev <= it.revision; rev++ {
			if revisions[fmt.Sprintf("%s@%d", it.id, rev)] != 1 {
				return fmt.Errorf("revision %d of item %s is missing", rev, it.id)
			}
		}
	}
	if d.OwnIDs {
		for i := 1; i <= d.n; i++ {
			if n := requests[fmt.Sprintf("%s-%d", d.AgentID, i)]; n > 1 {
				return fmt.Errorf("request %d took effect %d times", i, n)
			}
		}
	}
	return nil
}

func byOwner(events []*eventv1.Event) map[string][]*eventv1.Event {
	out := map[string][]*eventv1.Event{}
	for _, e := range events {
		k := e.GetPlane() + " of " + e.GetAgentId()
		out[k] = append(out[k], e)
	}
	return out
}
