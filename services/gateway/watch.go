package gateway

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/rpc"
)

// watched are the planes whose events are streamed, in the order of planeNumbers.
var watched = []string{"agent", "work", "task", "waiting", "board"}

// maxEventTypes limits the event types that a request names.
const maxEventTypes = 100

var errEventsStopping = fault.NotReady.New(
	"the server stops; go on from the last cursor at another one, or in a moment")

// events implements EventService.
type events struct {
	eventv1.UnsafeEventServiceServer

	sources   func(plane string) ([]journal.Source, error) // the journals of a plane
	heartbeat time.Duration                                // after how long without an event one is sent
	life      context.Context                              //nolint:containedctx // ends when the gateway stops
	log       *zap.Logger
	admission rpc.Admission
	pending   pendingBytes
	// behind counts the streams that read journals from before they were opened.
	behind *admission.Held
}

const (
	// maxBehind is how many streams of events may read what was written before they were opened at a
	// time, because each holds up to 9 MiB of each journal; maxBehindIn is how many of one namespace, and
	// maxBehindOf of one caller. Further ones wait.
	maxBehind   = 16
	maxBehindIn = 4
	maxBehindOf = 2
)

// sink is where a stream is sent. Flush is called when no further event is ready.
type sink interface {
	// JSON reports whether Send takes the payload of an event beside it, as JSON.
	JSON() bool
	// Send sends an event or a heartbeat. payload is nil unless JSON is true and there is an event.
	Send(m *eventv1.WatchEventsResponse, payload []byte) error
	Flush() error
	// Abort makes a Send or Flush fail that is in progress. Both may be called meanwhile.
	Abort(err error)
}

// grpcSink sends a stream over gRPC, which needs no flush.
type grpcSink struct {
	out grpc.ServerStreamingServer[eventv1.WatchEventsResponse]
}

// JSON implements sink.
func (grpcSink) JSON() bool { return false }

// Send implements sink.
func (s grpcSink) Send(m *eventv1.WatchEventsResponse, _ []byte) error { return s.out.Send(m) }

// Flush implements sink.
func (grpcSink) Flush() error { return nil }

// Abort implements sink.
func (s grpcSink) Abort(err error) { rpc.Abort(s.out.Context(), err) }

// WatchEvents streams the namespace's events (SPEC X10).
func (e *events) WatchEvents(req *eventv1.WatchEventsRequest,
	out grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
) error {
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
	caller string                  // whose stream it is: namespace, principal and key
	at     vector                  // everything before it was sent or did not pass the filter
	feeds  []*feed                 // of the partitions that the filter accepts
	share  *pendingShare           // of its namespace
	cancel context.CancelCauseFunc // ends the stream; set with share by run
	stop   bool                    // end after the events that existed when the stream was opened
	json   bool                    // payloads are sent as JSON; set by run
}

// open checks a request and finds where its stream begins: at a cursor, at the start of the
// journals, or at their ends. Everything that can be refused is refused here, before the first
// event. run sends the events.
func (e *events) open(ctx context.Context, req *eventv1.WatchEventsRequest) (*watch, error) {
	f, err := newFilter(rpc.ActorFrom(ctx), req)
	if err != nil {
		return nil, err
	}
	a := rpc.ActorFrom(ctx)
	w := &watch{events: e, filter: f, caller: a.Namespace + "/" + a.Principal + "/" + a.KeyID, stop: req.GetStopAtEnd()}
	ends, err := w.findEnds(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case req.GetCursor() != "" && req.GetFromStart():
		return nil, fault.InvalidArgument.New("cursor and from_start exclude each other").
			WithField("from_start", "must be left out when a cursor is given")
	case req.GetCursor() != "":
		err = w.resume(ctx, req.GetCursor(), ends)
	case req.GetFromStart():
		w.at = beginning(ends)
		for _, fd := range w.feeds {
			fd.after = framelog.End{}
		}
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

// findEnds returns the end of every partition of all watched planes, since a cursor has them all.
// It adds feeds to w for the planes that the filter accepts; run starts them.
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
			t.parts[i] = positionAt(end)
			if w.filter.wantsPlane(plane) {
				w.feeds = append(w.feeds, &feed{
					src: src, track: len(ends), part: i, after: end, last: end.Seq,
					past: make(chan batch, 2),
				})
			}
		}
		ends = append(ends, t)
	}
	return ends, nil
}

