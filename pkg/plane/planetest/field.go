package planetest

import "google.golang.org/protobuf/reflect/protoreflect"

// SetField sets a field of m to a value that is not its zero value: "x", 7, true, the first enum value after zero, one
// such element or entry, or a message of which all fields are set, down to three levels.
func SetField(m protoreflect.Message, f protoreflect.FieldDescriptor) { setField(m, f, 3) }

func setField(m protoreflect.Message, f protoreflect.FieldDescriptor, depth int) {
	setAll := func(m protoreflect.Message) {
		fields := m.Descriptor().Fields()
		for i := 0; i < fields.Len() && depth > 0; i++ {
			setField(m, fields.Get(i), depth-1)
		}
	}
	switch {
	case f.IsMap() && f.MapValue().Message() != nil:
		setAll(m.Mutable(f).Map().Mutable(example(f.MapKey()).MapKey()).Message())
	case f.IsMap():
		m.Mutable(f).Map().Set(example(f.MapKey()).MapKey(), example(f.MapValue()))
	case f.IsList() && f.Message() != nil:
		setAll(m.Mutable(f).List().AppendMutable().Message())
	case f.IsList():
		m.Mutable(f).List().Append(example(f))
	case f.Message() != nil:
		setAll(m.Mutable(f).Message())
	default:
		m.Set(f, example(f))
	}
}

// example returns a value of a field's kind, which is not a message, that is not zero.
func example(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(7)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(7)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(7)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(7)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(7)
	default:
		return protoreflect.ValueOfString("x")
	}
}

// Filled sets each field of m as SetField does, and returns m.
func Filled[M interface{ ProtoReflect() protoreflect.Message }](m M) M {
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		SetField(m.ProtoReflect(), fields.Get(i))
	}
	return m
}
