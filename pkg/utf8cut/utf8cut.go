// Package utf8cut shortens UTF-8 text without splitting a character.
package utf8cut

import (
	"strings"
	"unicode/utf8"
)

// Bytes returns the longest prefix of s that has at most n bytes and does not end within
// a character. A negative n counts as 0. If s is not valid UTF-8, the prefix may be shorter.
func Bytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n = max(n, 0)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Chars returns the first n characters of s, or s if it has no more. A byte that is not
// UTF-8 counts as a character.
func Chars(s string, n int) string {
	for i := range s {
		if n <= 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// Partial returns how many bytes at the end of b, 0 to 3, are the beginning of a character
// that is not complete. Bytes that cannot begin a character are not counted.
func Partial(b []byte) int {
	for n := 1; n <= len(b) && n < utf8.UTFMax; n++ {
		at := len(b) - n
		if !utf8.RuneStart(b[at]) {
			continue
		}
		if utf8.FullRune(b[at:]) {
			return 0
		}
		return n
	}
	return 0
}

// Shorten returns a text of at most n bytes unchanged. It cuts a longer one after at most n
// bytes, between characters, and appends "…", which n does not include.
func Shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return Bytes(text, n) + "…"
}

// Line folds a text into one line of at most n characters, of which the last is "…" if it was longer.
func Line(s string, n int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}
