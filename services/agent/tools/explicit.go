package tools

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// explicit are the fields that a result of a tool shows also if they are false, 0 or "", by the
// message that has them. Messages omit such fields, and a model could not tell "not complete" or
// "empty" from "unknown" (SPEC C4.7).
var explicit = map[protoreflect.FullName][]explicitFields{
	fullName(&workv1.PlanArtifact{}): {
		{show: []protoreflect.Name{"bytes"}, unless: isProblem},
		{show: []protoreflect.Name{"preview", "preview_complete"}, unless: hasNoPreview},
	},
	fullName(&taskv1.SendTaskInputResponse{}): {{show: []protoreflect.Name{"accepted_input"}}},
}

type explicitFields struct {
	show   []protoreflect.Name
	unless func(proto.Message) bool // reports that a message gets none of these fields; nil for none
}

// isProblem reports whether a plan could not be described: it has a problem instead.
func isProblem(m proto.Message) bool {
	p, ok := m.(*workv1.PlanArtifact)
	return ok && p.GetProblem() != ""
}

// hasNoPreview reports whether a plan is described without its text, as lists do it.
func hasNoPreview(m proto.Message) bool {
	p, ok := m.(*workv1.PlanArtifact)
	return isProblem(m) || ok && p.GetPreview() == "" && p.GetBytes() > 0
}

func fullName(m proto.Message) protoreflect.FullName { return m.ProtoReflect().Descriptor().FullName() }

// showExplicit adds the explicit fields of m, and of all messages in it, to result, which ToStruct
// made of m.
func showExplicit(result *structpb.Struct, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for _, e := range explicit[m.Descriptor().FullName()] {
		if e.unless != nil && e.unless(m.Interface()) {
			continue
		}
		for _, name := range e.show {
			if fd := fields.ByName(name); !m.Has(fd) {
				result.Fields[string(name)] = scalar(fd)
			}
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		shown := result.GetFields()[string(fd.Name())]
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i, entry := range shown.GetListValue().GetValues() {
				if s := entry.GetStructValue(); s != nil && i < v.List().Len() {
					showExplicit(s, v.List().Get(i).Message())
				}
			}
		default:
			// A time is a text in a result, and has no fields there.
			if s := shown.GetStructValue(); s != nil && fd.Message().FullName() != fullName(s) {
				showExplicit(s, v.Message())
			}
		}
		return true
	})
}

// scalar returns the default value of a field as a result shows it.
func scalar(fd protoreflect.FieldDescriptor) *structpb.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return structpb.NewBoolValue(false)
	case protoreflect.StringKind:
		return structpb.NewStringValue("")
	default:
		return structpb.NewNumberValue(0)
	}
}
