package journaltest

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/event"
)

// Same returns an error that names the first place in which two values of the same type differ. It reads all fields,
// also those that are not exported. Messages are compared as messages, times by their instant, trees of
// github.com/google/btree by their elements; empty and nil maps, slices and trees are the same; functions, channels,
// free lists and the owners that were erased, which no page has, are not compared. Values that are Comparable are
// compared as such.
func Same(a, b any) error {
	c := comparison{met: map[[2]unsafe.Pointer]bool{}}
	return c.values("", addressable(a), addressable(b))
}

// Comparable is implemented by a type whose values may be the same though their fields differ, such as states that have
// evicted other parts. Comparable returns what Same compares instead, of another type.
type Comparable interface{ Comparable() any }

// comparison is one call of Same. met has the pairs of pointers that were compared, since states have cycles.
type comparison struct{ met map[[2]unsafe.Pointer]bool }

var (
	comparableType = reflect.TypeFor[Comparable]()
	messageType    = reflect.TypeFor[proto.Message]()
	timeType       = reflect.TypeFor[time.Time]()
	erasedType     = reflect.TypeFor[event.Tombstones]()
)

// addressable returns v as a value whose fields can be read, also those that are not exported.
func addressable(v any) reflect.Value {
	p := reflect.New(reflect.TypeOf(v))
	p.Elem().Set(reflect.ValueOf(v))
	return p.Elem()
}

// open returns v as a value whose methods and fields may be used, wherever it comes from.
func open(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
	}
	if v.CanInterface() {
		return addressable(v.Interface())
	}
	return v
}

// values compares two values at a path.
func (c *comparison) values(path string, a, b reflect.Value) error {
	a, b = open(a), open(b)
	t := a.Type()
	switch {
	case t != b.Type():
		return fmt.Errorf("%s: a %s and a %s", path, t, b.Type())
	case t == erasedType:
		return nil
	case t == timeType:
		x, y := a.Interface().(time.Time), b.Interface().(time.Time)
		if !x.Equal(y) {
			return fmt.Errorf("%s: %s and %s", path, x, y)
		}
		return nil
	case t.Implements(messageType) && t.Kind() != reflect.Interface:
		if a.IsNil() != b.IsNil() || !a.IsNil() &&
			!proto.Equal(a.Interface().(proto.Message), b.Interface().(proto.Message)) {
			return fmt.Errorf("%s: %v and %v", path, a.Interface(), b.Interface())
		}
		return nil
	case t.Implements(comparableType) && t.Kind() != reflect.Interface && (t.Kind() != reflect.Pointer || !a.IsNil() &&
		!b.IsNil()):
		return c.values(path, addressable(a.Interface().(Comparable).Comparable()),
			addressable(b.Interface().(Comparable).Comparable()))
	}
	switch t.Kind() {
	case reflect.Pointer:
		return c.pointers(path, a, b)
	case reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return differ(path, a.IsNil() == b.IsNil(), a, b)
		}
		return c.values(path, a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if err := c.values(path+"."+t.Field(i).Name, a.Field(i), b.Field(i)); err != nil {
				return err
			}
		}
		return nil
	case reflect.Map:
		return c.maps(path, a, b)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return differ(path, bytes.Equal(a.Bytes(), b.Bytes()), a, b)
		}
		fallthrough
	case reflect.Array:
		if a.Len() != b.Len() {
			return fmt.Errorf("%s: %d elements and %d: %v and %v", path, a.Len(), b.Len(), a, b)
		}
		for i := range a.Len() {
			if err := c.values(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i)); err != nil {
				return err
			}
		}
		return nil
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return nil
	default:
		return differ(path, a.Equal(b), a, b)
	}
}

// pointers compares what two pointers point to.
func (c *comparison) pointers(path string, a, b reflect.Value) error {
	if strings.HasPrefix(a.Type().Elem().Name(), "BTree") && a.MethodByName("Ascend").IsValid() &&
		(a.IsNil() || b.IsNil()) {
		return c.values(path, elements(a), elements(b))
	}
	if a.IsNil() || b.IsNil() {
		return differ(path, a.IsNil() == b.IsNil(), a, b)
	}
	pair := [2]unsafe.Pointer{a.UnsafePointer(), b.UnsafePointer()}
	if c.met[pair] {
		return nil
	}
	c.met[pair] = true
	switch name := a.Type().Elem().Name(); {
	case strings.HasPrefix(name, "FreeList"):
		return nil
	case strings.HasPrefix(name, "BTree") && a.MethodByName("Ascend").IsValid():
		return c.values(path, elements(a), elements(b))
	}
	return c.values(path, a.Elem(), b.Elem())
}

// elements returns the elements of a tree as a slice.
func elements(tree reflect.Value) reflect.Value {
	ascend := tree.MethodByName("Ascend")
	each := ascend.Type().In(0)
	all := reflect.New(reflect.SliceOf(each.In(0))).Elem()
	if tree.IsNil() {
		return all
	}
	ascend.Call([]reflect.Value{reflect.MakeFunc(each, func(args []reflect.Value) []reflect.Value {
		all.Set(reflect.Append(all, args[0]))
		return []reflect.Value{reflect.ValueOf(true)}
	})})
	return all
}

// maps compares two maps. Keys are compared by ==. Of a map with pointers as keys, only what the keys point to is
// compared.
func (c *comparison) maps(path string, a, b reflect.Value) error {
	if a.Len() != b.Len() {
		return fmt.Errorf("%s: %d entries and %d: %v and %v", path, a.Len(), b.Len(), a, b)
	}
	if a.Type().Key().Kind() == reflect.Pointer { // a set of records: each must have its like
		for _, k := range a.MapKeys() {
			found := false
			for _, other := range b.MapKeys() {
				one := comparison{met: map[[2]unsafe.Pointer]bool{}}
				found = found || one.values(path, k, other) == nil
			}
			if !found {
				return fmt.Errorf("%s: %v is in one only", path, k)
			}
		}
		return nil
	}
	for it := a.MapRange(); it.Next(); {
		v := b.MapIndex(it.Key())
		if !v.IsValid() {
			return fmt.Errorf("%s: %v is in one only", path, it.Key())
		}
		if err := c.values(fmt.Sprintf("%s[%v]", path, it.Key()), copied(it.Value()), copied(v)); err != nil {
			return err
		}
	}
	return nil
}

// copied returns a value of a map as one that has an address.
func copied(v reflect.Value) reflect.Value {
	p := reflect.New(v.Type()).Elem()
	p.Set(v)
	return p
}

// differ returns nil if same is true, and otherwise an error that names the path and shows a and b.
func differ(path string, same bool, a, b reflect.Value) error {
	if same {
		return nil
	}
	return fmt.Errorf("%s: %v and %v", path, a, b)
}
