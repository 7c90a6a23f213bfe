package framelog

import (
	"bytes"

	"quartet/pkg/jsontext"
)

// TypeOfLine returns a line's event type and agent without parsing the rest. It relies on the
// journal writing wal_seq, event_type and agent_id first, in this order; what is not found there
// is returned as "". The line is not checked.
func TypeOfLine(line []byte) (eventType, agentID string) {
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

// SplitLines splits a frame's body. The lines share its memory and have no newline.
func SplitLines(body []byte) [][]byte {
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

// LineField searches the readable part of the envelope of a damaged line for a text field. It returns the value if the
// field occurs exactly once and the value consists of lower-case letters, digits, '-' and '_'.
func LineField(line []byte, name string) (string, bool) {
	mark := []byte(`"` + name + `":"`)
	head, _, _ := bytes.Cut(line, []byte(`"payload":`)) // the payload may have fields of the same name
	start := bytes.Index(head, mark)
	if start < 0 || bytes.Count(head, mark) != 1 {
		return "", false
	}
	value, _, closed := bytes.Cut(head[start+len(mark):], []byte{'"'})
	if !closed || len(value) == 0 {
		return "", false
	}
	for _, c := range value {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return "", false
		}
	}
	return string(value), true
}
