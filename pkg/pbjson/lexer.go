package pbjson

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// lexer walks over JSON text. It is by hand because reading a million journal
// lines at start-up is the price of a restart, and encoding/json's tokens cost
// three times as much.
type lexer struct {
	in      []byte
	pos     int
	scratch []byte // unescaped strings that need no copy
}

// syntaxError is text that is not JSON.
type syntaxError struct {
	pos  int
	what string
}

func (e *syntaxError) Error() string { return e.what + " at byte " + strconv.Itoa(e.pos) }

func (l *lexer) fail(what string) error { return &syntaxError{l.pos, what} }

// peek gives the next byte after blanks, 0 at the end.
func (l *lexer) peek() byte {
	for l.pos < len(l.in) {
		switch c := l.in[l.pos]; c {
		case ' ', '\t', '\n', '\r':
			l.pos++
		default:
			return c
		}
	}
	return 0
}

func (l *lexer) expect(c byte) error {
	if l.peek() != c {
		return l.unexpected("'" + string(c) + "'")
	}
	l.pos++
	return nil
}

func (l *lexer) unexpected(want string) error {
	if l.pos >= len(l.in) {
		return l.fail("the text ends where " + want + " should be")
	}
	r, _ := utf8.DecodeRune(l.in[l.pos:])
	return l.fail(fmt.Sprintf("%q stands where %s should be", r, want))
}

// next moves past ',' in a list that ends with closing; it reports false, and
// has passed closing, at the end. first is true before the first element.
func (l *lexer) next(closing byte, first bool) (bool, error) {
	c := l.peek()
	if c == closing {
		l.pos++
		return false, nil
	}
	if first {
		return true, nil
	}
	if c != ',' {
		return false, l.unexpected("',' or '" + string(closing) + "'")
	}
	l.pos++
	if l.peek() == closing {
		return false, l.fail("a comma without a value after it")
	}
	return true, nil
}

// literal passes null, true or false.
func (l *lexer) literal(word string) error {
	if len(l.in)-l.pos < len(word) || string(l.in[l.pos:l.pos+len(word)]) != word {
		return l.unexpected("a value")
	}
	l.pos += len(word)
	return nil
}

// str gives the next string, unescaped. The bytes are valid until the next
// call and may be part of the input.
func (l *lexer) str() ([]byte, error) {
	if err := l.expect('"'); err != nil {
		return nil, err
	}
	start := l.pos
	for l.pos < len(l.in) && quiet[l.in[l.pos]] {
		l.pos++
	}
	if l.pos < len(l.in) && l.in[l.pos] == '"' {
		s := l.in[start:l.pos]
		l.pos++
		return s, nil
	}
	return l.rare(start)
}

// rare goes on with a string that has escapes or runes beyond ASCII.
func (l *lexer) rare(start int) ([]byte, error) {
	out := append(l.scratch[:0], l.in[start:l.pos]...)
	for l.pos < len(l.in) {
		c := l.in[l.pos]
		switch {
		case c == '"':
			l.pos++
			l.scratch = out
			return out, nil
		case c == '\\':
			r, err := l.escape()
			if err != nil {
				return nil, err
			}
			out = utf8.AppendRune(out, r)
		case c < 0x20:
			return nil, l.fail("a control character in a string")
		case c < utf8.RuneSelf:
			out = append(out, c)
			l.pos++
		default:
			r, n := utf8.DecodeRune(l.in[l.pos:])
			if r == utf8.RuneError && n == 1 {
				return nil, l.fail("text that is not UTF-8")
			}
			out = append(out, l.in[l.pos:l.pos+n]...)
			l.pos += n
		}
	}
	return nil, l.fail("a string without an end")
}

func (l *lexer) escape() (rune, error) {
	if l.pos+1 >= len(l.in) {
		return 0, l.fail("a string without an end")
	}
	c := l.in[l.pos+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		r, ok := l.hex4(l.pos + 2)
		if !ok {
			return 0, l.fail(`\u without four hexadecimal digits`)
		}
		l.pos += 6
		if !utf16.IsSurrogate(r) {
			return r, nil
		}
		if l.pos+1 < len(l.in) && l.in[l.pos] == '\\' && l.in[l.pos+1] == 'u' {
			if low, ok := l.hex4(l.pos + 2); ok {
				if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
					l.pos += 6
					return pair, nil
				}
			}
		}
		return 0, l.fail("half of a surrogate pair")
	default:
		return 0, l.fail("an unknown escape")
	}
	l.pos += 2
	return rune(c), nil
}

func (l *lexer) hex4(at int) (rune, bool) {
	if at+4 > len(l.in) {
		return 0, false
	}
	var r rune
	for _, c := range l.in[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// number gives the text of the next number, checked against JSON's grammar,
// and whether it is written as a whole number.
func (l *lexer) number() (text []byte, whole bool, err error) {
	l.peek()
	start := l.pos
	if l.at('-') {
		l.pos++
	}
	switch {
	case l.at('0'):
		l.pos++
	case !l.digits():
		return nil, false, l.unexpected("a digit")
	}
	whole = true
	if l.at('.') {
		whole = false
		l.pos++
		if !l.digits() {
			return nil, false, l.unexpected("a digit")
		}
	}
	if l.at('e') || l.at('E') {
		whole = false
		l.pos++
		if l.at('+') || l.at('-') {
			l.pos++
		}
		if !l.digits() {
			return nil, false, l.unexpected("a digit")
		}
	}
	return l.in[start:l.pos], whole, nil
}

func (l *lexer) at(c byte) bool { return l.pos < len(l.in) && l.in[l.pos] == c }

func (l *lexer) digits() bool {
	start := l.pos
	for l.pos < len(l.in) && l.in[l.pos] >= '0' && l.in[l.pos] <= '9' {
		l.pos++
	}
	return l.pos > start
}
