package gateway

import (
	"bytes"
	"encoding/json"
	"strconv"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// plainNumbers takes the quotes off 64-bit integers: ProtoJSON writes them as
// strings and pbjson, made for journal lines, reads numbers only. It changes
// nothing else, and nothing at all in text that is not JSON, so that refusals
// still speak of what the caller sent.
func plainNumbers(body []byte, d protoreflect.MessageDescriptor) []byte {
	if !hasLong(d) {
		return body
	}
	u := unquoter{dec: json.NewDecoder(bytes.NewReader(body)), in: body}
	u.dec.UseNumber()
	if err := u.value(field{msg: d}); err != nil || u.copied == 0 {
		return body
	}
	return append(u.out, body[u.copied:]...)
}

// field is what a JSON value stands for, as far as it is known.
type field struct {
	msg  protoreflect.MessageDescriptor // an object of these fields
	long bool                           // a 64-bit integer, or a list or map of them
}

type unquoter struct {
	dec    *json.Decoder
	in     []byte
	out    []byte
	copied int // bytes of in that are in out
}

func (u *unquoter) value(f field) error {
	t, err := u.dec.Token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case string:
		if f.long {
			u.unquote(t)
		}
	case json.Delim:
		for u.dec.More() {
			element := f
			if t == '{' {
				key, err := u.dec.Token()
				if err != nil {
					return err
				}
				if name, ok := key.(string); ok {
					element = f.member(name)
				}
			}
			if err := u.value(element); err != nil {
				return err
			}
		}
		_, err = u.dec.Token() // the closing one
	}
	return err
}

// unquote replaces the string that was just read, if it is a whole number.
func (u *unquoter) unquote(text string) {
	if _, err := strconv.ParseInt(text, 10, 64); err != nil || !json.Valid([]byte(text)) {
		return
	}
	end := int(u.dec.InputOffset())
	start := end - len(text) - 2
	if start < u.copied || string(u.in[start:end]) != `"`+text+`"` {
		return // written with escapes; let it be refused
	}
	u.out = append(append(u.out, u.in[u.copied:start]...), text...)
	u.copied = end
}

func (f field) member(name string) field {
	if f.msg == nil {
		return field{long: f.long} // a map's values
	}
	fd := fieldNamed(f.msg, name)
	if fd == nil {
		return field{}
	}
	if fd.IsMap() {
		fd = fd.MapValue()
		if fd.Message() != nil {
			return field{} // no request has a map of messages
		}
	}
	if fd.Message() != nil && opaque(fd.Message()) {
		return field{}
	}
	return field{msg: fd.Message(), long: isLong(fd.Kind())}
}

// opaque messages have a JSON form of their own.
func opaque(d protoreflect.MessageDescriptor) bool {
	return d.ParentFile().Package() == "google.protobuf"
}

func isLong(k protoreflect.Kind) bool {
	switch k {
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return true
	}
	return false
}

var longs sync.Map // full name of a message -> whether it holds such integers

func hasLong(d protoreflect.MessageDescriptor) bool {
	if v, ok := longs.Load(d.FullName()); ok {
		return v == true
	}
	found := findLong(d, map[protoreflect.FullName]bool{})
	longs.Store(d.FullName(), found)
	return found
}

func findLong(d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if seen[d.FullName()] || opaque(d) {
		return false
	}
	seen[d.FullName()] = true
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if isLong(fd.Kind()) || fd.Message() != nil && findLong(fd.Message(), seen) {
			return true
		}
	}
	return false
}
