package pbjson

import (
	"math"
	"reflect"
	"strconv"
	"strings"
	"unsafe"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Generated messages are Go structs whose scalar fields can be read and written
// where they lie. protoreflect costs about 150 ns and two allocations for each
// of them, which at 50 000 events a second was a fifth of a core; a slot costs
// 5 ns. Everything that is not a plain exported field of the expected Go type
// goes through protoreflect, and so does every dynamic message, so slots change
// the speed and nothing else: the property tests run both ways.

// slot says how a field lies in its struct.
type slot uint8

const (
	slotNone  slot = iota // ask protoreflect
	slotProbe             // a pointer, slice, map or interface: nil means unset
	slotString
	slotBool
	slotInt32 // and enums
	slotInt64
	slotUint32
	slotUint64
	slotStringPtr // optional ones
	slotBoolPtr
	slotInt32Ptr
	slotInt64Ptr
)

// locate finds the slots of p's fields in the generated type of md, if that is
// what the program links.
func (p *plan) locate(md protoreflect.MessageDescriptor) {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(md.FullName())
	if err != nil || mt.Descriptor() != md {
		return
	}
	goType := reflect.TypeOf(mt.Zero().Interface())
	if goType.Kind() != reflect.Pointer || goType.Elem().Kind() != reflect.Struct {
		return
	}
	byNumber := map[string]reflect.StructField{}
	for i := range goType.Elem().NumField() {
		sf := goType.Elem().Field(i)
		// `protobuf:"bytes,1,opt,name=..."`; a oneof has a tag of its own and no number here.
		if parts := strings.Split(sf.Tag.Get("protobuf"), ","); sf.IsExported() && len(parts) > 2 {
			byNumber[parts[1]] = sf
		}
	}
	for _, f := range p.fields {
		sf, ok := byNumber[strconv.Itoa(int(f.fd.Number()))]
		if !ok {
			continue
		}
		f.slot, f.offset = slotOf(sf.Type, f.fd), sf.Offset
	}
	p.goType = goType
}

func slotOf(t reflect.Type, fd protoreflect.FieldDescriptor) slot {
	switch {
	case fd.IsMap() && t.Kind() == reflect.Map, fd.IsList() && t.Kind() == reflect.Slice,
		fd.Kind() == protoreflect.MessageKind && t.Kind() == reflect.Pointer:
		return slotProbe
	case fd.IsMap(), fd.IsList():
		return slotNone
	}
	if fd.HasPresence() {
		if t.Kind() != reflect.Pointer {
			return slotNone
		}
		t = t.Elem()
	}
	want, direct, pointer := reflect.Invalid, slotNone, slotNone
	switch fd.Kind() {
	case protoreflect.StringKind:
		want, direct, pointer = reflect.String, slotString, slotStringPtr
	case protoreflect.BoolKind:
		want, direct, pointer = reflect.Bool, slotBool, slotBoolPtr
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind, protoreflect.EnumKind:
		want, direct, pointer = reflect.Int32, slotInt32, slotInt32Ptr
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		want, direct, pointer = reflect.Int64, slotInt64, slotInt64Ptr
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		want, direct = reflect.Uint32, slotUint32
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		want, direct = reflect.Uint64, slotUint64
	}
	switch {
	case t.Kind() != want:
		return slotNone
	case fd.HasPresence():
		return pointer
	}
	return direct
}

// base gives the address of m's struct if its slots may be used.
func (p *plan) base(m protoreflect.Message) unsafe.Pointer {
	if p.goType == nil {
		return nil
	}
	v := reflect.ValueOf(m.Interface())
	if v.Type() != p.goType {
		return nil
	}
	return v.UnsafePointer() // nil for a nil message, which protoreflect understands
}

// appendSlot writes name and value of a field with a slot. done is false if
// protoreflect must be asked.
func appendSlot(b []byte, f *field, base unsafe.Pointer, first bool) (_ []byte, wrote, done bool, err error) {
	at := unsafe.Add(base, f.offset)
	switch f.slot {
	case slotProbe:
		// A nil pointer, slice or map begins with a nil word; an empty one that
		// is not nil is left to protoreflect.
		return b, false, *(*unsafe.Pointer)(at) == nil, nil
	case slotString:
		s := *(*string)(at)
		if s == "" {
			return b, false, true, nil
		}
		b, err = appendString(begin(b, f, first), s)
	case slotStringPtr:
		s := *(**string)(at)
		if s == nil {
			return b, false, true, nil
		}
		b, err = appendString(begin(b, f, first), *s)
	case slotBool:
		if !*(*bool)(at) {
			return b, false, true, nil
		}
		b = append(begin(b, f, first), "true"...)
	case slotBoolPtr:
		v := *(**bool)(at)
		if v == nil {
			return b, false, true, nil
		}
		b = strconv.AppendBool(begin(b, f, first), *v)
	case slotInt32:
		v := *(*int32)(at)
		if v == 0 {
			return b, false, true, nil
		}
		b = f.appendInt32(begin(b, f, first), v)
	case slotInt32Ptr:
		v := *(**int32)(at)
		if v == nil {
			return b, false, true, nil
		}
		b = f.appendInt32(begin(b, f, first), *v)
	case slotInt64:
		v := *(*int64)(at)
		if v == 0 {
			return b, false, true, nil
		}
		b = strconv.AppendInt(begin(b, f, first), v, 10)
	case slotInt64Ptr:
		v := *(**int64)(at)
		if v == nil {
			return b, false, true, nil
		}
		b = strconv.AppendInt(begin(b, f, first), *v, 10)
	case slotUint32:
		v := *(*uint32)(at)
		if v == 0 {
			return b, false, true, nil
		}
		b = strconv.AppendUint(begin(b, f, first), uint64(v), 10)
	case slotUint64:
		v := *(*uint64)(at)
		if v == 0 {
			return b, false, true, nil
		}
		b = strconv.AppendUint(begin(b, f, first), v, 10)
	default:
		return b, false, false, nil
	}
	return b, true, true, err
}

func begin(b []byte, f *field, first bool) []byte {
	if !first {
		b = append(b, ',')
	}
	return append(b, f.key...)
}

func (f *field) appendInt32(b []byte, v int32) []byte {
	if f.enum != nil {
		return f.enum.append(b, protoreflect.EnumNumber(v))
	}
	return strconv.AppendInt(b, int64(v), 10)
}

// slot reads the value of a field with a slot into its struct. done is false,
// and nothing has been read, if protoreflect must be asked.
func (d *decoder) slot(f *field, base unsafe.Pointer) (done bool, err error) {
	at := unsafe.Add(base, f.offset)
	switch f.slot {
	case slotString, slotStringPtr:
		if d.Peek() != '"' {
			return false, nil // for the refusal
		}
		raw, err := d.Str()
		if err != nil {
			return true, err
		}
		s := string(raw)
		if f.slot == slotString {
			*(*string)(at) = s
		} else {
			*(**string)(at) = boxed(s)
		}
	case slotBool, slotBoolPtr:
		v, err := d.scalar(f)
		if err != nil {
			return true, err
		}
		set := v.Bool()
		if f.slot == slotBool {
			*(*bool)(at) = set
		} else {
			*(**bool)(at) = boxed(set)
		}
	case slotInt32, slotInt32Ptr:
		var v int64
		if f.enum != nil {
			n, err := d.enum(f.enum)
			if err != nil {
				return true, err
			}
			v = int64(n)
		} else if v, err = d.integer(math.MinInt32, math.MaxInt32); err != nil {
			return true, err
		}
		set := int32(v)
		if f.slot == slotInt32 {
			*(*int32)(at) = set
		} else {
			*(**int32)(at) = boxed(set)
		}
	case slotInt64, slotInt64Ptr:
		v, err := d.integer(math.MinInt64, math.MaxInt64)
		if err != nil {
			return true, err
		}
		if f.slot == slotInt64 {
			*(*int64)(at) = v
		} else {
			*(**int64)(at) = boxed(v)
		}
	case slotUint32:
		v, err := d.natural(math.MaxUint32)
		if err != nil {
			return true, err
		}
		*(*uint32)(at) = uint32(v)
	case slotUint64:
		v, err := d.natural(math.MaxUint64)
		if err != nil {
			return true, err
		}
		*(*uint64)(at) = v
	default:
		return false, nil
	}
	return true, nil
}

// boxed gives v a place of its own. Taking the address of the caller's variable
// instead would move it to the heap for fields without presence as well.
func boxed[T any](v T) *T { return &v }
