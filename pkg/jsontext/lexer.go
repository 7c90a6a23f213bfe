package jsontext

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Lexer reads JSON text token by token. It is hand-written because a restart reads millions
// of journal lines, and the tokens of encoding/json cost three times as much. A Lexer is ready to
// use once In is set. After an error Pos is undefined.
type Lexer struct {
	In      []byte
	Pos     int    // index in In of the next byte
	scratch []byte // the last string that Str could not return as part of In
}

// SyntaxError is text that is not JSON.
type SyntaxError struct {
	Pos  int    // byte offset
	What string // what is wrong
}

func (e *SyntaxError) Error() string { return e.What + " at byte " + strconv.Itoa(e.Pos) }

// Fail returns a SyntaxError at the current position.
func (l *Lexer) Fail(what string) error { return &SyntaxError{l.Pos, what} }

// Peek skips white space and returns the next byte without consuming it, or 0 at the end.
func (l *Lexer) Peek() byte {
	for l.Pos < len(l.In) {
		switch c := l.In[l.Pos]; c {
		case ' ', '\t', '\n', '\r':
			l.Pos++
		default:
			return c
		}
	}
	return 0
}

// Expect skips white space and consumes the next byte. It fails, and does not consume the byte, if that is not c.
func (l *Lexer) Expect(c byte) error {
	if l.Peek() != c {
		return l.Unexpected("'" + string(c) + "'")
	}
	l.Pos++
	return nil
}

// Unexpected returns a SyntaxError that shows what is at the current position instead of want.
func (l *Lexer) Unexpected(want string) error {
	if l.Pos >= len(l.In) {
		return l.Fail("the text ends where " + want + " should be")
	}
	r, _ := utf8.DecodeRune(l.In[l.Pos:])
	return l.Fail(fmt.Sprintf("%q where %s should be", r, want))
}

// Next moves to the next element of a list or object that ends with closing, and returns true: it
// consumes the comma before the element. At the end it consumes closing and returns false. The caller must
// pass true as first before the first element, and false before the others.
func (l *Lexer) Next(closing byte, first bool) (bool, error) {
	c := l.Peek()
	if c == closing {
		l.Pos++
		return false, nil
	}
	if first {
		return true, nil
	}
	if c != ',' {
		return false, l.Unexpected("',' or '" + string(closing) + "'")
	}
	l.Pos++
	if l.Peek() == closing {
		return false, l.Fail("a comma without a value after it")
	}
	return true, nil
}

// Literal consumes word, which is null, true or false. Unlike Str and Number it skips no white
// space, and it does not check what follows the word.
func (l *Lexer) Literal(word string) error {
	if len(l.In)-l.Pos < len(word) || string(l.In[l.Pos:l.Pos+len(word)]) != word {
		return l.Unexpected("a value")
	}
	l.Pos += len(word)
	return nil
}

// Str returns the next string, unescaped. The bytes are valid until the next call of Str and
// may be part of the input.
func (l *Lexer) Str() ([]byte, error) {
	if err := l.Expect('"'); err != nil {
		return nil, err
	}
	start := l.Pos
	for l.Pos < len(l.In) && plain[l.In[l.Pos]] {
		l.Pos++
	}
	if l.Pos < len(l.In) && l.In[l.Pos] == '"' {
		s := l.In[start:l.Pos]
		l.Pos++
		return s, nil
	}
	return l.escaped(start)
}

// escaped continues Str in a string that has escapes or runes beyond ASCII. start is where
// its content begins.
func (l *Lexer) escaped(start int) ([]byte, error) {
	out := l.scratch[:0]
	out = append(out, l.In[start:l.Pos]...)
	for l.Pos < len(l.In) {
		c := l.In[l.Pos]
		switch {
		case c == '"':
			l.Pos++
			l.scratch = out
			return out, nil
		case c == '\\':
			r, err := l.escape()
			if err != nil {
				return nil, err
			}
			out = utf8.AppendRune(out, r)
		case c < 0x20:
			return nil, l.Fail("a control character in a string")
		case c < utf8.RuneSelf:
			out = append(out, c)
			l.Pos++
		default:
			r, n := utf8.DecodeRune(l.In[l.Pos:])
			if r == utf8.RuneError && n == 1 {
				return nil, l.Fail("text that is not UTF-8")
			}
			out = append(out, l.In[l.Pos:l.Pos+n]...)
			l.Pos += n
		}
	}
	return nil, l.Fail("a string without an end")
}

