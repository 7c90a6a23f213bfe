package pbjson

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

func (d *decoder) scalar(f *field) (protoreflect.Value, error) {
	switch f.kind {
	case protoreflect.StringKind:
		if d.Peek() != '"' {
			return protoreflect.Value{}, d.wrongType("must be a string")
		}
		s, err := d.Str()
		return protoreflect.ValueOfString(string(s)), err
	case protoreflect.EnumKind:
		n, err := d.enum(f.enum)
		return protoreflect.ValueOfEnum(n), err
	case protoreflect.BoolKind:
		switch d.Peek() {
		case 't':
			return protoreflect.ValueOfBool(true), d.Literal("true")
		case 'f':
			return protoreflect.ValueOfBool(false), d.Literal("false")
		}
		return protoreflect.Value{}, d.wrongType("must be true or false")
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		n, err := d.integer(math.MinInt32, math.MaxInt32)
		return protoreflect.ValueOfInt32(int32(n)), err
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		n, err := d.integer(math.MinInt64, math.MaxInt64)
		return protoreflect.ValueOfInt64(n), err
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		n, err := d.natural(math.MaxUint32)
		return protoreflect.ValueOfUint32(uint32(n)), err
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		n, err := d.natural(math.MaxUint64)
		return protoreflect.ValueOfUint64(n), err
	case protoreflect.FloatKind:
		v, err := d.float(32)
		return protoreflect.ValueOfFloat32(float32(v)), err
	case protoreflect.DoubleKind:
		v, err := d.float(64)
		return protoreflect.ValueOfFloat64(v), err
	case protoreflect.BytesKind:
		return d.bytes()
	}
	return protoreflect.Value{}, d.wrongType("must not be given: its type has no JSON form")
}

func (d *decoder) enum(e *enum) (protoreflect.EnumNumber, error) {
	switch c := d.Peek(); {
	case c == '"':
		start := d.Pos
		s, err := d.Str()
		if err != nil {
			return 0, err
		}
		n, ok := e.number[string(s)]
		if !ok {
			return 0, d.invalid(start, "must be one of "+e.allowed)
		}
		return n, nil
	case c == '-' || c >= '0' && c <= '9':
		// Append writes a number for a value that this version does not know.
		n, err := d.integer(math.MinInt32, math.MaxInt32)
		return protoreflect.EnumNumber(n), err
	}
	return 0, d.wrongType("must be one of " + e.allowed)
}

// integer reads an integer. It accepts 5.0 and 1e3, because models write them.
func (d *decoder) integer(low, high int64) (int64, error) {
	if d.quotedIntegers && low == math.MinInt64 && d.Peek() == '"' {
		start := d.Pos
		s, err := d.Str()
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(string(s), 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != string(s) {
			return 0, d.invalid(start, within(low, high))
		}
		return n, nil
	}
	if c := d.Peek(); c != '-' && (c < '0' || c > '9') {
		return 0, d.wrongType(within(low, high))
	}
	start := d.Pos
	text, whole, err := d.Number()
	if err != nil {
		return 0, err
	}
	n, ok := small(text)
	if !ok {
		if whole {
			n, err = strconv.ParseInt(string(text), 10, 64)
		} else {
			n, err = wholeFloat(text)
		}
	}
	if err != nil || n < low || n > high {
		return 0, d.invalid(start, within(low, high))
	}
	return n, nil
}

func within(low, high int64) string {
	return "must be a whole number from " + strconv.FormatInt(low, 10) + " to " + strconv.FormatInt(high, 10)
}

func (d *decoder) natural(high uint64) (uint64, error) {
	if d.quotedIntegers && high == math.MaxUint64 && d.Peek() == '"' {
		start := d.Pos
		s, err := d.Str()
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseUint(string(s), 10, 64)
		if err != nil || strconv.FormatUint(n, 10) != string(s) {
			return 0, d.invalid(start, "must be a whole number from 0 to "+strconv.FormatUint(high, 10))
		}
		return n, nil
	}
	if c := d.Peek(); c != '-' && (c < '0' || c > '9') {
		return 0, d.wrongType("must be a whole number from 0 to " + strconv.FormatUint(high, 10))
	}
	start := d.Pos
	text, whole, err := d.Number()
	if err != nil {
		return 0, err
	}
	var n uint64
	if v, ok := small(text); ok && v >= 0 {
		n = uint64(v)
	} else if whole {
		n, err = strconv.ParseUint(string(text), 10, 64)
	} else if v, err = wholeFloat(text); err == nil && v < 0 {
		err = strconv.ErrRange
	} else {
		n = uint64(v)
	}
	if err != nil || n > high {
		return 0, d.invalid(start, "must be a whole number from 0 to "+strconv.FormatUint(high, 10))
	}
	return n, nil
}

// small parses a number of up to 18 digits without fraction or exponent, without an allocation. It returns false for
// any other number. The caller must have checked that text is a number of JSON.
func small(text []byte) (int64, bool) {
	digits, negative := text, false
	if digits[0] == '-' {
		digits, negative = digits[1:], true
	}
	if len(digits) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}

// wholeFloat parses an integer that is written as a float, if a float64 represents it exactly.
func wholeFloat(text []byte) (int64, error) {
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, err
	}
	if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		return 0, strconv.ErrRange
	}
	return int64(v), nil
}

func (d *decoder) float(bits int) (float64, error) {
	const must = `must be a number, "NaN", "Infinity" or "-Infinity"`
	c := d.Peek()
	start := d.Pos
	if c == '"' {
		s, err := d.Str()
		if err != nil {
			return 0, err
		}
		switch string(s) {
		case "NaN":
			return math.NaN(), nil
		case "Infinity":
			return math.Inf(1), nil
		case "-Infinity":
			return math.Inf(-1), nil
		}
		return 0, d.invalid(start, must)
	}
	if c != '-' && (c < '0' || c > '9') {
		return 0, d.wrongType(must)
	}
	text, _, err := d.Number()
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(string(text), bits)
	if err != nil {
		return 0, d.invalid(start, "must be within the range of a "+strconv.Itoa(bits)+"-bit number")
	}
	return v, nil
}

// bytes reads base64 in the standard or the URL alphabet, with or without padding.
func (d *decoder) bytes() (protoreflect.Value, error) {
	const must = "must be base64"
	if d.Peek() != '"' {
		return protoreflect.Value{}, d.wrongType(must)
	}
	start := d.Pos
	s, err := d.Str()
	if err != nil {
		return protoreflect.Value{}, err
	}
	text := strings.TrimRight(string(s), "=")
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(text, "-_") {
		encoding = base64.RawURLEncoding
	}
	raw, err := encoding.DecodeString(text)
	if err != nil {
		return protoreflect.Value{}, d.invalid(start, must)
	}
	return protoreflect.ValueOfBytes(raw), nil
}
