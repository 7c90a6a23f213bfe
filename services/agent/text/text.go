// Package text shortens texts for people and names enum values.
package text

import (
	"strings"
	"unicode/utf8"
)

// shortened cuts a text at n bytes, between characters.
func Shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

func EnumName(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

const SummaryChars = 120

// cutLine folds text into one line of at most n characters.
func Line(s string, n int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}