// resume sets the positions of a cursor. A plane that the cursor does not have did not exist
// when it was made, so all events of that plane are sent. Of each journal that is read, the frame that the
// cursor names must be there, as it was when it was sent.
func (w *watch) resume(ctx context.Context, text string, ends vector) error {
	v, err := decodeCursor(text)
	if err != nil {
		return err
	}
	w.at = beginning(ends)
	for _, t := range v {
		i := slices.IndexFunc(ends, func(e track) bool { return e.plane == t.plane })
		if i < 0 || len(ends[i].parts) != len(t.parts) {
			return foreignCursor("is of another partitioning")
		}
		read := slices.ContainsFunc(w.feeds, func(fd *feed) bool { return fd.track == i })
		for k, p := range t.parts {
			if end := ends[i].parts[k]; read && (p.seq > end.seq || p.seq == end.seq && p.line > 0) {
				return foreignCursor("is ahead of the journal, so of another one")
			}
		}
		w.at[i] = t
	}
	for _, fd := range w.feeds {
		from := w.at[fd.track].parts[fd.part]
		if from.seq == 0 {
			fd.after = framelog.End{}
			continue
		}
		switch fd.after, err = fd.src.At(ctx, from.seq); {
		case errors.Is(err, framelog.ErrNoFrame), err == nil && positionAt(fd.after).sum != from.sum:
			return foreignCursor("names a frame that the journal of " + framelog.PartitionName(fd.src.Plane(),
				fd.src.Partition()) +
				" does not have: it is of another installation, or the journal was restored or lost events")
		case errors.Is(err, framelog.ErrRemoved):
			return foreignCursor("is older than history is kept (history-days): what followed it was removed")
		case err != nil:
			return fault.NotReady.New("the journal of plane " + fd.src.Plane() + " cannot be read now").WithCause(err)
		}
	}
	return nil
}

// damaged returns the error of a stream whose journal is damaged: DATA_LOSS would say that nothing helps, but the
// journal may be repaired.
func damaged(cause error) error {
	return fault.New(codes.Unavailable, fault.Storage, cause.Error()+"; the stream ends before it. Ask the operator: "+
		"quartet doctor says what helps").WithCause(cause)
}

// clone returns a copy that shares nothing with v.
func (v vector) clone() vector {
	out := slices.Clone(v)
	for i := range out {
		out[i].parts = slices.Clone(out[i].parts)
	}
	return out
}

// beginning returns a vector with the partitions of ends, each at the position before its first frame.
func beginning(ends vector) vector {
	v := ends.clone()
	for _, t := range v {
		for i := range t.parts {
			t.parts[i] = position{}
		}
	}
	return v
}