func (l *Lexer) escape() (rune, error) {
	if l.Pos+1 >= len(l.In) {
		return 0, l.Fail("a string without an end")
	}
	c := l.In[l.Pos+1]
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
		r, ok := l.hex4(l.Pos + 2)
		if !ok {
			return 0, l.Fail(`\u without four hexadecimal digits`)
		}
		l.Pos += 6
		if !utf16.IsSurrogate(r) {
			return r, nil
		}
		if l.Pos+1 < len(l.In) && l.In[l.Pos] == '\\' && l.In[l.Pos+1] == 'u' {
			if low, ok := l.hex4(l.Pos + 2); ok {
				if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
					l.Pos += 6
					return pair, nil
				}
			}
		}
		return 0, l.Fail("half of a surrogate pair")
	default:
		return 0, l.Fail("an unknown escape")
	}
	l.Pos += 2
	return rune(c), nil
}

func (l *Lexer) hex4(at int) (rune, bool) {
	if at+4 > len(l.In) {
		return 0, false
	}
	var r rune
	for _, c := range l.In[at : at+4] {
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

// Number returns the text of the next number, which is part of the input and was checked
// against the grammar of JSON, and whether it is written without fraction and exponent. What
// follows the number is not checked.
func (l *Lexer) Number() (text []byte, whole bool, err error) {
	l.Peek()
	start := l.Pos
	if l.at('-') {
		l.Pos++
	}
	switch {
	case l.at('0'):
		l.Pos++
	case !l.digits():
		return nil, false, l.Unexpected("a digit")
	}
	whole = true
	if l.at('.') {
		whole = false
		l.Pos++
		if !l.digits() {
			return nil, false, l.Unexpected("a digit")
		}
	}
	if l.at('e') || l.at('E') {
		whole = false
		l.Pos++
		if l.at('+') || l.at('-') {
			l.Pos++
		}
		if !l.digits() {
			return nil, false, l.Unexpected("a digit")
		}
	}
	return l.In[start:l.Pos], whole, nil
}

func (l *Lexer) at(c byte) bool { return l.Pos < len(l.In) && l.In[l.Pos] == c }

func (l *Lexer) digits() bool {
	start := l.Pos
	for l.Pos < len(l.In) && l.In[l.Pos] >= '0' && l.In[l.Pos] <= '9' {
		l.Pos++
	}
	return l.Pos > start
}

// Raw skips the next value and returns its text, which is part of the input. It finds the end
// of the value and checks nothing else: an object or array ends at the bracket, of either kind,
// that closes the last open one, and what begins with none of '"', '{' and '[' ends before a
// comma, a closing bracket or white space.
func (l *Lexer) Raw() ([]byte, error) {
	c := l.Peek()
	start := l.Pos
	switch c {
	case '"':
		if !l.skipString() {
			return nil, l.Fail("a string without an end")
		}
	case '{', '[':
		if !l.skipNested() {
			return nil, l.Fail("a value without an end")
		}
	default:
		for l.Pos < len(l.In) && strings.IndexByte(",}] \t\r\n", l.In[l.Pos]) < 0 {
			l.Pos++
		}
		if l.Pos == start {
			return nil, l.Unexpected("a value")
		}
	}
	return l.In[start:l.Pos], nil
}

// skipString moves behind the string that begins at the current position, and reports false
// if that has no end.
func (l *Lexer) skipString() bool {
	for i := l.Pos + 1; i < len(l.In); i++ {
		switch l.In[i] {
		case '\\':
			i++
		case '"':
			l.Pos = i + 1
			return true
		}
	}
	return false
}

// skipNested moves behind the object or array that begins at the current position, and
// reports false if that has no end.
func (l *Lexer) skipNested() bool {
	depth := 0
	for l.Pos < len(l.In) {
		switch l.In[l.Pos] {
		case '"':
			if !l.skipString() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				l.Pos++
				return true
			}
		}
		l.Pos++
	}
	return false
}
