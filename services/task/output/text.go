package output

import (
	"strings"
	"unicode/utf8"
)

// EndText returns the end of a piece as text of at most limit bytes. An incomplete
// character at its beginning is left out.
func EndText(p Piece, limit int) string {
	b, _ := Join(p)
	if p.Start > 0 {
		b = b[LeadingBytes(b):]
	}
	text := strings.ToValidUTF8(string(b), "\uFFFD")
	if over := len(text) - limit; over > 0 { // U+FFFD is longer than the bytes that it replaces
		text = text[over:]
		text = text[LeadingBytes([]byte(text)):]
	}
	return text
}

// LeadingBytes returns how many bytes at the beginning belong to a character that began
// before b.
func LeadingBytes(b []byte) int {
	n := 0
	for n < len(b) && n < utf8.UTFMax-1 && !utf8.RuneStart(b[n]) {
		n++
	}
	return n
}

// ToText converts bytes to text, with U+FFFD for what is not UTF-8.
func ToText(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
