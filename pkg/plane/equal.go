package plane

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// EqualExcept reports whether two messages of one type are equal in every field but those named. A rule that finds
// out whether a request changes anything names what does not count, so that a field added to the record later does.
// It panics if the type has no field of a name, since the list would be wrong for every call.
func EqualExcept[M proto.Message](a, b M, except ...protoreflect.Name) bool {
	x, y := a.ProtoReflect(), b.ProtoReflect()
	fields := x.Descriptor().Fields()
	ignored := make(map[protoreflect.Name]bool, len(except))
	for _, name := range except {
		if fields.ByName(name) == nil {
			panic(fmt.Sprintf("%s has no field %s", x.Descriptor().FullName(), name))
		}
		ignored[name] = true
	}
	for i := range fields.Len() {
		f := fields.Get(i)
		if ignored[f.Name()] {
			continue
		}
		if x.Has(f) != y.Has(f) || x.Has(f) && !x.Get(f).Equal(y.Get(f)) {
			return false
		}
	}
	return true
}

// CopySameNamed sets the fields of dst that src has under the same name, except those named, and returns dst. It
// shares what they contain with src. It panics if a field of that name has another type.
func CopySameNamed[M proto.Message](dst M, src proto.Message, except ...protoreflect.Name) M {
	to := dst.ProtoReflect()
	src.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if same := to.Descriptor().Fields().ByName(f.Name()); same != nil && !slices.Contains(except, f.Name()) {
			to.Set(same, v)
		}
		return true
	})
	return dst
}
