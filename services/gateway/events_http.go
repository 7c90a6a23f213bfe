package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"quartet/pkg/fault"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
)

// writeTime is how long a client may read nothing before it is disconnected. It can
// continue from its last cursor without missing anything.
const writeTime = 60 * time.Second

// streamEvents serves GET /v1/events: lines of JSON, or server-sent events for
// clients that accept them. Parameters are the fields of WatchEventsRequest;
// lists may be given with commas. Last-Event-ID takes precedence over cursor, because
// a browser that reconnects repeats the first URL.
func (g *Service) streamEvents(w http.ResponseWriter, r *http.Request) {
	req, err := watchRequest(r)
	if err != nil {
		refuse(w, r, err)
		return
	}
	release, err := g.admitEvents(r.Context(), req)
	if err != nil {
		refuse(w, r, err)
		return
	}
	defer release()
	leaveSoon(r.Context())
	stream, err := g.events.open(r.Context(), req)
	if err != nil {
		refuse(w, r, err)
		return
	}
	out := &httpSink{w: w, control: http.NewResponseController(w), form: ndjson{}}
	if accepts(r, "text/event-stream") {
		out.form = sse{}
	}
	w.Header().Set("Content-Type", out.form.contentType())
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold events back
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead || out.Flush() != nil {
		return
	}
	err = stream.run(r.Context(), out)
	if cause := context.Cause(r.Context()); errors.Is(cause, fault.Unauthenticated) {
		_ = out.write(out.form.fail(errorOf(cause, http.StatusUnauthorized, ""))) // its credential ended
	} else if err != nil && r.Context().Err() == nil && !errors.Is(err, errGone) {
		_ = out.write(out.form.fail(errorOf(err, fault.HTTPStatus(fault.From(err)), "")))
	}
}

// admitEvents does for a stream of events over HTTP what a gRPC server does for one over gRPC. The caller must call
// release when the stream has ended.
func (g *Service) admitEvents(ctx context.Context, req *eventv1.WatchEventsRequest) (release func(), err error) {
	const method = eventv1.EventService_WatchEvents_FullMethodName
	actor := rpc.ActorFrom(ctx)
	if err := fault.First(
		g.deps.Admission.Permit(ctx, method, actor),
		g.deps.Admission.Fence(ctx, method, actor),
		g.deps.Admission.Within(actor, method, req),
	); err != nil {
		return nil, err
	}
	return g.deps.Admission.Stream(actor)
}

// watchRequest reads the request of streamEvents.
func watchRequest(r *http.Request) (*eventv1.WatchEventsRequest, error) {
	req := &eventv1.WatchEventsRequest{}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fault.InvalidArgument.New("the query string cannot be read: " + err.Error())
	}
	for _, list := range []string{"planes", "event_types", "eventTypes"} {
		if values, given := query[list]; given {
			query[list] = strings.Split(strings.Join(values, ","), ",")
		}
	}
	in, err := parametersJSON(query, req.ProtoReflect().Descriptor())
	if err != nil {
		return nil, err
	}
	if err := pbjson.Unmarshal(in, req); err != nil {
		return nil, err
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		req.Cursor, req.FromStart = last, false
	}
	return req, nil
}

// accepts reports whether the Accept header names a media type. Wildcards do not count.
func accepts(r *http.Request, mediaType string) bool {
	for _, v := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(v, ",") {
			name, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(name), mediaType) {
				return true
			}
		}
	}
	return false
}

// errGone means that the client accepts nothing more, not even an error.
var errGone = errors.New("gateway: the client is gone")

// httpSink writes a stream to an HTTP response. Each write and flush may take writeTime; its error
// wraps errGone.
type httpSink struct {
	w       http.ResponseWriter
	control *http.ResponseController
	form    form
	line    []byte // of the last message; its memory is used again
}

// maxSpareLine is the largest line whose memory an httpSink keeps.
const maxSpareLine = 64 << 10

// Abort implements sink.
func (s *httpSink) Abort(error) { _ = s.control.SetWriteDeadline(time.Now()) }

// JSON implements sink.
func (s *httpSink) JSON() bool { return true }

// Send implements sink.
func (s *httpSink) Send(m *eventv1.WatchEventsResponse, payload []byte) error {
	line, err := s.form.line(s.line[:0], m, payload)
	if err != nil {
		return err
	}
	if s.line = line; cap(line) > maxSpareLine {
		s.line = nil
	}
	return s.write(line)
}

// write writes bytes as they are.
func (s *httpSink) write(b []byte) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTime)) // a writer without deadlines has no slow clients
	if _, err := s.w.Write(b); err != nil {
		return errors.Join(errGone, err)
	}
	return nil
}

// Flush implements sink.
func (s *httpSink) Flush() error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTime))
	if err := s.control.Flush(); err != nil {
		return errors.Join(errGone, err)
	}
	return nil
}

// form is the encoding of a stream of events.
type form interface {
	contentType() string
	// line appends one message, with its end. payload is that of its event.
	line(b []byte, m *eventv1.WatchEventsResponse, payload []byte) ([]byte, error)
	fail(e errorBody) []byte // the error that ends the stream
}

// ndjson encodes each WatchEventsResponse as a line, in the form that every stream over
// REST has and that the OpenAPI document shows: {"result":…} or {"error":…}.
type ndjson struct{}

func (ndjson) contentType() string { return "application/x-ndjson" }

func (ndjson) line(b []byte, m *eventv1.WatchEventsResponse, payload []byte) ([]byte, error) {
	if m.GetEvent() == nil {
		text, err := codec{}.Marshal(map[string]any{"result": m})
		return append(append(b, text...), '\n'), err
	}
	b, err := appendEvent(append(b, `{"result":{"event":`...), m.GetEvent(), payload)
	return append(b, "}}\n"...), err
}

func (ndjson) fail(e errorBody) []byte { return append(marshalError(e), '\n') }

// sse encodes server-sent events: id is the cursor, event the type, data the event.
// A heartbeat has an id only, which moves a browser's Last-Event-ID and calls
// no listener.
type sse struct{}

func (sse) contentType() string { return "text/event-stream" }

func (sse) line(b []byte, m *eventv1.WatchEventsResponse, payload []byte) ([]byte, error) {
	ev := m.GetEvent()
	if ev == nil {
		return append(b, ": heartbeat\nid: "+m.GetHeartbeatCursor()+"\n\n"...), nil
	}
	b = append(append(b, "id: "...), ev.GetCursor()...)
	b = append(append(b, "\nevent: "...), ev.GetEventType()...)
	b, err := appendEvent(append(b, "\ndata: "...), ev, payload)
	return append(b, '\n', '\n'), err
}

func (sse) fail(e errorBody) []byte {
	return append(append([]byte("event: error\ndata: "), marshalError(e)...), '\n', '\n')
}

// marshalError returns e as JSON on one line.
func marshalError(e errorBody) []byte {
	b, err := json.Marshal(e)
	if err != nil { // strings and numbers always marshal
		return []byte("{}")
	}
	return b
}
