package pbjson

import (
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// enumPrefixes caches the prefixes that EnumText removes, by descriptor.
var enumPrefixes sync.Map

// EnumText returns the name that journal lines and tools use for an enum value: lower case,
// without the prefix of its type, such as "in_progress" for TODO_STATE_IN_PROGRESS. It is ""
// for the zero value, and the number for a value of a newer version.
func EnumText(e protoreflect.Enum) string {
	if e.Number() == 0 {
		return ""
	}
	d := e.Descriptor()
	prefix, ok := enumPrefixes.Load(d)
	if !ok {
		prefix, _ = enumPrefixes.LoadOrStore(d, upperSnake(string(d.Name()))+"_")
	}
	v := d.Values().ByNumber(e.Number())
	if v == nil {
		return protoreflect.ValueOfEnum(e.Number()).String()
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix.(string)))
}
