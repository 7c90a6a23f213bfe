// Package jsontext reads and writes the parts that JSON is made of: strings, times and
// tokens. The journal's lines and pbjson share it, so that there is one way to write a string
// and one to read it. It knows no message and no schema.
package jsontext

import (
	"time"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// plain has true for the ASCII bytes that need no escape in a JSON string. Bytes of multi-byte runes
// need none either, but are not among them, because they must be checked to be UTF-8.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf
	}
	return t
}()

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD, as in
// encoding/json.
func AppendString(dst []byte, s string) []byte {
	dst, _ = AppendValid(dst, s)
	return dst
}

// AppendValid appends as AppendString does, and reports whether all of s was UTF-8.
func AppendValid(dst []byte, s string) (_ []byte, valid bool) {
	dst, valid = append(dst, '"'), true
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			dst = append(append(dst, s[start:i]...), "\ufffd"...)
			valid = false
			i += n
			start = i
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"'), valid
}

// timeLayout is how times are written: RFC 3339 in UTC with microseconds.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// AppendTime appends t as a JSON string in UTC with microseconds. It is hand-written because
// t.AppendFormat costs three times as much.
func AppendTime(dst []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(dst, `"`+timeLayout+`"`)
	}
	hour, minute, second := t.Clock()
	dst = appendDigits(append(dst, '"'), year, 4)
	dst = appendDigits(append(dst, '-'), int(month), 2)
	dst = appendDigits(append(dst, '-'), day, 2)
	dst = appendDigits(append(dst, 'T'), hour, 2)
	dst = appendDigits(append(dst, ':'), minute, 2)
	dst = appendDigits(append(dst, ':'), second, 2)
	dst = appendDigits(append(dst, '.'), t.Nanosecond()/1000, 6)
	return append(dst, 'Z', '"')
}

func appendDigits(dst []byte, v, width int) []byte {
	var b [8]byte
	for i := width - 1; i >= 0; i-- {
		b[i] = byte('0' + v%10)
		v /= 10
	}
	return append(dst, b[:width]...)
}

// ParseTime parses an RFC 3339 time. It parses the form that AppendTime writes by hand, six times as
// fast as time.Parse does, and other forms with time.Parse, which keeps their offset and nanoseconds.
func ParseTime(s []byte) (time.Time, error) {
	const form = "0000-00-00T00:00:00.000000Z"
	if len(s) != len(form) {
		return time.Parse(time.RFC3339Nano, string(s))
	}
	for i := range form {
		if form[i] == '0' {
			if s[i] < '0' || s[i] > '9' {
				return time.Parse(time.RFC3339Nano, string(s))
			}
		} else if s[i] != form[i] {
			return time.Parse(time.RFC3339Nano, string(s))
		}
	}
	n := func(from, to int) int {
		v := 0
		for _, c := range s[from:to] {
			v = v*10 + int(c-'0')
		}
		return v
	}
	year, month, day := n(0, 4), n(5, 7), n(8, 10)
	hour, minute, second := n(11, 13), n(14, 16), n(17, 19)
	t := time.Date(year, time.Month(month), day, hour, minute, second, n(20, 26)*1000, time.UTC)
	if month < 1 || month > 12 || hour > 23 || minute > 59 || second > 59 || t.Day() != day {
		return time.Parse(time.RFC3339Nano, string(s)) // for its error
	}
	return t, nil
}
