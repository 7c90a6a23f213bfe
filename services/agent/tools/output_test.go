package tools

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
)

// fill sets every field of a message, as deep as levels, to a value that is not its zero.
func fill(m protoreflect.Message, levels int) {
	value := func(fd protoreflect.FieldDescriptor, fresh func() protoreflect.Value) protoreflect.Value {
		switch fd.Kind() {
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(true)
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(fd.Enum().Values().Get(fd.Enum().Values().Len() - 1).Number())
		case protoreflect.StringKind:
			return protoreflect.ValueOfString("text")
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes([]byte{0, 255})
		case protoreflect.DoubleKind:
			return protoreflect.ValueOfFloat64(0.5)
		case protoreflect.FloatKind:
			return protoreflect.ValueOfFloat32(0.5)
		case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
			return protoreflect.ValueOfInt32(-1 << 31)
		case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
			return protoreflect.ValueOfInt64(1<<63 - 1)
		case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
			return protoreflect.ValueOfUint32(1<<32 - 1)
		case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
			return protoreflect.ValueOfUint64(1<<64 - 1)
		}
		v := fresh()
		switch of := v.Message().Interface().(type) {
		case *structpb.Value:
			of.Kind = &structpb.Value_NumberValue{NumberValue: 1.5}
		case *structpb.Struct:
			of.Fields = map[string]*structpb.Value{"a": structpb.NewNullValue()}
		default:
			if levels > 0 {
				fill(v.Message(), levels-1)
			}
		}
		return v
	}
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		switch {
		case fd.FullName() == "google.protobuf.Timestamp.nanos", fd.FullName() == "google.protobuf.Duration.nanos":
		case fd.FullName() == "google.protobuf.Timestamp.seconds", fd.FullName() == "google.protobuf.Duration.seconds":
			m.Set(fd, protoreflect.ValueOfInt64(1_800_000_000))
		case fd.ContainingOneof() != nil && m.WhichOneof(fd.ContainingOneof()) != nil:
		case fd.IsMap():
			of := m.NewField(fd).Map()
			of.Set(value(fd.MapKey(), nil).MapKey(), value(fd.MapValue(), of.NewValue))
			m.Set(fd, protoreflect.ValueOfMap(of))
		case fd.IsList():
			of := m.NewField(fd).List()
			of.Append(value(fd, of.NewElement))
			m.Set(fd, protoreflect.ValueOfList(of))
		default:
			m.Set(fd, value(fd, func() protoreflect.Value { return m.NewField(fd) }))
		}
	}
}

// SPEC C5.4: the output schema of every tool allows what the tool returns: a result with no field
// set and one with all, a refusal, and a result that was too large to be kept.
func TestC5_OutputSchemasAllowEveryResult(t *testing.T) {
	for i, spec := range Specs() {
		tool := Table[i]
		raw := must.Value(json.Marshal(spec.GetOutputSchema().AsMap()))(t)
		var schema jsonschema.Schema
		require.NoError(t, json.Unmarshal(raw, &schema))
		require.Equal(t, "object", schema.Type)
		resolved := must.Value(schema.Resolve(nil))(t)
		allows := func(r *agentv1.ToolResult) error {
			raw := must.Value(pbjson.Append(nil, r))(t)
			var got map[string]any
			require.NoError(t, json.Unmarshal(raw, &got))
			return resolved.Validate(got)
		}
		call := &agentv1.ToolCall{CallId: "c1", Name: tool.Name}
		empty, full := tool.NewResponse(), tool.NewResponse()
		fill(full.ProtoReflect(), 8)
		for _, reply := range []proto.Message{empty, full} {
			r := must.Value(Succeeded(call, tool, reply))(t)
			r.WorkItemId = "wi_1"
			require.NoError(t, allows(r), tool.Name)
		}
		failed := Failed(call, fault.Invalid("objective", "x", "must be shorter"))
		tool.Reword(failed)
		require.NoError(t, allows(failed), tool.Name)
		for _, mutated := range []bool{false, true} {
			out := Outcome{Mutated: mutated, Result: &agentv1.ToolResult{
				ToolName: tool.Name, Status: StatusSuccess, SummaryText: "succeeded",
				Result: &structpb.Struct{
					Fields: map[string]*structpb.Value{
						"text": structpb.NewStringValue(strings.Repeat("x", MaxResult)),
					},
				},
			}}
			FitResult(&out, call, 0)
			require.NoError(t, allows(out.Result), tool.Name)
		}
		// The schema says something: it refuses what the tool never returns.
		require.Error(t, allows(&agentv1.ToolResult{ToolName: tool.Name, SummaryText: "no status"}), tool.Name)
		wrong := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for name := range spec.GetOutputSchema().GetFields()["properties"].GetStructValue().
			GetFields()["result"].GetStructValue().GetFields()["properties"].GetStructValue().GetFields() {
			wrong.Fields[name] = structpb.NewNullValue()
		}
		require.NotEmpty(t, wrong.GetFields(), tool.Name)
		require.Error(t, allows(&agentv1.ToolResult{
			ToolName: tool.Name, Status: StatusSuccess, SummaryText: "x", Result: wrong,
		}), tool.Name)
	}
}

// A result that lists history says in words that what is older was removed (SPEC A15).
func TestA15_AResultSaysThatHistoryWasRemoved(t *testing.T) {
	for removed, want := range map[bool]string{
		false: "ListRounds succeeded: 1 rounds",
		true:  "ListRounds succeeded: 1 rounds; older ones were removed because of their age and cannot be read",
	} {
		got, err := Succeeded(&agentv1.ToolCall{CallId: "c"}, Tool{Name: "ListRounds"}, &agentv1.ListRoundsResponse{
			Rounds: []*agentv1.Round{{}}, HistoryRemoved: removed,
		})
		require.NoError(t, err)
		require.Equal(t, want, got.GetSummaryText())
	}
}
