// Package lines finds the lines of a journal's frame, and what a line is about, without parsing
// them.
package lines

import (
	"bytes"

	"quartet/pkg/jsontext"
)

// TypeOf returns a line's event type and agent without parsing the rest. It relies on the
// journal writing wal_seq, event_type and agent_id first, in this order; what is not found there
// is returned as "". The line is not checked.
func TypeOf(line []byte) (eventType, agentID string) {
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

// cutField parses a text field that follows prefix, and returns the rest of b. If prefix does not match it
// returns "" and b.
func cutField(b []byte, prefix string) (string, []byte) {
	rest, ok := bytes.CutPrefix(b, []byte(prefix))
	if !ok {
		return "", b
	}
	l := jsontext.Lexer{In: rest}
	text, err := l.Str()
	if err != nil {
		return "", b
	}
	return string(text), rest[l.Pos:]
}

// Split splits a frame's body. The lines share its memory and have no newline.
func Split(body []byte) [][]byte {
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
