package pbjson

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// EnumName returns the name under which Append writes an enum value: lower case
// and without the prefix of its type. The zero value, and a value that the type
// does not have, give "".
func EnumName(e protoreflect.Enum) string {
	d := e.Descriptor()
	v := d.Values().ByNumber(e.Number())
	if v == nil || e.Number() == 0 {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), upperSnake(string(d.Name()))+"_"))
}