// run sends events until ctx, the sink or the gateway ends or, for a watch that stops, all
// events that existed at the call are sent. One goroutine sends, so that a cursor has
// exactly the events that were sent before it. A slow client slows the feeds.
func (w *watch) run(ctx context.Context, out sink) error {
	share, closed := w.events.pending.Open(w.filter.namespace)
	defer closed()
	ctx, cancel := context.WithCancelCause(ctx)
	w.json = out.JSON()
	w.share, w.cancel = share, func(cause error) {
		cancel(cause)
		out.Abort(cause)
	}
	live := make(chan batch, len(w.feeds)+1)
	var feeds sync.WaitGroup
	defer feeds.Wait()
	defer cancel(nil)
	var behind []*feed
	for _, fd := range w.feeds {
		if fd.from.seq < fd.last {
			behind = append(behind, fd)
		}
	}
	caughtUp := func() {}
	if len(behind) > 0 {
		var err error
		if caughtUp, err = w.events.turn(ctx, w.caller); err != nil {
			return err
		}
		defer caughtUp()
	}
	for _, fd := range w.feeds {
		if w.stop && fd.from.seq >= fd.last {
			continue
		}
		feeds.Go(func() { fd.follow(ctx, w, live) })
	}
	// A client that has all events so far gets a heartbeat at once, so that it has a cursor from
	// which it can continue if the connection breaks before the first event.
	first := w.events.heartbeat
	if len(behind) == 0 && !w.stop {
		first = 0
	}
	silence := time.NewTimer(first)
	defer silence.Stop()
	s := &sending{watch: w, out: out, silence: silence}
	if err := s.catchUp(ctx, behind); err != nil || w.stop {
		return errors.Join(err, out.Flush())
	}
	caughtUp()
	for {
		b, err := s.receive(ctx, live)
		if err == nil {
			err = s.send(b)
		}
		if err == nil && len(live) == 0 {
			err = out.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// turn waits for a place among the streams that read what was written before, see maxBehind. Whoever calls turn must
// call done when that is read.
func (e *events) turn(ctx context.Context, caller string) (done func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.life, func() { cancel(errEventsStopping) })()
	namespace, _, _ := strings.Cut(caller, "/")
	done, err = e.behind.Wait(ctx, 1, admission.Use{Kind: "caller", Name: caller, Limit: maxBehindOf},
		admission.Use{Kind: "namespace", Name: namespace, Limit: maxBehindIn})
	if err != nil {
		return nil, context.Cause(ctx)
	}
	return done, nil
}

// sending is a watch while it runs. One goroutine uses it.
type sending struct {
	*watch
	out     sink
	silence *time.Timer // fires when a heartbeat is due
}

// catchUp sends the events that existed at the call, merged by time so that people can read
// them: it waits for the next frame of each journal and sends the oldest. Later events are
// sent in the order in which they arrive.
func (s *sending) catchUp(ctx context.Context, behind []*feed) error {
	heads := make([]*batch, len(behind))
	for len(behind) > 0 {
		oldest := 0
		for i, fd := range behind {
			if heads[i] == nil {
				b, err := s.receive(ctx, fd.past)
				if err != nil {
					return err
				}
				heads[i] = &b
			}
			if heads[i].at.Before(heads[oldest].at) {
				oldest = i
			}
		}
		b := heads[oldest]
		if err := s.send(*b); err != nil {
			return err
		}
		heads[oldest] = nil
		if b.last {
			behind = slices.Delete(behind, oldest, oldest+1)
			heads = slices.Delete(heads, oldest, oldest+1)
		}
	}
	return s.out.Flush()
}

// receive waits for a batch, and sends heartbeats meanwhile. It returns an error if one cannot
// be sent, ctx ends or the service stops.
func (s *sending) receive(ctx context.Context, from <-chan batch) (batch, error) {
	for {
		select {
		case b := <-from:
			return b, nil
		case <-s.silence.C:
			heartbeat := &eventv1.WatchEventsResponse{HeartbeatCursor: s.at.encode()}
			if err := errors.Join(s.out.Send(heartbeat, nil), s.out.Flush()); err != nil {
				return batch{}, err
			}
			s.silence.Reset(s.events.heartbeat)
		case <-ctx.Done():
			return batch{}, context.Cause(ctx)
		case <-s.events.life.Done():
			return batch{}, errEventsStopping
		}
	}
}

// send sends the accepted events of a frame, each with the cursor just after it, and then moves the
// vector past the whole frame, also if it had none. It restarts the heartbeat timer if it sent
// something, and does not flush.
func (s *sending) send(b batch) error {
	pos := &s.at[b.feed.track].parts[b.feed.part]
	for _, h := range b.hits {
		pos.line = h.line + 1
		h.event.Cursor = s.at.encode()
		if err := s.out.Send(&eventv1.WatchEventsResponse{Event: h.event}, h.payload); err != nil {
			return err
		}
	}
	if !b.removed {
		*pos = positionAt(b.end)
	}
	b.received()
	if len(b.hits) > 0 {
		s.silence.Reset(s.events.heartbeat)
	}
	return nil
}

// filter determines which events a caller wants and may see. An empty text or a nil set accepts
// everything.
type filter struct {
	namespace string
	agentID   string
	itemID    string
	planes    map[string]bool
	types     map[string]bool
}

// newFilter checks the filter of a request. An actor of role agent sees only its own agent's events.
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
			return f, fault.Invalid("planes["+strconv.Itoa(i)+"]", p, "must be one of "+strings.Join(watched, ", "))
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

// add adds s to a set, which it creates if it is nil, and returns the set.
func add(set map[string]bool, s string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[s] = true
	return set
}

// wantsPlane reports whether the filter accepts events of a plane.
func (f *filter) wantsPlane(plane string) bool { return f.planes == nil || f.planes[plane] }

// wantsLine reports whether the filter may accept a line of a journal, by what journal.Line.Type
// returns of it, so that other lines need not be parsed. wants decides about the others.
func (f *filter) wantsLine(eventType, agentID string) bool {
	return eventType != "" && !journal.Internal(eventType) &&
		(f.agentID == "" || f.agentID == agentID) && (f.types == nil || f.types[eventType])
}

// wants reports whether the filter accepts the event of a line that wantsLine accepts.
func (f *filter) wants(ev *journal.RawEvent) bool {
	return ev.Namespace == f.namespace && (f.itemID == "" || ev.WorkItemID == f.itemID)
}
