package pbjson

import (
	"strconv"
	"strings"
	"sync"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// shape is the JSON form of a message type.
type shape uint8

const (
	plain shape = iota
	timestamp
	duration
	structure // google.protobuf.Struct
	anyValue  // google.protobuf.Value
	listValue // google.protobuf.ListValue
)

// plan is the precomputed description of a message type.
type plan struct {
	shape  shape
	fields []*field          // in the order of the .proto file
	byName map[string]*field // snake_case and lowerCamelCase
}

type field struct {
	fd     protoreflect.FieldDescriptor
	name   string
	key    string // `"name":`
	index  int    // in plan.fields
	oneof  int    // index of the oneof that the field is in; -1: none, or that of an optional field
	kind   protoreflect.Kind
	enum   *enum  // of enum fields, and of maps with enum values
	msg    *plan  // of message fields, and of maps with message values
	value  *field // of maps: the value
	mapKey protoreflect.Kind
}

type enum struct {
	text    map[protoreflect.EnumNumber]string
	number  map[string]protoreflect.EnumNumber
	allowed string // the names of all values but the unspecified one, for errors
}

var (
	plans    sync.Map // protoreflect.MessageDescriptor -> *plan
	planning sync.Mutex
)

// planOf returns the plan of a type. A plan is published only once all plans that it refers
// to are complete.
func planOf(md protoreflect.MessageDescriptor) *plan {
	if p, ok := plans.Load(md); ok {
		return p.(*plan)
	}
	planning.Lock()
	defer planning.Unlock()
	made := map[protoreflect.MessageDescriptor]*plan{}
	p := draw(md, made)
	for k, v := range made {
		plans.LoadOrStore(k, v)
	}
	return p
}

// draw creates the plan of md and of the types in it. made holds the plans created so far, for
// types that contain themselves.
func draw(md protoreflect.MessageDescriptor, made map[protoreflect.MessageDescriptor]*plan) *plan {
	if p, ok := plans.Load(md); ok {
		return p.(*plan)
	}
	if p, ok := made[md]; ok {
		return p
	}
	p := &plan{shape: shapeOf(md), byName: map[string]*field{}}
	made[md] = p
	if p.shape != plain {
		return p
	}
	fds := md.Fields()
	for i := range fds.Len() {
		f := drawField(fds.Get(i), made)
		f.index = i
		p.fields = append(p.fields, f)
		p.byName[f.fd.JSONName()] = f
	}
	for _, f := range p.fields { // the proto name wins a collision
		p.byName[f.name] = f
	}
	return p
}

func drawField(fd protoreflect.FieldDescriptor, made map[protoreflect.MessageDescriptor]*plan) *field {
	f := &field{fd: fd, name: string(fd.Name()), kind: fd.Kind(), oneof: -1}
	f.key = `"` + f.name + `":`
	if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
		f.oneof = o.Index()
	}
	switch {
	case fd.IsMap():
		f.mapKey = fd.MapKey().Kind()
		f.value = drawField(fd.MapValue(), made)
	case fd.Enum() != nil:
		f.enum = drawEnum(fd.Enum())
	case fd.Message() != nil:
		f.msg = draw(fd.Message(), made)
	}
	return f
}

func drawEnum(ed protoreflect.EnumDescriptor) *enum {
	e := &enum{text: map[protoreflect.EnumNumber]string{}, number: map[string]protoreflect.EnumNumber{}}
	prefix := upperSnake(string(ed.Name())) + "_"
	values := ed.Values()
	var allowed []string
	for i := range values.Len() {
		v := values.Get(i)
		full := string(v.Name())
		short := strings.ToLower(strings.TrimPrefix(full, prefix))
		if _, alias := e.text[v.Number()]; !alias {
			e.text[v.Number()] = short
			if short != "unspecified" {
				allowed = append(allowed, short)
			}
		}
		if _, taken := e.number[short]; !taken {
			e.number[short] = v.Number()
		}
		e.number[full] = v.Number()
	}
	e.allowed = strings.Join(allowed, ", ")
	return e
}

// append appends a value of e. A value that this version does not know is written as a number.
func (e *enum) append(b []byte, n protoreflect.EnumNumber) []byte {
	text, ok := e.text[n]
	if !ok {
		return strconv.AppendInt(b, int64(n), 10)
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"')
}

// upperSnake converts PlanStatus to PLAN_STATUS and HTTPRule to HTTP_RULE.
func upperSnake(s string) string {
	var b strings.Builder
	runes := []rune(s)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) && runes[i-1] != '_' {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

func shapeOf(md protoreflect.MessageDescriptor) shape {
	switch md.FullName() {
	case "google.protobuf.Timestamp":
		return timestamp
	case "google.protobuf.Duration":
		return duration
	case "google.protobuf.Struct":
		return structure
	case "google.protobuf.Value":
		return anyValue
	case "google.protobuf.ListValue":
		return listValue
	}
	return plain
}
