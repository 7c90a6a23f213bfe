package bus

import (
	"fmt"

	"quartet/pkg/journal"
	"quartet/pkg/jsontext"
)

// ReadinessChanged is the last token of the second subject of an event that changes readiness
// (SPEC X10).
const ReadinessChanged = "readiness_changed"

// EventPrefix begins the subjects of events.
const EventPrefix = "quartet.events."

// Subject returns the subject of an event. In place of an empty argument it has "-".
func Subject(namespace, plane, agentID, eventType string) string {
	return EventPrefix + token(namespace) + "." + token(plane) + "." + token(agentID) + "." + token(eventType)
}

// token returns s as one token of a subject: "-" if s is empty, and otherwise s with "_" in
// place of each byte that a token must not have: a dot, a wildcard, a space or a
// control character. Names (SPEC X8) have none of these.
func token(s string) string {
	if s == "" {
		return "-"
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == '.' || c == '*' || c == '>' || c == 0x7f {
			b := []byte(s)
			for j := range b {
				if c := b[j]; c <= ' ' || c == '.' || c == '*' || c == '>' || c == 0x7f {
					b[j] = '_'
				}
			}
			return string(b)
		}
	}
	return s
}

// appendCloudEvent appends a journal line as a CloudEvent 1.0 in structured JSON mode. The
// line is the data. ev is the line's envelope.
func appendCloudEvent(dst, line []byte, ev *journal.Event) []byte {
	dst = append(dst, `{"specversion":"1.0","id":`...)
	dst = jsontext.AppendString(dst, ev.ID)
	dst = append(dst, `,"source":`...)
	dst = jsontext.AppendString(dst, "/quartet/"+token(ev.Namespace)+"/"+ev.Plane)
	dst = append(dst, `,"type":`...)
	dst = jsontext.AppendString(dst, "quartet."+ev.Plane+"."+ev.Type)
	if ev.AgentID != "" { // an empty subject is not allowed
		dst = append(dst, `,"subject":`...)
		dst = jsontext.AppendString(dst, ev.AgentID)
	}
	dst = append(dst, `,"time":`...)
	dst = jsontext.AppendTime(dst, ev.CreatedAt)
	if ev.Traceparent != "" { // CloudEvents' extension for distributed tracing
		dst = append(dst, `,"traceparent":`...)
		dst = jsontext.AppendString(dst, ev.Traceparent)
	}
	dst = append(dst, `,"datacontenttype":"application/json","data":`...)
	dst = append(dst, line...)
	return append(dst, '}')
}

// message is a CloudEvent in the buffer of a wrapped: the bytes from start to end-1.
type message struct {
	subject    string
	start, end int
}

// wrapped holds the CloudEvents of one frame. Its buffer is used again for the next frame,
// because the connection copies messages; a buffer for each event was 5 % of the allocations
// of a mutation.
type wrapped struct {
	events []message
	buf    []byte
}

// wrap makes the messages of a frame, in order: one for each event, and a second one if the event
// changes readiness. Internal lines of the journal are no events. It fails at a line that cannot be
// read, and then w.events has only the messages of the lines before.
func (w *wrapped) wrap(frame []journal.Line) error {
	w.events, w.buf = w.events[:0], w.buf[:0]
	for _, line := range frame {
		if t, _ := line.Type(); journal.Internal(t) {
			continue
		}
		ev, err := line.Envelope()
		if err != nil {
			return fmt.Errorf("bus: %w", err)
		}
		start := len(w.buf)
		w.buf = appendCloudEvent(w.buf, Conceal(ev.Plane, line.Text), ev)
		w.events = append(w.events, message{Subject(ev.Namespace, ev.Plane, ev.AgentID, ev.Type), start, len(w.buf)})
		if ev.ReadinessFrom != "" || ev.ReadinessTo != "" { // a second message with the same bytes
			w.events = append(w.events, message{
				Subject(ev.Namespace, "work", ev.AgentID, ReadinessChanged), start,
				len(w.buf),
			})
		}
	}
	return nil
}
