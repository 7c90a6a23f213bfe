package rpc

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
)

// knownEnums returns INVALID_ARGUMENT for a request with an enum field whose number names no value. What 0 means is
// for the handler to decide, and so are the fields of nested messages.
func knownEnums(req any) (err error) {
	m, ok := req.(proto.Message)
	if !ok {
		return nil // it is forwarded as it is
	}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Enum() == nil:
		case f.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = knownEnum(f, fmt.Sprintf("%s[%d]", f.Name(), i), v.List().Get(i).Enum())
			}
		default:
			err = knownEnum(f, string(f.Name()), v.Enum())
		}
		return err == nil
	})
	return err
}

// knownEnum returns INVALID_ARGUMENT if the enum of a field has no value of this number.
// knownEnum returns INVALID_ARGUMENT if a number names no value of an enum field. name is that of the field, in a list
// with the index.
func knownEnum(f protoreflect.FieldDescriptor, name string, number protoreflect.EnumNumber) error {
	values := f.Enum().Values()
	if values.ByNumber(number) != nil {
		return nil
	}
	// The message lists the values but the first, which is unspecified, without the prefix that all names have.
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	names := make([]string, values.Len()-1)
	for i := range names {
		names[i] = strings.ToLower(strings.TrimPrefix(string(values.Get(i+1).Name()), prefix))
	}
	last := len(names) - 1
	must := names[last]
	if last > 0 {
		must = strings.Join(names[:last], ", ") + " or " + must
	}
	return fault.Invalid(name, strconv.Itoa(int(number)), "must be "+must)
}
