package gateway

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/rpc"
)

// watched are the planes whose journals are shown, in order of their numbers.
var watched = []string{"agent", "work", "task", "waiting"}

const maxEventTypes = 100

var errStopping = fault.NotReady.New("the server stops; go on from the last cursor at another one, or in a moment")

// events is EventService.
type events struct {
	eventv1.UnimplementedEventServiceServer

	sources   func(plane string) ([]journal.Source, error)
	heartbeat time.Duration
	closing   <-chan struct{}
	log       *zap.Logger
}

// sink is where a stream goes. Flush is called when nothing more is at hand.
type sink interface {
	Send(*eventv1.WatchEventsResponse) error
	Flush() error
}

type grpcSink struct {
	grpc.ServerStreamingServer[eventv1.WatchEventsResponse]
}

func (grpcSink) Flush() error { return nil }

// WatchEvents streams the namespace's events (SPEC X10).
func (e *events) WatchEvents(req *eventv1.WatchEventsRequest, out grpc.ServerStreamingServer[eventv1.WatchEventsResponse]) error {
	w, err := e.open(out.Context(), req)
	if err != nil {
		return err
	}
	return w.run(out.Context(), grpcSink{out})
}

// watch is one open stream.
type watch struct {
	events *events
	filter filter
	at     vector // what was sent or passed over
	feeds  []*feed
	stop   bool // at the ends taken at the call
}

// open checks a request and finds where it begins. Everything that can be
// refused is refused here, before the first event.
func (e *events) open(ctx context.Context, req *eventv1.WatchEventsRequest) (*watch, error) {
	f, err := newFilter(rpc.ActorFrom(ctx), req)
	if err != nil {
		return nil, err
	}
	if err := rpc.RequireRole(ctx, rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleRunner, rpc.RoleAgent, rpc.RoleService); err != nil {
		return nil, err
	}
	w := &watch{events: e, filter: f, stop: req.GetStopAtEnd()}
	ends, err := w.findEnds(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case req.GetCursor() != "" && req.GetFromStart():
		return nil, fault.InvalidArgument.New("cursor and from_start exclude each other").WithField("from_start", "must be left out when a cursor is given")
	case req.GetCursor() != "":
		err = w.resume(req.GetCursor(), ends)
	case req.GetFromStart():
		w.at = beginning(ends)
	default:
		w.at = ends.clone()
	}
	if err != nil {
		return nil, err
	}
	for _, fd := range w.feeds {
		fd.from = w.at[fd.track].parts[fd.part]
	}
	return w, nil
}

// findEnds lists the sources, all of them for the cursor's sake, and what each
// holds now. Those of filtered planes are followed.
func (w *watch) findEnds(ctx context.Context) (vector, error) {
	var ends vector
	for _, plane := range watched {
		sources, err := w.events.sources(plane)
		if err != nil {
			return nil, fault.NotReady.New("the journal of plane " + plane + " cannot be read now").WithCause(err)
		}
		if len(sources) == 0 {
			continue
		}
		t := track{plane: planeNumbers[plane], parts: make([]position, len(sources))}
		for i, src := range sources {
			end, err := src.End(ctx)
			if err != nil {
				return nil, fault.NotReady.New("the journal of plane " + plane + " cannot be read now").WithCause(err)
			}
			t.parts[i] = position{seq: end}
			if w.filter.wantsPlane(plane) {
				w.feeds = append(w.feeds, &feed{src: src, track: len(ends), part: i, end: end, index: len(w.feeds)})
			}
		}
		ends = append(ends, t)
	}
	return ends, nil
}

// resume takes the positions of a cursor. A plane that the cursor does not
// know came later than it, so all of that plane's events do.
func (w *watch) resume(text string, ends vector) error {
	v, err := decodeCursor(text)
	if err != nil {
		return err
	}
	w.at = beginning(ends)
	for _, t := range v {
		i := slices.IndexFunc(ends, func(e track) bool { return e.plane == t.plane })
		if i < 0 || len(ends[i].parts) != len(t.parts) {
			return badCursor("is of another partitioning")
		}
		for k, p := range t.parts {
			if end := ends[i].parts[k]; p.seq > end.seq || p.seq == end.seq && p.line > 0 {
				return badCursor("is ahead of the journal, so of another one")
			}
		}
		w.at[i] = t
	}
	return nil
}

func (v vector) clone() vector {
	out := slices.Clone(v)
	for i := range out {
		out[i].parts = slices.Clone(out[i].parts)
	}
	return out
}

