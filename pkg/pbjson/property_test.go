package pbjson

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/typepb"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
	"quartet/pkg/must"
)

// fillRandom sets random fields of m, to depth levels.
func fillRandom(t *rapid.T, m protoreflect.Message, depth int) {
	fds := m.Descriptor().Fields()
	for i := range fds.Len() {
		fd := fds.Get(i)
		if fd.Message() != nil && depth == 0 || !rapid.Bool().Draw(t, "has") {
			continue
		}
		switch {
		case fd.IsMap():
			for range rapid.IntRange(1, 3).Draw(t, "n") {
				key := randomValue(t, m, fd.MapKey(), depth-1).MapKey()
				v := m.Mutable(fd).Map().NewValue()
				if fd.MapValue().Message() != nil {
					fillMessage(t, v.Message(), depth-1)
				} else {
					v = randomValue(t, m, fd.MapValue(), depth-1)
				}
				m.Mutable(fd).Map().Set(key, v)
			}
		case fd.IsList():
			l := m.Mutable(fd).List()
			for range rapid.IntRange(1, 3).Draw(t, "n") {
				if fd.Message() != nil {
					fillMessage(t, l.AppendMutable().Message(), depth-1)
				} else {
					l.Append(randomValue(t, m, fd, depth-1))
				}
			}
		case fd.Message() != nil:
			fillMessage(t, m.Mutable(fd).Message(), depth-1)
		default:
			m.Set(fd, randomValue(t, m, fd, depth-1))
		}
	}
}

func fillMessage(t *rapid.T, m protoreflect.Message, depth int) {
	var known proto.Message
	switch m.Descriptor().FullName() {
	case "google.protobuf.Timestamp":
		known = &timestamppb.Timestamp{
			Seconds: rapid.Int64Range(minSeconds, maxSeconds).Draw(t, "s"),
			Nanos:   rapid.Int32Range(0, 999_999).Draw(t, "us") * 1000,
		}
	case "google.protobuf.Duration":
		d := &durationpb.Duration{
			Seconds: rapid.Int64Range(-maxDuration, maxDuration).Draw(t, "s"),
			Nanos:   rapid.Int32Range(0, 999_999_999).Draw(t, "ns"),
		}
		if d.Seconds < 0 {
			d.Nanos = -d.Nanos
		}
		known = d
	case "google.protobuf.Value":
		known = randomAny(t, max(depth, 0))
	case "google.protobuf.Struct":
		known = &structpb.Struct{
			Fields: map[string]*structpb.Value{rapid.String().Draw(t, "k"): randomAny(t, max(depth, 0))},
		}
	case "google.protobuf.ListValue":
		known = &structpb.ListValue{Values: []*structpb.Value{randomAny(t, max(depth, 0))}}
	default:
		fillRandom(t, m, max(depth, 0))
		return
	}
	require.NoError(t, proto.Unmarshal(must.Value(proto.Marshal(known))(t), m.Interface()))
}

func randomAny(t *rapid.T, depth int) *structpb.Value {
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		return structpb.NewNullValue()
	case 1:
		return structpb.NewBoolValue(rapid.Bool().Draw(t, "b"))
	case 2:
		return structpb.NewNumberValue(rapid.Float64().Draw(t, "f"))
	case 3:
		if depth > 0 {
			return structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{randomAny(t, depth-1)}})
		}
	case 4:
		if depth > 0 {
			return structpb.NewStructValue(&structpb.Struct{
				Fields: map[string]*structpb.Value{rapid.String().Draw(t, "k"): randomAny(t, depth-1)},
			})
		}
	}
	return structpb.NewStringValue(rapid.String().Draw(t, "s"))
}

func randomValue(t *rapid.T, _ protoreflect.Message, fd protoreflect.FieldDescriptor, _ int) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, "s"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "b"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "b"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32().Draw(t, "e")))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "i"))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, "i"))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, "u"))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, "u"))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(rapid.OneOf(rapid.Float32(), rapid.Just(float32(math.Inf(1)))).Draw(t, "f"))
	default:
		return protoreflect.ValueOfFloat64(rapid.OneOf(rapid.Float64(), rapid.Just(math.NaN())).Draw(t, "f"))
	}
}

func TestWrittenThenReadIsTheSame(t *testing.T) {
	for name, fresh := range map[string]func() proto.Message{
		"dynamic":   newEverything,
		"generated": func() proto.Message { return &typepb.Type{} },
		"request":   func() proto.Message { return sample().ProtoReflect().New().Interface() },
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := fresh()
				fillRandom(t, m.ProtoReflect(), 3)
				first := must.Value(Append(nil, m))(t)
				require.True(t, json.Valid(first), "%s", first)
				back := fresh()
				require.NoError(t, Unmarshal(first, back), "%s", first)
				require.True(t, proto.Equal(m, back), "%s", first)
				require.Equal(t, string(first), string(must.Value(Append(nil, back))(t)))
			})
		})
	}
}

// FuzzUnmarshal: reading never panics, refuses only with its three reasons,
// accepts nothing that encoding/json refuses, and what it accepts is written
// and read again unchanged.
func FuzzUnmarshal(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"work_item_id":"\u00fc","limit":null}`, `{"selves":[{"args":{"a":[1e3]}}]}`,
		`{"by_number":{"-1":{}},"created_at":"2026-01-02T03:04:05.000006Z","lease":"-1.5s"}`,
		`{"a_bytes":"AA==","a_double":"NaN"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		m := newEverything()
		if err := Unmarshal(in, m); err != nil {
			reason := fault.From(err).Reason()
			require.Contains(t, []fault.Reason{fault.MalformedJSON, fault.UnknownField, fault.InvalidArgument}, reason)
			return
		}
		require.True(t, json.Valid(in), "%q", in)
		out := text(t, m)
		same(t, out, out)
	})
}
