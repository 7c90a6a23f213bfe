package fault

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"quartet/pkg/utf8cut"
)

// The limits of names, texts, lists and requests (SPEC X8). Chars are Unicode code points, and Entries
// the entries of a list.
const (
	MaxNameChars      = 128
	MaxRequestIDChars = 128
	MaxObjectiveChars = 2000
	MaxFreeTextBytes  = 16 << 10
	MaxTodoTextChars  = 1000
	MaxTodoEntries    = 200
	MaxMessageBytes   = 256 << 10
	MaxRoundTextBytes = 256 << 10
	MaxRequestBytes   = 4 << 20
)

// The validators return error rather than *Error, because a nil *Error in an error variable is
// not nil.

// Name checks a caller-supplied name or id: [a-z0-9][a-z0-9_-]{0,127}.
func Name(field, s string) error {
	if s == "" {
		return missing(field)
	}
	if n := utf8.RuneCountInString(s); n > MaxNameChars {
		return over(field, "chars", MaxNameChars, n)
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '-'):
		default:
			return invalid(field, s, "must match [a-z0-9][a-z0-9_-]{0,127}")
		}
	}
	return nil
}

// idAlphabet is Crockford's base 32 in lower case, as in pkg/id.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// ID checks the form of an id that Quartet generated: prefix, such as "wi_", and 26
// characters of idAlphabet. An empty id is refused as missing.
func ID(field, s, prefix string) error {
	if s == "" {
		return missing(field)
	}
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != 26 {
		return invalid(field, s, "must be "+prefix+" followed by 26 characters of lower-case Crockford base 32")
	}
	for i := range len(rest) {
		if strings.IndexByte(idAlphabet, rest[i]) < 0 {
			return invalid(field, s, "must be "+prefix+" followed by 26 characters of lower-case Crockford base 32")
		}
	}
	return nil
}

// Text checks text whose length is limited in code points. Invalid UTF-8 and NUL are refused,
// because neither passes through JSON, terminals and prompts unchanged.
func Text(field, s string, maxChars int, required bool) error {
	if s == "" {
		if required {
			return missing(field)
		}
		return nil
	}
	if err := clean(field, s); err != nil {
		return err
	}
	if len(s) <= maxChars { // a rune is at least a byte
		return nil
	}
	if n := utf8.RuneCountInString(s); n > maxChars {
		return over(field, "chars", maxChars, n)
	}
	return nil
}

// TextBytes checks text whose length is limited in bytes, such as messages.
func TextBytes(field, s string, maxBytes int, required bool) error {
	if s == "" {
		if required {
			return missing(field)
		}
		return nil
	}
	if err := clean(field, s); err != nil {
		return err
	}
	return Bytes(field, len(s), maxBytes)
}

// Bytes returns LIMIT_EXCEEDED if n, a size in bytes, is above maxBytes.
func Bytes(field string, n, maxBytes int) error {
	if n > maxBytes {
		return over(field, "bytes", maxBytes, n)
	}
	return nil
}

// Entries returns LIMIT_EXCEEDED if n, the length of a list, is above maxEntries.
func Entries(field string, n, maxEntries int) error {
	if n > maxEntries {
		return over(field, "entries", maxEntries, n)
	}
	return nil
}

// RequestID checks a request_id. It may be empty, and then the request cannot be repeated safely
// (SPEC X2).
func RequestID(s string) error {
	return Text("request_id", s, MaxRequestIDChars, false)
}

// Invalid returns an INVALID_ARGUMENT about one field, with its value and what it must be.
func Invalid(field, value, must string) *Error { return invalid(field, value, must) }

func clean(field, s string) error {
	if !utf8.ValidString(s) {
		return InvalidArgument.New(field+" is not valid UTF-8", "field", field).
			WithField(field, "must be valid UTF-8")
	}
	if i := strings.IndexByte(s, 0); i >= 0 {
		return InvalidArgument.New(field+" has a NUL character at byte "+strconv.Itoa(i), "field", field).
			WithField(field, "must not contain NUL")
	}
	return nil
}

func missing(field string) *Error {
	return InvalidArgument.New(field+" is required", "field", field).WithField(field, "is required")
}

func invalid(field, value, must string) *Error {
	shown := strconv.Quote(clip(value))
	return InvalidArgument.New(field+" "+shown+" "+must, "field", field, "value", clip(value)).
		WithField(field, must)
}

func over(field, unit string, limit, value int) *Error {
	l, v := strconv.Itoa(limit), strconv.Itoa(value)
	return LimitExceeded.New(field+" has "+v+" "+unit+", the limit is "+l,
		"field", field, "limit", l, "value", v, "unit", unit).
		WithField(field, "at most "+l+" "+unit)
}

// clip shortens an offending value for a message.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return utf8cut.Bytes(s, most) + "…"
}

// Horizon is how far in the future a time may be. A later one is most likely a mistake in units,
// and adding durations to it could overflow.
const Horizon = 100 * 365 * 24 * time.Hour

// Ahead returns LIMIT_EXCEEDED if at is more than Horizon after now.
func Ahead(field string, now, at time.Time) error {
	if end := now.Add(Horizon); at.After(end) {
		value := at.Format(time.RFC3339)
		return LimitExceeded.Newf("%s is %s; it must be at most 100 years ahead, before %s", field, value,
			end.Format(time.RFC3339)).
			With("field", field).With("value", value).WithField(field, "must be at most 100 years ahead")
	}
	return nil
}

// First returns the first of errs that is not nil, or nil. Handlers use it because a request is refused for
// one reason: that of the first check that fails.
func First(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// NotBlank checks that text is not blank: it may be empty, or must contain something other than
// white space.
func NotBlank(field, s string) error {
	if s != "" && strings.TrimSpace(s) == "" {
		return invalid(field, s, "must hold more than blanks")
	}
	return nil
}
