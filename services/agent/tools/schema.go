package tools

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// toolFields is JSON: the comments of fields in the proto files, by the fields' full names. It is generated.
//
//go:embed tool_fields.json
var toolFields []byte

// Specs describes the tools to models. It is made once, from the table and the request
// messages (SPEC C4).
var Specs = sync.OnceValue(func() []*agentv1.ToolSpec {
	words := map[string]string{}
	if err := json.Unmarshal(toolFields, &words); err != nil {
		panic(fmt.Sprintf("agent: tool_fields.json: %v", err)) // cannot happen: the file is generated and tested
	}
	out := make([]*agentv1.ToolSpec, len(Table))
	for i, t := range Table {
		own := map[string]string{}
		for field, text := range words {
			own[field] = t.Translate(text)
		}
		out[i] = &agentv1.ToolSpec{
			Name: t.Name, Description: t.Description, Family: t.Family, Mutates: t.Mutates, InputSchema: t.schema(own),
			OutputSchema: t.outputSchema(),
		}
	}
	return out
})

// schema returns the JSON Schema of a tool's arguments: the fields of its request without agent_id and request_id,
// changed by t.shape. words has the descriptions of fields, by the fields' full names.
func (t Tool) schema(words map[string]string) *structpb.Struct {
	s := objectSchema(t.NewRequest().ProtoReflect().Descriptor(), words)
	properties := s.GetFields()["properties"].GetStructValue().GetFields()
	delete(properties, "agent_id")
	delete(properties, "request_id")
	if t.shape != nil {
		t.shape(properties)
	}
	if len(t.Required) > 0 {
		s.Fields["required"] = stringList(t.Required...)
	}
	return s
}

func objectSchema(m protoreflect.MessageDescriptor, words map[string]string) *structpb.Struct {
	properties := map[string]*structpb.Value{}
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		f := fieldSchema(fd, words)
		if text := words[string(fd.FullName())]; text != "" {
			if f.GetFields()["pattern"].GetStringValue() == durationPattern {
				text += " Such as 90s, 15m or 1h30m."
			}
			f.Fields["description"] = structpb.NewStringValue(text)
		}
		properties[string(fd.Name())] = structpb.NewStructValue(f)
	}
	s := &structpb.Struct{Fields: map[string]*structpb.Value{
		"type": structpb.NewStringValue("object"), "additionalProperties": structpb.NewBoolValue(false),
		"properties": structpb.NewStructValue(&structpb.Struct{Fields: properties}),
	}}
	if required := requiredIn[m.FullName()]; required != nil {
		s.Fields["required"] = stringList(required...)
	}
	return s
}

// requiredIn are the required fields of records within arguments.
var requiredIn = map[protoreflect.FullName][]string{
	"quartet.work.v1.TodoItem":   {"text"},
	"quartet.board.v1.StepInput": {"step_id", "title"},
	"quartet.board.v1.Operation": {"op"},
}

// durationPattern matches the durations that tools accept: one number with its unit, or
// several.
const durationPattern = `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`

func fieldSchema(fd protoreflect.FieldDescriptor, words map[string]string) *structpb.Struct {
	switch {
	case fd.IsMap():
		s := schemaType("object")
		s.Fields["additionalProperties"] = structpb.NewStructValue(valueSchema(fd.MapValue(), words))
		return s
	case fd.IsList():
		s := schemaType("array")
		s.Fields["items"] = structpb.NewStructValue(valueSchema(fd, words))
		return s
	}
	return valueSchema(fd, words)
}

func valueSchema(fd protoreflect.FieldDescriptor, words map[string]string) *structpb.Struct {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return schemaType("boolean")
	case protoreflect.StringKind:
		return schemaType("string")
	case protoreflect.BytesKind:
		s := schemaType("string")
		s.Fields["contentEncoding"] = structpb.NewStringValue("base64")
		return s
	case protoreflect.EnumKind:
		return enumSchema(fd.Enum())
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return schemaType("number")
	case protoreflect.MessageKind, protoreflect.GroupKind:
		switch fd.Message().FullName() {
		case "google.protobuf.Duration":
			s := schemaType("string")
			s.Fields["pattern"] = structpb.NewStringValue(durationPattern)
			return s
		case "google.protobuf.Timestamp":
			s := schemaType("string")
			s.Fields["format"] = structpb.NewStringValue("date-time")
			return s
		case "google.protobuf.Struct":
			return schemaType("object")
		}
		return objectSchema(fd.Message(), words)
	default:
		return schemaType("integer")
	}
}

