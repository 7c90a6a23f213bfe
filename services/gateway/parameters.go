package gateway

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
)

// parametersJSON returns a query string as the JSON of a message, which pbjson then reads, so that
// queries are checked as strictly as bodies. Parameters are the top-level fields of the message,
// in either form of their names; a list is a parameter given several times. Unknown parameters
// and repeated ones that are no lists are refused.
func parametersJSON(given url.Values, d protoreflect.MessageDescriptor) ([]byte, error) {
	out := []byte{'{'}
	for _, name := range sortedKeys(given) {
		fd := fieldNamed(d, name)
		if fd == nil || fd.IsMap() {
			return nil, unknownParameter(name)
		}
		values := given[name]
		if len(values) > 1 && !fd.IsList() {
			return nil, fault.InvalidArgument.New("query parameter "+strconv.Quote(name)+" is given twice", "field",
				string(fd.Name())).
				WithField(string(fd.Name()), "must be given once")
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = appendJSON(out, name)
		out = append(out, ':')
		if fd.IsList() {
			out = append(out, '[')
		}
		for i, v := range values {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendParameter(out, fd, v)
		}
		if fd.IsList() {
			out = append(out, ']')
		}
	}
	return append(out, '}'), nil
}

// fieldNamed returns the field of a name in either form, nil if there is none.
func fieldNamed(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := d.Fields().ByName(protoreflect.Name(name)); fd != nil {
		return fd
	}
	return d.Fields().ByJSONName(name)
}

// appendParameter appends one value. A boolean or number is written as such if the field has that
// type; everything else is written as a string, which pbjson refuses if the field has no such values.
func appendParameter(dst []byte, fd protoreflect.FieldDescriptor, v string) []byte {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		if v == "true" || v == "false" {
			return append(dst, v...)
		}
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
	default: // numbers, and enums by number
		if _, err := strconv.ParseInt(v, 10, 64); err == nil && json.Valid([]byte(v)) {
			return append(dst, v...)
		}
	}
	return appendJSON(dst, v)
}

// appendJSON appends a string as JSON. Invalid UTF-8, which a query string may contain, is
// replaced.
func appendJSON(dst []byte, s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // a string always marshals
		return append(dst, `""`...)
	}
	return append(dst, b...)
}

// unknownParameter returns the refusal of a query parameter that the call does not have.
func unknownParameter(name string) *fault.Error {
	if len(name) > 100 {
		name = name[:100]
	}
	return fault.UnknownField.New("query parameter "+strconv.Quote(name)+" is not known here; remove it", "field",
		name).
		WithField(name, "is not known; remove it")
}

// sortedKeys returns the names of the parameters in order.
func sortedKeys(v url.Values) []string {
	keys := make([]string, 0, len(v))
	for k := range v {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
