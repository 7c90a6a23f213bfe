package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// scanner walks over one flat JSON object without building anything. Values
// are handed out as they stand in the line; only strings are looked into.
type scanner struct {
	b     []byte
	i     int
	later bool // a field was read already
}

func (s *scanner) blanks() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\r' || s.b[s.i] == '\n') {
		s.i++
	}
}

func (s *scanner) take(c byte) bool {
	s.blanks()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) open() bool { return s.take('{') }

func (s *scanner) end() bool {
	s.blanks()
	return s.i == len(s.b)
}

// key returns the next key, or false at the end of the object.
func (s *scanner) key() ([]byte, bool, error) {
	if s.take('}') {
		return nil, false, nil
	}
	if s.later && !s.take(',') {
		return nil, false, s.fail("a comma is missing")
	}
	s.later = true
	s.blanks()
	start := s.i
	if !s.str() {
		return nil, false, s.fail("a key is missing")
	}
	key := s.b[start+1 : s.i-1]
	if !s.take(':') {
		return nil, false, s.fail("a colon is missing")
	}
	return key, true, nil
}

// value returns the next value as it stands.
func (s *scanner) value() ([]byte, error) {
	s.blanks()
	start := s.i
	if start == len(s.b) {
		return nil, s.fail("a value is missing")
	}
	switch s.b[start] {
	case '"':
		if !s.str() {
			return nil, s.fail("a string has no end")
		}
	case '{', '[':
		if !s.nest() {
			return nil, s.fail("a value has no end")
		}
	default:
		for s.i < len(s.b) && strings.IndexByte(",}] \t\r\n", s.b[s.i]) < 0 {
			s.i++
		}
		if s.i == start {
			return nil, s.fail("a value is missing")
		}
	}
	return s.b[start:s.i], nil
}

// str moves behind a string.
func (s *scanner) str() bool {
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		return false
	}
	for i := s.i + 1; i < len(s.b); i++ {
		switch s.b[i] {
		case '\\':
			i++
		case '"':
			s.i = i + 1
			return true
		}
	}
	return false
}

// nest moves behind an object or an array. What is inside is the payload
// decoder's to judge.
func (s *scanner) nest() bool {
	depth := 0
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case '"':
			if !s.str() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				s.i++
				return true
			}
		}
		s.i++
	}
	return false
}

func (s *scanner) fail(what string) error {
	return fmt.Errorf("%w: byte %d: %s", errLine, s.i, what)
}

// unquote reads a JSON string, quickly where it has no escapes.
func unquote(v []byte) (string, error) {
	if n := len(v); n >= 2 && v[0] == '"' && bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : n-1]), nil
	}
	var s string
	err := json.Unmarshal(v, &s)
	return s, err
}
