package pbjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/yield"
)

// largeMessage is the size of a message, in bytes on the wire, from which it is marshaled in parts.
const largeMessage = 32 << 10

// MarshalProtoJSON returns m as ProtoJSON, without the blanks that protojson adds at random. It marshals a large
// message in parts and yields the processor between them, so that other calls do not wait for long.
func MarshalProtoJSON(m proto.Message) ([]byte, error) {
	var out bytes.Buffer
	err := writeProtoJSON(&out, m)
	return out.Bytes(), err
}

// writeProtoJSON appends a message as MarshalProtoJSON returns it.
func writeProtoJSON(out *bytes.Buffer, m proto.Message) error {
	of := m.ProtoReflect()
	// which has a form of its own
	if proto.Size(m) < largeMessage || of.Descriptor().FullName().Parent() == "google.protobuf" {
		b, err := protojson.Marshal(m)
		if err != nil {
			return err
		}
		out.Grow(len(b))
		return json.Compact(out, b)
	}
	yield.Now()
	var fields []protoreflect.FieldDescriptor
	of.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		fields = append(fields, fd)
		return true
	})
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.Index(), b.Index()) })
	out.WriteByte('{')
	for i, fd := range fields {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := writeProtoField(out, of, fd); err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

// writeProtoField appends a field of a message as a member of a JSON object.
func writeProtoField(out *bytes.Buffer, of protoreflect.Message, fd protoreflect.FieldDescriptor) error {
	v := of.Get(fd)
	switch {
	case fd.Message() == nil || fd.IsMap():
		single := of.New()
		single.Set(fd, v)
		b, err := protojson.Marshal(single.Interface())
		if err != nil {
			return err
		}
		var object bytes.Buffer
		if err := json.Compact(&object, b); err != nil {
			return err
		}
		out.Write(object.Bytes()[1 : object.Len()-1])
		return nil
	case !fd.IsList():
		out.WriteString(`"` + fd.JSONName() + `":`)
		return writeProtoJSON(out, v.Message().Interface())
	}
	out.WriteString(`"` + fd.JSONName() + `":[`)
	yielded := out.Len()
	for i := range v.List().Len() {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := writeProtoJSON(out, v.List().Get(i).Message().Interface()); err != nil {
			return err
		}
		if out.Len()-yielded >= largeMessage {
			yielded = out.Len()
			yield.Now()
		}
	}
	out.WriteByte(']')
	return nil
}