func beginning(ends vector) vector {
	v := ends.clone()
	for _, t := range v {
		for i := range t.parts {
			t.parts[i] = position{seq: 1}
		}
	}
	return v
}

// run sends until ctx, the sink or the gateway ends, or everything was sent
// that was there at the call. One goroutine sends, so that the vector in a
// cursor is exactly what went before; a slow client slows the feeds.
func (w *watch) run(ctx context.Context, out sink) error {
	ctx, cancel := context.WithCancel(ctx)
	batches := make(chan batch, 2*len(w.feeds)+1)
	open := 0
	done := make(chan struct{})
	defer func() {
		cancel()
		for range open {
			<-done
		}
	}()
	behind := map[int]bool{}
	for _, fd := range w.feeds {
		if w.stop && fd.from.seq >= fd.end {
			continue
		}
		behind[fd.index] = true
		open++
		go func() {
			fd.follow(ctx, w, batches)
			done <- struct{}{}
		}()
	}
	silence := time.NewTimer(w.events.heartbeat)
	defer silence.Stop()
	for !w.stop || len(behind) > 0 {
		select {
		case b := <-batches:
			sent, err := w.send(out, b)
			if err != nil {
				return err
			}
			if sent {
				silence.Reset(w.events.heartbeat)
			}
			if w.stop && b.last {
				delete(behind, b.feed.index)
			}
			if len(batches) == 0 && sent {
				if err := out.Flush(); err != nil {
					return err
				}
			}
		case <-silence.C:
			if err := w.beat(out); err != nil {
				return err
			}
			silence.Reset(w.events.heartbeat)
		case <-ctx.Done():
			return ctx.Err()
		case <-w.events.closing:
			return errStopping
		}
	}
	return out.Flush()
}

// send sends a frame's events and moves the vector over each of them.
func (w *watch) send(out sink, b batch) (bool, error) {
	pos := &w.at[b.feed.track].parts[b.feed.part]
	for _, h := range b.hits {
		*pos = position{seq: b.seq, line: h.line + 1}
		h.event.Cursor = w.at.encode()
		if err := out.Send(&eventv1.WatchEventsResponse{Event: h.event}); err != nil {
			return true, err
		}
	}
	*pos = position{seq: b.seq + 1}
	return len(b.hits) > 0, nil
}

func (w *watch) beat(out sink) error {
	return errors.Join(out.Send(&eventv1.WatchEventsResponse{HeartbeatCursor: w.at.encode()}), out.Flush())
}

// filter is what of the journals a caller wants and may see.
type filter struct {
	namespace string
	agentID   string
	itemID    string
	planes    map[string]bool
	types     map[string]bool
}

func newFilter(actor rpc.Actor, req *eventv1.WatchEventsRequest) (filter, error) {
	f := filter{namespace: actor.Namespace, agentID: req.GetAgentId(), itemID: req.GetWorkItemId()}
	if f.agentID != "" {
		if err := fault.Name("agent_id", f.agentID); err != nil {
			return f, err
		}
		if err := rpc.CheckAgent(actor, f.agentID); err != nil {
			return f, err
		}
	}
	if actor.Role == rpc.RoleAgent {
		f.agentID = actor.AgentID // its own events only (SPEC X15)
	}
	if f.itemID != "" {
		if err := fault.ID("work_item_id", f.itemID, "wi_"); err != nil {
			return f, err
		}
	}
	for i, p := range req.GetPlanes() {
		if !slices.Contains(watched, p) {
			return f, fault.Invalid("planes["+strconv.Itoa(i)+"]", p, "must be one of agent, work, task, waiting")
		}
		f.planes = add(f.planes, p)
	}
	if err := fault.Entries("event_types", len(req.GetEventTypes()), maxEventTypes); err != nil {
		return f, err
	}
	for i, t := range req.GetEventTypes() {
		if err := fault.Name("event_types["+strconv.Itoa(i)+"]", t); err != nil {
			return f, err
		}
		f.types = add(f.types, t)
	}
	return f, nil
}

func add(set map[string]bool, s string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[s] = true
	return set
}

func (f *filter) wantsPlane(plane string) bool { return f.planes == nil || f.planes[plane] }

// wantsLine decides by what LineType tells, before anything is parsed.
func (f *filter) wantsLine(eventType, agentID string) bool {
	return eventType != "" && !journal.Internal(eventType) &&
		(f.agentID == "" || f.agentID == agentID) && (f.types == nil || f.types[eventType])
}

func (f *filter) wants(ev *journal.RawEvent) bool {
	return ev.Namespace == f.namespace && (f.itemID == "" || ev.WorkItemID == f.itemID)
}
