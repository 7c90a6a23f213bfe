package pbjson

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/jsontext"
)

// Append appends m to dst. It returns an error only for what the form cannot represent: a
// timestamp outside the years 1 to 9999, a duration that is not valid, text that is not UTF-8,
// NaN or an infinity inside a Value, more than 100 levels of nesting. dst is then returned
// unchanged.
func Append(dst []byte, m proto.Message) ([]byte, error) {
	r := m.ProtoReflect()
	out, err := appendMessage(dst, r, planOf(r.Descriptor()), 0)
	if err != nil {
		return dst, fmt.Errorf("pbjson: %s: %w", r.Descriptor().FullName(), err)
	}
	return out, nil
}

func appendMessage(b []byte, m protoreflect.Message, p *plan, depth int) (_ []byte, err error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	if p.shape != plain {
		return appendWellKnown(b, m, p.shape, depth)
	}
	b = append(b, '{')
	first := true
	for _, f := range p.fields {
		if !m.Has(f.fd) {
			continue
		}
		b = begin(b, f, first)
		first = false
		v := m.Get(f.fd)
		switch {
		case f.value != nil:
			b, err = appendMap(b, v.Map(), f, depth)
		case f.fd.IsList():
			b, err = appendList(b, v.List(), f, depth)
		default:
			b, err = appendValue(b, v, f, depth)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return append(b, '}'), nil
}

func appendList(b []byte, l protoreflect.List, f *field, depth int) (_ []byte, err error) {
	b = append(b, '[')
	for i := range l.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValue(b, l.Get(i), f, depth); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, m protoreflect.Map, f *field, depth int) (_ []byte, err error) {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	for k := range m.Range {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y protoreflect.MapKey) int { return compareKeys(f.mapKey, x, y) })
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		if f.mapKey == protoreflect.StringKind {
			if b, err = appendString(b, k.String()); err != nil {
				return nil, err
			}
		} else { // integers and booleans are quoted as keys
			b = append(b, '"')
			b = append(b, k.Value().String()...)
			b = append(b, '"')
		}
		b = append(b, ':')
		if b, err = appendValue(b, m.Get(k), f.value, depth); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func compareKeys(kind protoreflect.Kind, x, y protoreflect.MapKey) int {
	switch kind {
	case protoreflect.StringKind:
		return cmp.Compare(x.String(), y.String())
	case protoreflect.BoolKind:
		return cmp.Compare(x.Value().String(), y.Value().String())
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return cmp.Compare(x.Uint(), y.Uint())
	default:
		return cmp.Compare(x.Int(), y.Int())
	}
}

func appendValue(b []byte, v protoreflect.Value, f *field, depth int) ([]byte, error) {
	switch f.kind {
	case protoreflect.StringKind:
		return appendString(b, v.String())
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(b, v.Message(), f.msg, depth+1)
	case protoreflect.EnumKind:
		return f.enum.append(b, v.Enum()), nil
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool()), nil
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind,
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return strconv.AppendInt(b, v.Int(), 10), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return strconv.AppendUint(b, v.Uint(), 10), nil
	case protoreflect.FloatKind:
		return appendFloat(b, v.Float(), 32), nil
	case protoreflect.DoubleKind:
		return appendFloat(b, v.Float(), 64), nil
	case protoreflect.BytesKind:
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, v.Bytes())
		return append(b, '"'), nil
	}
	return nil, fmt.Errorf("kind %v has no JSON form", f.kind)
}

func appendFloat(b []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(b, `"-Infinity"`...)
	}
	// Integers up to 2^53 are written without an exponent, so that a Value of 3 is written
	// as 3; other numbers in the shortest form that parses to the same value.
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 && (v != 0 || !math.Signbit(v)) {
		return strconv.AppendInt(b, int64(v), 10)
	}
	format := byte('f')
	if a := math.Abs(v); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(b, v, format, -1, bits)
}

// appendString appends s as a JSON string. It returns an error if s is not UTF-8.
func appendString(b []byte, s string) ([]byte, error) {
	b, valid := jsontext.AppendValid(b, s)
	if !valid {
		return nil, fmt.Errorf("text is not UTF-8: %q", clip(s))
	}
	return b, nil
}

// clip shortens text to at most 80 bytes for an error message. It may cut within a character.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80]
	}
	return s
}

// begin appends what precedes the value of a field: a comma, except before the first, and the
// key.
func begin(b []byte, f *field, first bool) []byte {
	if !first {
		b = append(b, ',')
	}
	return append(b, f.key...)
}
