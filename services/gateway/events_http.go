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
)

// writeTime is how long a client may take nothing before it is cut off. It
// comes back with its last cursor and misses nothing.
const writeTime = 60 * time.Second

// streamEvents is GET /v1/events: lines of JSON, or server-sent events for
// those who accept them. Parameters are the fields of WatchEventsRequest;
// lists may be given with commas. Last-Event-ID goes before cursor: a browser
// that reconnects repeats the address it was first given.
func (g *Service) streamEvents(w http.ResponseWriter, r *http.Request) {
	req, err := watchRequest(r)
	if err != nil {
		refuse(w, r, err)
		return
	}
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
	in, err := queryJSON(query, req.ProtoReflect().Descriptor())
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

type httpSink struct {
	w       http.ResponseWriter
	control *http.ResponseController
	form    form
}

func (s *httpSink) Send(m *eventv1.WatchEventsResponse) error {
	line, err := s.form.line(m)
	if err != nil {
		return err
	}
	return s.write(line)
}

func (s *httpSink) write(b []byte) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTime)) // a writer without deadlines has no slow clients
	if _, err := s.w.Write(b); err != nil {
		return errors.Join(errGone, err)
	}
	return nil
}

func (s *httpSink) Flush() error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTime))
	if err := s.control.Flush(); err != nil {
		return errors.Join(errGone, err)
	}
	return nil
}

// form is the encoding of a stream.
type form interface {
	contentType() string
	line(m *eventv1.WatchEventsResponse) ([]byte, error)
	fail(e errorBody) []byte
}

// ndjson is a WatchEventsResponse a line, in the frame that every stream over
// REST has and that the OpenAPI document shows: {"result":…} or {"error":…}.
type ndjson struct{}

func (ndjson) contentType() string { return "application/x-ndjson" }

func (ndjson) line(m *eventv1.WatchEventsResponse) ([]byte, error) {
	b, err := codec{}.Marshal(map[string]any{"result": m})
	return append(b, '\n'), err
}

func (ndjson) fail(e errorBody) []byte { return append(marshalError(e), '\n') }

// sse is server-sent events: id is the cursor, event the type, data the event.
// A heartbeat is an id alone, which moves a browser's Last-Event-ID and calls
// no listener.
type sse struct{}

func (sse) contentType() string { return "text/event-stream" }

func (sse) line(m *eventv1.WatchEventsResponse) ([]byte, error) {
	ev := m.GetEvent()
	if ev == nil {
		return []byte(": heartbeat\nid: " + m.GetHeartbeatCursor() + "\n\n"), nil
	}
	data, err := protoJSON(ev)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(data)+len(ev.GetCursor())+64)
	out = append(out, "id: "+ev.GetCursor()+"\nevent: "+ev.GetEventType()+"\ndata: "...)
	return append(append(out, data...), '\n', '\n'), nil
}

func (sse) fail(e errorBody) []byte {
	return append(append([]byte("event: error\ndata: "), marshalError(e)...), '\n', '\n')
}

func marshalError(e errorBody) []byte {
	b, err := json.Marshal(e)
	if err != nil { // strings and numbers always marshal
		return []byte("{}")
	}
	return b
}
