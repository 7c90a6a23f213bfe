// Package text shortens texts for people and names enum values.
package text

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/utf8cut"
)

// Shorten returns a text of at most n bytes unchanged. It cuts a longer one after at most n
// bytes, between characters, and appends "…", which n does not include.
func Shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return utf8cut.Bytes(text, n) + "…"
}

// EnumName returns the name of an enum value in lower case without the prefix of its type, ""
// for the zero value, and the number of an unknown value.
func EnumName(e protoreflect.Enum) string {
	if e.Number() == 0 {
		return ""
	}
	values := e.Descriptor().Values()
	v := values.ByNumber(e.Number())
	if v == nil {
		return strconv.Itoa(int(e.Number()))
	}
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}

// SummaryChars is how many characters of a text a summary has.
const SummaryChars = 120

// Line folds a text into one line of at most n characters.
func Line(s string, n int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}
