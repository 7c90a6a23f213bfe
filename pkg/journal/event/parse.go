package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/jsontext"
	"quartet/pkg/pbjson"
)

// Raw is a line whose payload is not parsed. Payload points into the line.
type Raw struct {
	Event   // without Payload
	Payload json.RawMessage
}

// Decode returns the event with its payload parsed.
func (r *Raw) Decode(reg *Registry) (*Event, error) {
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

// WithPayload returns the event with a payload that the caller parsed.
func (r *Raw) WithPayload(m proto.Message) *Event {
	ev := r.Event
	ev.Payload = m
	return &ev
}

// errLine is the cause of every error of ParseLine.
var errLine = errors.New("journal: damaged line")

// ParseLine parses the envelope of one line. It ignores unknown fields, so that an older reader
// understands a newer writer. It finds the end of the payload and does not parse it. A line without
// wal_seq or event_type is an error; one without payload is not.
func ParseLine(line []byte) (*Raw, error) {
	r := &Raw{}
	l := jsontext.Lexer{In: line}
	if err := l.Expect('{'); err != nil {
		return nil, fmt.Errorf("%w: %w", errLine, err)
	}
	for first := true; ; first = false {
		more, err := l.Next('}', first)
		if err == nil && more {
			err = r.read(&l)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errLine, err)
		}
		if !more {
			break
		}
	}
	if l.Peek(); l.Pos < len(line) {
		return nil, fmt.Errorf("%w: something follows the object", errLine)
	}
	if r.Type == "" || r.WalSeq == 0 {
		return nil, fmt.Errorf("%w: wal_seq or event_type is missing", errLine)
	}
	return r, nil
}

// read reads one field of the envelope.
func (r *Raw) read(l *jsontext.Lexer) error {
	key, err := l.Str()
	if err != nil {
		return err
	}
	text := r.field(key) // key is valid until the next string is read
	isSeq, isPayload, isCreatedAt := string(key) == "wal_seq", string(key) == "payload", string(key) == "created_at"
	if err := l.Expect(':'); err != nil {
		return err
	}
	switch {
	case text != nil:
		s, err := l.Str()
		*text = string(s)
		return err
	case isSeq:
		n, _, err := l.Number()
		if err == nil {
			r.WalSeq, err = strconv.ParseUint(string(n), 10, 64)
		}
		return err
	case isCreatedAt:
		s, err := l.Str()
		if err == nil {
			r.CreatedAt, err = jsontext.ParseTime(s)
		}
		return err
	}
	raw, err := l.Raw()
	if isPayload {
		r.Payload = raw
	}
	return err
}

// field returns where the text field with this name is stored, nil if there is none.
func (r *Raw) field(key []byte) *string {
	switch string(key) {
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
	case "actor_key_id":
		return &r.ActorKeyID
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
