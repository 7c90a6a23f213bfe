package tools

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// outputSchema returns the JSON Schema of a tool's results, refusals included (SPEC C5.4). It
// requires little and allows further fields: records omit fields that are unset, a result that is
// too large to be kept is replaced, and clients refuse a result that its schema does not allow.
// It has no descriptions, and records within records are any objects, since every byte of it may be
// shown to a model.
func (t Tool) outputSchema() *structpb.Struct {
	s := objectOf(map[string]*structpb.Struct{
		"tool_name": schemaType("string"), "status": stringOf("success", "error"), "summary_text": schemaType("string"),
		"result":   resultSchema(t.NewResponse().ProtoReflect().Descriptor(), 0),
		"warnings": listOfSchema(schemaType("object")),
		"error": objectOf(map[string]*structpb.Struct{
			"kind": schemaType("string"), "message": schemaType("string"), "details": schemaType("object"),
			"recovery_hint": schemaType("string"), "retryable": schemaType("boolean"),
		}),
	})
	s.Fields["required"] = stringList("tool_name", "status", "summary_text")
	return s
}

// described is how many messages deep a schema describes fields: the response, and its records.
const described = 2

// resultSchema returns the schema of a message as ToStruct writes it. outer is how many
// messages contain it.
func resultSchema(m protoreflect.MessageDescriptor, outer int) *structpb.Struct {
	if outer == described {
		return schemaType("object")
	}
	properties := map[string]*structpb.Struct{}
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		var s *structpb.Struct
		switch {
		case fd.IsMap():
			s = schemaType("object")
			s.Fields["additionalProperties"] = structpb.NewStructValue(resultValue(fd.MapValue(), outer+1))
		case fd.IsList():
			s = listOfSchema(resultValue(fd, outer+1))
		default:
			s = resultValue(fd, outer+1)
		}
		properties[string(fd.Name())] = s
	}
	return objectOf(properties)
}

func resultValue(fd protoreflect.FieldDescriptor, outer int) *structpb.Struct {
	if fd.Kind() != protoreflect.MessageKind && fd.Kind() != protoreflect.GroupKind {
		return valueSchema(fd, nil)
	}
	switch fd.Message().FullName() {
	case "google.protobuf.Duration":
		return schemaType("string")
	case "google.protobuf.Timestamp", "google.protobuf.Struct":
		return valueSchema(fd, nil)
	case "google.protobuf.Value":
		return &structpb.Struct{Fields: map[string]*structpb.Value{}} // anything
	}
	return resultSchema(fd.Message(), outer)
}

// objectOf returns the schema of an object that has some properties and may have others.
func objectOf(properties map[string]*structpb.Struct) *structpb.Struct {
	s := schemaType("object")
	fields := map[string]*structpb.Value{}
	for name, p := range properties {
		fields[name] = structpb.NewStructValue(p)
	}
	s.Fields["properties"] = structpb.NewStructValue(&structpb.Struct{Fields: fields})
	return s
}

func listOfSchema(items *structpb.Struct) *structpb.Struct {
	s := schemaType("array")
	s.Fields["items"] = structpb.NewStructValue(items)
	return s
}

func stringOf(values ...string) *structpb.Struct {
	s := schemaType("string")
	s.Fields["enum"] = stringList(values...)
	return s
}
