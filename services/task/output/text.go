package output

import (
	"strings"
	"unicode/utf8"
)

// EndText is the end of an output as text of at most limit bytes. A piece that
// begins inside a character begins with the next one.
func EndText(p Piece, limit int) string {
	b, _ := Join(p)
	if p.Start > 0 {
		b = b[LeadingBytes(b):]
	}
	text := strings.ToValidUTF8(string(b), "\uFFFD")
	if over := len(text) - limit; over > 0 { // U+FFFD is longer than what it stands for
		text = text[over:]
		text = text[LeadingBytes([]byte(text)):]
	}
	return text
}

// LeadingBytes counts the bytes at the beginning that belong to a character that
// began earlier.
func LeadingBytes(b []byte) int {
	n := 0
	for n < len(b) && n < utf8.UTFMax-1 && !utf8.RuneStart(b[n]) {
		n++
	}
	return n
}

// TrailingBytes counts the bytes at the end that begin a character without ending it.
func TrailingBytes(b []byte) int {
	for n := 1; n <= len(b) && n < utf8.UTFMax; n++ {
		c := b[len(b)-n]
		if !utf8.RuneStart(c) {
			continue
		}
		if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
			return n
		}
		return 0
	}
	return 0
}

// ToText shows bytes as text: what is not UTF-8 becomes U+FFFD.
func ToText(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
