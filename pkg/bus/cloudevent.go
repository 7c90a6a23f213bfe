package bus

import (
	"bytes"
	"fmt"

	"quartet/pkg/journal"
)

// ReadinessChanged is the last token of the second subject of an event that
// carries readiness (SPEC X10); the scheduler lives on these.
const ReadinessChanged = "readiness_changed"

// Subject is where an event is published. A token that is empty is "-".
func Subject(namespace, plane, agentID, eventType string) string {
	return "quartet.events." + token(namespace) + "." + token(plane) + "." + token(agentID) + "." + token(eventType)
}

// token makes s fit between two dots. Names are [a-z0-9_-] (SPEC X8); anything
// else would change the subject's shape and becomes "_".
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

// appendCloudEvent wraps a journal line as a CloudEvent 1.0 in structured JSON
// mode. The line is the data as it stands; nothing is marshalled again. raw is
// the line's envelope.
func appendCloudEvent(dst, line []byte, raw *journal.RawEvent) []byte {
	dst = append(dst, `{"specversion":"1.0","id":`...)
	dst = journal.AppendString(dst, raw.ID)
	dst = append(dst, `,"source":`...)
	dst = journal.AppendString(dst, "/quartet/"+token(raw.Namespace)+"/"+raw.Plane)
	dst = append(dst, `,"type":`...)
	dst = journal.AppendString(dst, "quartet."+raw.Plane+"."+raw.Type)
	if raw.AgentID != "" { // an empty subject is not allowed
		dst = append(dst, `,"subject":`...)
		dst = journal.AppendString(dst, raw.AgentID)
	}
	dst = append(dst, `,"time":`...)
	dst = journal.AppendTime(dst, raw.CreatedAt)
	dst = append(dst, `,"datacontenttype":"application/json","data":`...)
	dst = append(dst, line...)
	return append(dst, '}')
}

// message is one CloudEvent on its way.
type message struct {
	subject string
	body    []byte
}

// messages turns a frame into what is published for it, in order. Lines of the
// journal itself are no events.
func messages(frame []byte) ([]message, error) {
	var out []message
	for len(frame) > 0 {
		line, rest, _ := bytes.Cut(frame, []byte{'\n'})
		frame = rest
		if t, _ := journal.LineType(line); journal.Internal(t) {
			continue
		}
		raw, err := journal.ParseLine(line)
		if err != nil {
			return nil, fmt.Errorf("bus: %w", err)
		}
		body := appendCloudEvent(make([]byte, 0, len(line)+320), line, raw)
		out = append(out, message{Subject(raw.Namespace, raw.Plane, raw.AgentID, raw.Type), body})
		if raw.ReadinessFrom != "" || raw.ReadinessTo != "" {
			out = append(out, message{Subject(raw.Namespace, "work", raw.AgentID, ReadinessChanged), body})
		}
	}
	return out, nil
}
