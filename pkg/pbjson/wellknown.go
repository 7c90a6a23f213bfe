package pbjson

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/jsontext"
)

const (
	minSeconds  = -62135596800 // 0001-01-01T00:00:00Z
	maxSeconds  = 253402300799 // 9999-12-31T23:59:59Z
	maxDuration = 315576000000 // seconds; 10 000 years, as in ProtoJSON
	maxDepth    = 100          // of nesting: deeper is an attack, not a message
)

// Timestamp returns t truncated to microseconds, which pbjson writes without loss.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	return timestamppb.New(t.Truncate(time.Microsecond))
}

// concrete returns m as the generated type M. If m is of another Go type, as a dynamic message is, it copies
// m to into through the wire format and returns into.
func concrete[M proto.Message](m protoreflect.Message, into M) (M, error) {
	if typed, ok := m.Interface().(M); ok {
		return typed, nil
	}
	raw, err := proto.Marshal(m.Interface())
	if err != nil {
		return into, err
	}
	return into, proto.Unmarshal(raw, into)
}

func appendWellKnown(b []byte, m protoreflect.Message, s shape, depth int) ([]byte, error) {
	switch s {
	case timestamp:
		v, err := concrete(m, &timestamppb.Timestamp{})
		if err != nil {
			return nil, err
		}
		return appendTimestamp(b, v.GetSeconds(), v.GetNanos())
	case duration:
		v, err := concrete(m, &durationpb.Duration{})
		if err != nil {
			return nil, err
		}
		return appendDuration(b, v.GetSeconds(), v.GetNanos())
	case structure:
		v, err := concrete(m, &structpb.Struct{})
		if err != nil {
			return nil, err
		}
		return appendStruct(b, v, depth)
	case listValue:
		v, err := concrete(m, &structpb.ListValue{})
		if err != nil {
			return nil, err
		}
		return appendListValue(b, v, depth)
	default:
		v, err := concrete(m, &structpb.Value{})
		if err != nil {
			return nil, err
		}
		return appendAny(b, v, depth)
	}
}

func appendTimestamp(b []byte, seconds int64, nanos int32) ([]byte, error) {
	if seconds < minSeconds || seconds > maxSeconds || nanos < 0 || nanos > 999_999_999 {
		return nil, fmt.Errorf("timestamp %d s %d ns is not valid: years 1 to 9999, nanoseconds 0 to 999999999",
			seconds, nanos)
	}
	return jsontext.AppendTime(b, time.Unix(seconds, int64(nanos))), nil
}

func digit(n int) byte { return byte('0' + n%10) }

func appendDuration(b []byte, seconds int64, nanos int32) ([]byte, error) {
	if seconds < -maxDuration || seconds > maxDuration || nanos < -999_999_999 || nanos > 999_999_999 ||
		seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0 {
		return nil, fmt.Errorf("duration %d s %d ns is not valid", seconds, nanos)
	}
	b = append(b, '"')
	if seconds < 0 || nanos < 0 {
		b = append(b, '-')
		seconds, nanos = -seconds, -nanos
	}
	b = strconv.AppendInt(b, seconds, 10)
	if nanos != 0 { // 3, 6 or 9 decimals
		n, width := int(nanos), 9
		for n%1000 == 0 {
			n, width = n/1000, width-3
		}
		b = append(b, '.')
		for pow := int(math.Pow10(width - 1)); pow > 0; pow /= 10 {
			b = append(b, digit(n/pow))
		}
	}
	return append(b, 's', '"'), nil
}

var errDeep = errors.New("nested deeper than 100 levels")

func appendStruct(b []byte, s *structpb.Struct, depth int) (_ []byte, err error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	fields := s.GetFields()
	keys := make([]string, 0, len(fields))
	for k := range fields {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendString(b, k); err != nil {
			return nil, err
		}
		b = append(b, ':')
		if b, err = appendAny(b, fields[k], depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendListValue(b []byte, l *structpb.ListValue, depth int) (_ []byte, err error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	b = append(b, '[')
	for i, v := range l.GetValues() {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendAny(b, v, depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendAny(b []byte, v *structpb.Value, depth int) ([]byte, error) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return appendString(b, k.StringValue)
	case *structpb.Value_NumberValue:
		if math.IsNaN(k.NumberValue) || math.IsInf(k.NumberValue, 0) {
			return nil, fmt.Errorf("number %v has no JSON form", k.NumberValue)
		}
		return appendFloat(b, k.NumberValue, 64), nil
	case *structpb.Value_BoolValue:
		return strconv.AppendBool(b, k.BoolValue), nil
	case *structpb.Value_StructValue:
		return appendStruct(b, k.StructValue, depth)
	case *structpb.Value_ListValue:
		return appendListValue(b, k.ListValue, depth)
	default: // null, and a Value with nothing in it
		return append(b, "null"...), nil
	}
}
