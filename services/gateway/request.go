package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	"quartet/pkg/pbjson"
)

// input is a request of the REST API after decoding. The middleware makes it and puts it in
// the place of the body, where the marshaler (see codec) and refuse find it.
type input struct {
	msg         proto.Message // what goes to the plane, with the parameters of the path
	conditional bool          // If-Match was given
	revision    int64         // of If-Match
	key         string        // Idempotency-Key
	requestID   string        // for the response: key, or the request's own request_id
}

// Read and Close make an input an http.Request's body. Nothing is left to read.
func (*input) Read([]byte) (int, error) { return 0, io.EOF }

// Close implements io.Closer.
func (*input) Close() error { return nil }

// inputOf returns the input that is the body of a request, or an empty one for requests outside the
// REST API and for those that were not decoded yet.
func inputOf(r *http.Request) *input {
	if in, ok := r.Body.(*input); ok {
		return in
	}
	return &input{}
}

// headers reads the headers that become fields of the message. decode refuses an If-Match that
// the RPC does not take, and ignores such an Idempotency-Key.
func (in *input) headers(r *http.Request) error {
	in.key = unquoted(r.Header.Get("Idempotency-Key"))
	in.requestID = in.key
	if err := fault.RequestID(in.key); err != nil {
		return err
	}
	if tag := r.Header.Get("If-Match"); tag != "" && tag != "*" {
		revision, err := revisionOf(tag)
		if err != nil {
			return err
		}
		in.conditional, in.revision = true, revision
	}
	return nil
}

// decode sets in.msg to the message of a request, from its query if that is not nil, otherwise from
// its body text, and from its path and headers. It refuses what is unknown, malformed or
// contradictory.
func (in *input) decode(rt *route, text []byte, query url.Values, path map[string]string) error {
	m := rt.input.New().Interface()
	in.msg = m
	if query != nil {
		var err error
		if text, err = parametersJSON(query, m.ProtoReflect().Descriptor()); err != nil {
			return err
		}
	}
	if len(bytes.TrimSpace(text)) > 0 {
		if err := pbjson.UnmarshalProtoJSON(text, m); err != nil {
			return malformed(text, err)
		}
	}
	r := m.ProtoReflect()
	for name, value := range path {
		fd := r.Descriptor().Fields().ByName(protoreflect.Name(name))
		if fd == nil || fd.Kind() != protoreflect.StringKind {
			return fault.InternalError.Newf("path parameter %s of %s is no text field", name, rt.method)
		}
		if r.Has(fd) && r.Get(fd).String() != value {
			return fault.Invalid(name, r.Get(fd).String(), "must be left out, or be "+value+" as in the path")
		}
		r.Set(fd, protoreflect.ValueOfString(value))
	}
	if err := in.identify(r); err != nil {
		return err
	}
	return in.guard(r)
}

// malformed returns the error for a body that cannot be decoded. For text that is not JSON,
// such as "objective=x", it says so, which helps more than that it is no object.
func malformed(text []byte, err error) error {
	if errors.Is(err, fault.MalformedJSON) || json.Valid(text) {
		return err
	}
	var v json.RawMessage
	return fault.MalformedJSON.New("the body is not JSON: " + json.Unmarshal(text, &v).Error())
}

// identify sets request_id to the Idempotency-Key, if the call takes a request_id (SPEC X2). It
// refuses another request_id in the request. Without the header it keeps the request's own one
// for the response. For a call that takes no request_id, which is idempotent by other means, it ignores the header.
func (in *input) identify(r protoreflect.Message) error {
	fd := r.Descriptor().Fields().ByName("request_id")
	if fd == nil {
		return nil
	}
	switch given := r.Get(fd).String(); {
	case in.key == "":
		in.requestID = given
	case given != "" && given != in.key:
		return fault.Invalid("request_id", given, "must be left out, or be the Idempotency-Key")
	default:
		r.Set(fd, protoreflect.ValueOfString(in.key))
	}
	return nil
}

// guard sets expected_revision to the revision of If-Match, if there was one (SPEC X3).
func (in *input) guard(r protoreflect.Message) error {
	if !in.conditional {
		return nil
	}
	fd := r.Descriptor().Fields().ByName("expected_revision")
	if fd == nil {
		return fault.InvalidArgument.New("this call takes no If-Match; leave the header out", "field", "If-Match")
	}
	if r.Has(fd) && r.Get(fd).Int() != in.revision {
		return fault.Invalid("expected_revision", r.Get(fd).String(),
			"must be left out, or be the revision of If-Match")
	}
	r.Set(fd, protoreflect.ValueOfInt64(in.revision))
	return nil
}

// unquoted returns an idempotency key without the quotes around it. The header is a structured field, whose strings
// are quoted, but most clients send the key without quotes.
func unquoted(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

// revisionOf returns the revision in an ETag of this gateway, and refuses any other tag.
func revisionOf(tag string) (int64, error) {
	text, strong := strings.CutPrefix(tag, `"`)
	text, closed := strings.CutSuffix(text, `"`)
	n, err := strconv.ParseInt(text, 10, 64)
	if !strong || !closed || err != nil || n < 1 {
		return 0, fault.Invalid("If-Match", tag, `must be a revision in quotes, such as "3": the ETag of the record`)
	}
	return n, nil
}
