package pbjson

import (
	"errors"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	"quartet/pkg/jsontext"
)

// Unmarshal parses b, which must be exactly one JSON value, into m, and discards the earlier
// content of m. Its errors are faults: MALFORMED_JSON, UNKNOWN_FIELD, INVALID_ARGUMENT, or
// LIMIT_EXCEEDED for a duration that is too long; all but the first have the field's path in
// metadata "field" and a field violation. After an error the content of m is undefined.
//
// A null means that the field is absent, except for singular fields of type Value. Elements of
// lists and maps must not be null, unless they are Values.
func Unmarshal(b []byte, m proto.Message) error {
	return read(m, decoder{Lexer: jsontext.Lexer{In: b}})
}

// UnmarshalProtoJSON is Unmarshal, and also accepts 64-bit integers as strings, as written by
// ProtoJSON.
func UnmarshalProtoJSON(b []byte, m proto.Message) error {
	return read(m, decoder{Lexer: jsontext.Lexer{In: b}, quotedIntegers: true})
}

// read decodes all of d's input into m.
func read(m proto.Message, d decoder) error {
	proto.Reset(m)
	r := m.ProtoReflect()
	err := d.message(r, planOf(r.Descriptor()), 0)
	if err == nil {
		// The position is compared, because peek returns 0 for a NUL byte as well.
		if d.Peek(); d.Pos < len(d.In) {
			err = d.Unexpected("the end")
		}
	}
	if err != nil {
		return refusal(err)
	}
	return nil
}

type decoder struct {
	jsontext.Lexer
	quotedIntegers bool // also accept 64-bit integers as strings
}

// badField is an error about a field. Each level of the decoder through which it is returned adds its
// element to the path (see in).
type badField struct {
	reason fault.Reason
	path   []string // innermost first
	text   string   // what is wrong, without the path
	must   string   // how to fix it
	value  string
	limit  string // the limit that the value exceeds; empty: the value is wrong for another reason
}

func (e *badField) Error() string { return e.text }

// in adds step, as the element outside of those that are there, to the path of err if that is a badField. It
// returns err.
func in(step string, err error) error {
	var bad *badField
	if errors.As(err, &bad) {
		bad.path = append(bad.path, step)
	}
	return err
}

func refusal(err error) error {
	var bad *badField
	if !errors.As(err, &bad) {
		return fault.MalformedJSON.New("the text is not JSON: " + err.Error())
	}
	var path strings.Builder
	for i := len(bad.path) - 1; i >= 0; i-- {
		if step := bad.path[i]; step[0] != '[' && path.Len() > 0 {
			path.WriteByte('.')
		}
		path.WriteString(bad.path[i])
	}
	name := path.String()
	if name == "" {
		name = "the value"
	}
	e := bad.reason.New(name+" "+bad.text, "field", path.String()).WithField(path.String(), bad.must)
	if bad.value != "" {
		e = e.With("value", bad.value)
	}
	if bad.limit != "" {
		e = e.With("limit", bad.limit)
	}
	return e
}

// invalid returns the error for the value that begins at start and ends at the current position. must
// says what the value must be.
func (d *decoder) invalid(start int, must string) error {
	end := min(d.Pos, start+80)
	if end <= start {
		end = min(len(d.In), start+20)
	}
	value := strings.ToValidUTF8(string(d.In[start:end]), "")
	return &badField{reason: fault.InvalidArgument, text: "is " + value + ", " + must, must: must, value: value}
}

// wrongType returns the error for a next value that has the wrong type, or a syntax error. It
// skips as much of the value as the error shows.
func (d *decoder) wrongType(must string) error {
	start := d.Pos
	switch d.Peek() {
	case '"':
		if _, err := d.Str(); err != nil {
			return err
		}
	case '{', '[':
		d.Pos++
	case 0:
		return d.Unexpected("a value")
	default:
		for d.Pos < len(d.In) && !strings.ContainsRune(" ,]}\n\r\t", rune(d.In[d.Pos])) {
			d.Pos++
		}
	}
	return d.invalid(start, must)
}

func (d *decoder) message(m protoreflect.Message, p *plan, depth int) error {
	if depth > maxDepth {
		return d.Fail("values nested deeper than 100 levels")
	}
	if p.shape != plain {
		return d.wellKnown(m, p.shape, depth)
	}
	if d.Peek() != '{' {
		return d.wrongType("must be an object")
	}
	d.Pos++
	var seen, oneofs bits
	for first := true; ; first = false {
		more, err := d.Next('}', first)
		if err != nil || !more {
			return err
		}
		key, err := d.Str()
		if err != nil {
			return err
		}
		f, known := p.byName[string(key)]
		if !known {
			return unknown(string(key))
		}
		if seen.set(f.index) {
			return in(f.name, &badField{
				reason: fault.InvalidArgument, text: "is given twice",
				must: "must be given once",
			})
		}
		if err := d.Expect(':'); err != nil {
			return err
		}
		if d.Peek() == 'n' && (f.msg == nil || f.msg.shape != anyValue || f.fd.IsList()) {
			if err := d.Literal("null"); err != nil {
				return err
			}
			continue
		}
		if f.oneof >= 0 && oneofs.set(f.oneof) {
			return in(f.name, &badField{
				reason: fault.InvalidArgument,
				text:   "comes together with another field of " + string(f.fd.ContainingOneof().Name()),
				must:   "must come alone",
			})
		}
		if err := d.field(m, f, depth); err != nil {
			return in(f.name, err)
		}
	}
}

