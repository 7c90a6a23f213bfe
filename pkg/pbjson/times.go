package pbjson

import (
	"errors"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/jsontext"
)

// wellKnown reads a well-known type into m.
func (d *decoder) wellKnown(m protoreflect.Message, s shape, depth int) error {
	switch s {
	case timestamp:
		return fill(m, &timestamppb.Timestamp{}, d.timestamp)
	case duration:
		return fill(m, &durationpb.Duration{}, d.duration)
	case structure:
		if d.Peek() != '{' {
			return d.wrongType("must be an object")
		}
		return fill(m, &structpb.Struct{}, func(v *structpb.Struct) error { return d.structure(v, depth) })
	case listValue:
		if d.Peek() != '[' {
			return d.wrongType("must be a list")
		}
		return fill(m, &structpb.ListValue{}, func(v *structpb.ListValue) error { return d.values(v, depth) })
	case plain, anyValue: // s is never plain: the decoder reads such a message field by field
	}
	return fill(m, &structpb.Value{}, func(v *structpb.Value) error {
		got, err := d.any(depth)
		if err == nil {
			v.Kind = got.GetKind()
		}
		return err
	})
}

// fill calls read with m if m is of the generated type M. Otherwise, as for a dynamic message, it calls
// read with spare, and then copies spare to m through the wire format.
func fill[M proto.Message](m protoreflect.Message, spare M, read func(M) error) error {
	if own, ok := m.Interface().(M); ok {
		return read(own)
	}
	if err := read(spare); err != nil {
		return err
	}
	raw, err := proto.Marshal(spare)
	if err != nil {
		return err
	}
	return proto.Unmarshal(raw, m.Interface())
}

func (d *decoder) timestamp(v *timestamppb.Timestamp) error {
	const must = "must be an RFC 3339 time such as 2026-01-02T03:04:05Z"
	if d.Peek() != '"' {
		return d.wrongType(must)
	}
	start := d.Pos
	s, err := d.Str()
	if err != nil {
		return err
	}
	t, err := jsontext.ParseTime(s)
	if err != nil {
		return d.invalid(start, must)
	}
	v.Seconds, v.Nanos = t.Unix(), int32(t.Nanosecond())
	if v.Seconds < minSeconds || v.Seconds > maxSeconds {
		return d.invalid(start, "must be within the years 1 to 9999")
	}
	return nil
}

func (d *decoder) duration(v *durationpb.Duration) error {
	const must = `must be seconds such as "1.5s"`
	if d.Peek() != '"' {
		return d.wrongType(must)
	}
	start := d.Pos
	s, err := d.Str()
	if err != nil {
		return err
	}
	text, ok := strings.CutSuffix(string(s), "s")
	if !ok {
		return d.invalid(start, must)
	}
	text, negative := strings.CutPrefix(text, "-")
	whole, part, _ := strings.Cut(text, ".")
	seconds, err := strconv.ParseUint(whole, 10, 63)
	long := errors.Is(err, strconv.ErrRange) || err == nil && seconds > maxDuration
	if err != nil && !long || len(part) > 9 || strings.HasSuffix(text, ".") {
		return d.invalid(start, must)
	}
	nanos, err := strconv.ParseUint(part+strings.Repeat("0", 9-len(part)), 10, 31)
	if err != nil {
		return d.invalid(start, must)
	}
	if long {
		return d.tooLong(start)
	}
	v.Seconds, v.Nanos = int64(seconds), int32(nanos)
	if negative {
		v.Seconds, v.Nanos = -v.Seconds, -v.Nanos
	}
	return nil
}

// tooLong returns the error for a duration that the message type cannot represent; the value begins at
// start and ends at the current position. Services check the limits of their own fields.
func (d *decoder) tooLong(start int) error {
	value := clip(string(d.In[start+1 : d.Pos-1]))
	const must = "must be at most 315576000000s (10000 years)"
	return &badField{
		reason: fault.LimitExceeded, text: "is " + value + ", which is too long a duration: it " + must,
		must: must, value: value, limit: "315576000000s",
	}
}

func (d *decoder) structure(v *structpb.Struct, depth int) error {
	if depth > maxDepth {
		return d.Fail("values nested deeper than 100 levels")
	}
	d.Pos++
	v.Fields = map[string]*structpb.Value{}
	for first := true; ; first = false {
		more, err := d.Next('}', first)
		if err != nil || !more {
			return err
		}
		raw, err := d.Str()
		if err != nil {
			return err
		}
		key := string(raw)
		if _, twice := v.Fields[key]; twice {
			return in("["+strconv.Quote(clip(key))+"]", &badField{
				reason: fault.InvalidArgument,
				text:   "is given twice", must: "must be given once",
			})
		}
		if err := d.Expect(':'); err != nil {
			return err
		}
		if v.Fields[key], err = d.any(depth + 1); err != nil {
			return err
		}
	}
}

func (d *decoder) values(v *structpb.ListValue, depth int) error {
	if depth > maxDepth {
		return d.Fail("values nested deeper than 100 levels")
	}
	d.Pos++
	for first := true; ; first = false {
		more, err := d.Next(']', first)
		if err != nil || !more {
			return err
		}
		element, err := d.any(depth + 1)
		if err != nil {
			return err
		}
		v.Values = append(v.Values, element)
	}
}

func (d *decoder) any(depth int) (*structpb.Value, error) {
	switch d.Peek() {
	case 'n':
		return structpb.NewNullValue(), d.Literal("null")
	case 't':
		return structpb.NewBoolValue(true), d.Literal("true")
	case 'f':
		return structpb.NewBoolValue(false), d.Literal("false")
	case '"':
		s, err := d.Str()
		return structpb.NewStringValue(string(s)), err
	case '{':
		v := &structpb.Struct{}
		return structpb.NewStructValue(v), d.structure(v, depth)
	case '[':
		v := &structpb.ListValue{}
		return structpb.NewListValue(v), d.values(v, depth)
	}
	start := d.Pos
	text, _, err := d.Number()
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return nil, d.invalid(start, "must be within the range of a 64-bit number")
	}
	return structpb.NewNumberValue(n), nil
}