// enumSchema names enum values in lower case, without their prefix.
func enumSchema(e protoreflect.EnumDescriptor) *structpb.Struct {
	unset := string(e.Values().ByNumber(0).Name())
	prefix := strings.TrimSuffix(unset, "UNSPECIFIED")
	var names []string
	for i := range e.Values().Len() {
		if v := e.Values().Get(i); v.Number() != 0 {
			names = append(names, strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix)))
		}
	}
	s := schemaType("string")
	s.Fields["enum"] = stringList(names...)
	return s
}

func schemaType(name string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"type": structpb.NewStringValue(name)}}
}

func stringList(names ...string) *structpb.Value {
	l := &structpb.ListValue{}
	for _, n := range names {
		l.Values = append(l.Values, structpb.NewStringValue(n))
	}
	return structpb.NewListValue(l)
}

// setDescription replaces a property by one that has only a type, kind, and a description, text.
func setDescription(properties map[string]*structpb.Value, name, kind, text string) {
	s := schemaType(kind)
	s.Fields["description"] = structpb.NewStringValue(text)
	properties[name] = structpb.NewStructValue(s)
}

// shapeUpdate replaces the property todo_list, which must exist, by a list of todos whose state is optional. It lets
// blocked_by and recheck_at be null, and removes clear_blocked_by and clear_recheck_at, which null stands for.
func shapeUpdate(properties map[string]*structpb.Value) {
	if wrapped := properties["todo_list"].GetStructValue(); wrapped != nil {
		items := wrapped.GetFields()["properties"].GetStructValue().GetFields()["items"]
		properties["todo_list"] = items
	}
	shapeTodos(properties)
	for _, field := range []string{"blocked_by", "recheck_at"} {
		delete(properties, "clear_"+field)
		if b := properties[field].GetStructValue(); b != nil {
			b.Fields["type"] = stringList("string", "null")
		}
	}
}

// shapeGet replaces the property omit_todo_list by its opposite, include_todo_list.
func shapeGet(properties map[string]*structpb.Value) {
	delete(properties, "omit_todo_list")
	setDescription(properties, "include_todo_list", "boolean", "Whether the checklist comes too; it does unless this "+
		"is false.")
}

// shapeList renames the property page_size to limit, and removes omit_plan_previews: lists have no
// previews, GetWorkItem has them.
func shapeList(properties map[string]*structpb.Value) {
	delete(properties, "omit_plan_previews")
	properties["limit"] = properties["page_size"]
	delete(properties, "page_size")
}

// shapeExec replaces the property command, an object, by the properties of that object
// which commandFields names.
func shapeExec(properties map[string]*structpb.Value) {
	command := properties["command"].GetStructValue().GetFields()["properties"].GetStructValue().GetFields()
	delete(properties, "command")
	for _, f := range commandFields {
		properties[f] = command[f]
	}
}

// shapeTodos describes the state of a todo as optional.
func shapeTodos(properties map[string]*structpb.Value) {
	state := properties["todo_list"].GetStructValue().GetFields()["items"].GetStructValue().
		GetFields()["properties"].GetStructValue().GetFields()["state"]
	state.GetStructValue().Fields["default"] = structpb.NewStringValue("pending")
}

// shapeSpawn leaves out what follows from the caller: the parent, and where the child
// works. Only an operator may choose an explicit root.
func shapeSpawn(properties map[string]*structpb.Value) {
	properties["workspace_mode"].GetStructValue().Fields["enum"] = stringList("inherit", "worktree")
	for _, own := range []string{"parent_agent_id", "workspace_root", "template"} {
		delete(properties, own)
	}
	setDescription(properties, "agent_id", "string", "public_named: the new agent's id, required. Leave it out for a "+
		"private_child.")
}

// shapeAgentGet describes agent_id: without it the call is about the caller.
func shapeAgentGet(properties map[string]*structpb.Value) {
	setDescription(properties, "agent_id", "string", "The agent; you, if it is left out.")
}