func unknown(key string) error {
	key = clip(key)
	if key == "" || key[0] == '[' {
		key = strconv.Quote(key) // so that the path stays readable
	}
	return &badField{
		reason: fault.UnknownField, path: []string{key}, text: "is not a field here",
		must: "is not known; remove it",
	}
}

func (d *decoder) field(m protoreflect.Message, f *field, depth int) error {
	switch {
	case f.value != nil:
		return d.dict(m, f, depth)
	case f.fd.IsList():
		return d.list(m, f, depth)
	case f.msg != nil:
		v := m.NewField(f.fd)
		if err := d.message(v.Message(), f.msg, depth+1); err != nil {
			return err
		}
		m.Set(f.fd, v)
		return nil
	}
	v, err := d.scalar(f)
	if err == nil {
		m.Set(f.fd, v)
	}
	return err
}

func (d *decoder) list(m protoreflect.Message, f *field, depth int) error {
	if d.Peek() != '[' {
		return d.wrongType("must be a list")
	}
	d.Pos++
	l := m.Mutable(f.fd).List()
	for i := 0; ; i++ {
		more, err := d.Next(']', i == 0)
		if err != nil || !more {
			return err
		}
		var v protoreflect.Value
		if f.msg != nil {
			v = l.NewElement()
			if err := d.message(v.Message(), f.msg, depth+1); err != nil {
				return in("["+strconv.Itoa(i)+"]", err)
			}
		} else if v, err = d.scalar(f); err != nil {
			return in("["+strconv.Itoa(i)+"]", err)
		}
		l.Append(v)
	}
}

func (d *decoder) dict(m protoreflect.Message, f *field, depth int) error {
	if d.Peek() != '{' {
		return d.wrongType("must be an object")
	}
	d.Pos++
	entries := m.Mutable(f.fd).Map()
	for first := true; ; first = false {
		more, err := d.Next('}', first)
		if err != nil || !more {
			return err
		}
		d.Peek()
		start := d.Pos
		raw, err := d.Str()
		if err != nil {
			return err
		}
		name := string(raw)
		step := func() string { return "[" + strconv.Quote(clip(name)) + "]" }
		key, ok := mapKey(f.mapKey, name)
		if !ok {
			return in(step(), d.invalid(start, "must be a key of type "+f.mapKey.String()))
		}
		if entries.Has(key) {
			return in(step(), &badField{
				reason: fault.InvalidArgument, text: "is given twice",
				must: "must be given once",
			})
		}
		if err := d.Expect(':'); err != nil {
			return err
		}
		var v protoreflect.Value
		if f.value.msg != nil {
			v = entries.NewValue()
			err = d.message(v.Message(), f.value.msg, depth+1)
		} else {
			v, err = d.scalar(f.value)
		}
		if err != nil {
			return in(step(), err)
		}
		entries.Set(key, v)
	}
}

func mapKey(kind protoreflect.Kind, s string) (protoreflect.MapKey, bool) {
	var v protoreflect.Value
	switch kind {
	case protoreflect.StringKind:
		v = protoreflect.ValueOfString(s)
	case protoreflect.BoolKind:
		if s != "true" && s != "false" {
			return protoreflect.MapKey{}, false
		}
		v = protoreflect.ValueOfBool(s == "true")
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil {
			return protoreflect.MapKey{}, false
		}
		v = protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return protoreflect.MapKey{}, false
		}
		v = protoreflect.ValueOfInt64(n)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return protoreflect.MapKey{}, false
		}
		v = protoreflect.ValueOfUint32(uint32(n))
	default:
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return protoreflect.MapKey{}, false
		}
		v = protoreflect.ValueOfUint64(n)
	}
	return v.MapKey(), true
}

// bits is a set of small numbers; messages with more than 64 fields are rare.
type bits struct {
	low  uint64
	high map[int]bool
}

// set adds n and reports whether the set contained it.
func (b *bits) set(n int) bool {
	if n < 64 {
		had := b.low&(1<<n) != 0
		b.low |= 1 << n
		return had
	}
	if b.high == nil {
		b.high = map[int]bool{}
	}
	had := b.high[n]
	b.high[n] = true
	return had
}
