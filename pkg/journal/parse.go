package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/pbjson"
)

// RawEvent is a line whose payload was not read yet. Payload points into the
// line.
type RawEvent struct {
	Event   // without Payload
	Payload json.RawMessage
}

// Decode reads the payload as well.
func (r *RawEvent) Decode(reg *Registry) (*Event, error) {
	m, err := reg.New(r.Type)
	if err != nil {
		return nil, err
	}
	if err := pbjson.Unmarshal(r.Payload, m); err != nil {
		return nil, fmt.Errorf("journal: payload of wal_seq %d, %s: %w", r.WalSeq, r.Type, err)
	}
	ev := r.Event
	ev.Payload = m
	return &ev, nil
}

// WithPayload is the event with a payload the caller read itself.
func (r *RawEvent) WithPayload(m proto.Message) *Event {
	ev := r.Event
	ev.Payload = m
	return &ev
}

var errLine = errors.New("journal: damaged line")

// ParseLine reads the envelope of one line. Unknown fields are ignored, so
// that an older reader gets along with a newer writer.
func ParseLine(line []byte) (*RawEvent, error) {
	r := &RawEvent{}
	s := scanner{b: line}
	if !s.open() {
		return nil, fmt.Errorf("%w: no object", errLine)
	}
	for {
		key, ok, err := s.key()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		value, err := s.value()
		if err != nil {
			return nil, err
		}
		if err := r.set(key, value); err != nil {
			return nil, fmt.Errorf("%w: field %s: %w", errLine, key, err)
		}
	}
	if !s.end() {
		return nil, fmt.Errorf("%w: something follows the object", errLine)
	}
	if r.Type == "" || r.WalSeq == 0 {
		return nil, fmt.Errorf("%w: wal_seq or event_type is missing", errLine)
	}
	return r, nil
}

func (r *RawEvent) set(key, value []byte) error {
	var err error
	switch string(key) {
	case "wal_seq":
		r.WalSeq, err = strconv.ParseUint(string(value), 10, 64)
	case "payload":
		r.Payload = value
	case "created_at":
		var s string
		if s, err = unquote(value); err == nil {
			r.CreatedAt, err = parseTime(s)
		}
	default:
		if f := r.field(string(key)); f != nil {
			*f, err = unquote(value)
		}
	}
	return err
}

func (r *RawEvent) field(key string) *string {
	switch key {
	case "event_type":
		return &r.Type
	case "agent_id":
		return &r.AgentID
	case "event_id":
		return &r.ID
	case "namespace":
		return &r.Namespace
	case "plane":
		return &r.Plane
	case "session_id":
		return &r.SessionID
	case "task_id":
		return &r.TaskID
	case "step_id":
		return &r.StepID
	case "work_item_id":
		return &r.WorkItemID
	case "actor_namespace":
		return &r.ActorNamespace
	case "actor_agent_id":
		return &r.ActorAgentID
	case "actor_run_id":
		return &r.ActorRunID
	case "principal":
		return &r.Principal
	case "role":
		return &r.Role
	case "method":
		return &r.Method
	case "request_id":
		return &r.RequestID
	case "request_hash":
		return &r.RequestHash
	case "traceparent":
		return &r.Traceparent
	case "readiness_from":
		return &r.ReadinessFrom
	case "readiness_to":
		return &r.ReadinessTo
	case "readiness_reason":
		return &r.ReadinessReason
	}
	return nil
}

// LineType returns a line's event type and agent without reading the rest. It
// answers empty strings for what is not a line of this package.
func LineType(line []byte) (eventType, agentID string) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"wal_seq":`))
	if !ok {
		return "", ""
	}
	i := bytes.IndexByte(rest, ',')
	if i < 0 {
		return "", ""
	}
	eventType, rest = cutField(rest[i:], `,"event_type":`)
	agentID, _ = cutField(rest, `,"agent_id":`)
	return eventType, agentID
}

func cutField(b []byte, prefix string) (string, []byte) {
	rest, ok := bytes.CutPrefix(b, []byte(prefix))
	if !ok {
		return "", b
	}
	s := scanner{b: rest}
	value, err := s.value()
	if err != nil {
		return "", b
	}
	text, err := unquote(value)
	if err != nil {
		return "", b
	}
	return text, rest[s.i:]
}

// Lines splits a frame's body. The lines share its memory and have no newline.
func Lines(body []byte) [][]byte {
	var out [][]byte
	for len(body) > 0 {
		i := bytes.IndexByte(body, '\n')
		if i < 0 {
			return append(out, body)
		}
		out = append(out, body[:i])
		body = body[i+1:]
	}
	return out
}

// parseTime reads timeLayout without time.Parse, which costs six times as
// much at load; other forms of RFC 3339 go there.
func parseTime(s string) (time.Time, error) {
	if len(s) != len(timeLayout) || s[26] != 'Z' || s[19] != '.' {
		return time.Parse(time.RFC3339Nano, s)
	}
	var v [7]int
	for i, at := range [...][2]int{{0, 4}, {5, 7}, {8, 10}, {11, 13}, {14, 16}, {17, 19}, {20, 26}} {
		for _, c := range []byte(s[at[0]:at[1]]) {
			if c < '0' || c > '9' {
				return time.Time{}, fmt.Errorf("time %q is not RFC 3339", s)
			}
			v[i] = v[i]*10 + int(c-'0')
		}
	}
	return time.Date(v[0], time.Month(v[1]), v[2], v[3], v[4], v[5], v[6]*1000, time.UTC), nil
}
