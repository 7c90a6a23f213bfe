package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	"quartet/pkg/pbjson"
)

// bodyTime is how long a client may take to send a body.
const bodyTime = 30 * time.Second

// call is what an HTTP request says beside its path. The generated handlers
// know the path only; conn puts the rest into the gRPC request.
type call struct {
	query       url.Values // of a GET
	body        []byte     // of anything else
	conditional bool       // If-Match was given
	revision    int64      // of If-Match
	key         string     // Idempotency-Key
	requestID   string     // for the answer: key, or the body's request_id
	traceparent string
}

type callKey struct{}

// callFrom gives the call of a request's context, or an empty one.
func callFrom(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// read takes the request in. The returned request has neither body nor query:
// what the generated code makes of those is neither strict nor documented.
func (g *Service) read(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	c := &call{key: unquoted(r.Header.Get("Idempotency-Key")), traceparent: r.Header.Get("Traceparent")}
	c.requestID = c.key
	out := r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	if err := fault.RequestID(c.key); err != nil {
		return out, err
	}
	if tag := r.Header.Get("If-Match"); tag != "" && tag != "*" {
		revision, err := revisionOf(tag)
		if err != nil {
			return out, err
		}
		c.conditional, c.revision = true, revision
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return out, fault.InvalidArgument.New("the query string cannot be read: " + err.Error())
	}
	if r.Method == http.MethodGet {
		c.query = query
	} else {
		for name := range query {
			return out, unknownParameter(name).With("hint", "send it in the body")
		}
		if c.body, err = readBody(w, r, g.cfg.MaxBody); err != nil {
			return out, err
		}
	}
	plain := *out.URL
	plain.RawQuery = ""
	out.URL, out.Body, out.ContentLength = &plain, http.NoBody, 0
	return out, nil
}

// drainTime413 is how long a client may go on sending what is too large, before the
// answer and the end of the connection.
const drainTime413 = time.Second

// readBody reads at most limit bytes, within bodyTime. Of more than that it reads
// and forgets as much again, for drainTime413 at most: most clients read the answer
// only when they have sent it all, and a connection that is closed before takes the
// answer with it.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime)) // a writer without deadlines has no slow clients
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	var body []byte
	var err error
	announced := r.ContentLength > limit
	if !announced {
		body, err = io.ReadAll(io.LimitReader(r.Body, limit+1))
	}
	switch {
	case announced || int64(len(body)) > limit:
		_ = control.SetReadDeadline(time.Now().Add(drainTime413))
		rest := 2*limit - int64(len(body))
		// One byte more tells whether that was all.
		if n, err := io.CopyN(io.Discard, r.Body, rest+1); !errors.Is(err, io.EOF) || n > rest {
			w.Header().Set("Connection", "close") // it is of no more use
		}
		l := strconv.FormatInt(limit, 10)
		return nil, fault.TooLarge.New("the body is larger than the limit of "+l+" bytes", "limit", l)
	case err != nil:
		return nil, fault.InvalidArgument.New("the body could not be read to its end").WithCause(err)
	}
	return body, nil
}

// unquoted takes the key as most clients send it, and as a structured field.
func unquoted(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

// revisionOf reads an ETag of ours.
func revisionOf(tag string) (int64, error) {
	text, strong := strings.CutPrefix(tag, `"`)
	text, closed := strings.CutSuffix(text, `"`)
	n, err := strconv.ParseInt(text, 10, 64)
	if !strong || !closed || err != nil || n < 1 {
		return 0, fault.Invalid("If-Match", tag, `must be a revision in quotes, such as "3": the ETag of the record`)
	}
	return n, nil
}

// fill makes the request that goes to the plane: what the caller sent, and
// over it what stands in the path.
func (c *call) fill(path proto.Message) (proto.Message, error) {
	m := path.ProtoReflect().New().Interface()
	input := c.body
	if c.query != nil {
		var err error
		if input, err = queryJSON(c.query, m.ProtoReflect().Descriptor()); err != nil {
			return nil, err
		}
	} else {
		input = plainNumbers(input, m.ProtoReflect().Descriptor())
	}
	if len(bytes.TrimSpace(input)) > 0 {
		if err := pbjson.Unmarshal(input, m); err != nil {
			return nil, malformed(input, err)
		}
	}
	r := m.ProtoReflect()
	var conflict error
	path.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if r.Has(fd) && !r.Get(fd).Equal(v) {
			conflict = fault.Invalid(string(fd.Name()), r.Get(fd).String(), "must be left out, or be "+v.String()+" as in the path")
			return false
		}
		r.Set(fd, v)
		return true
	})
	if conflict != nil {
		return nil, conflict
	}
	if err := c.identify(r); err != nil {
		return nil, err
	}
	return m, c.guard(r)
}

// malformed says that text is not JSON at all before it says what is wrong
// with its beginning: "objective=x" is no object, but that is not the point.
func malformed(input []byte, err error) error {
	if errors.Is(err, fault.MalformedJSON) || json.Valid(input) {
		return err
	}
	var v json.RawMessage
	return fault.MalformedJSON.New("the body is not JSON: " + json.Unmarshal(input, &v).Error())
}

// identify puts the Idempotency-Key where the call takes a request_id
// (SPEC X2). Calls that take none are idempotent by other means.
func (c *call) identify(r protoreflect.Message) error {
	fd := r.Descriptor().Fields().ByName("request_id")
	if fd == nil {
		return nil
	}
	switch given := r.Get(fd).String(); {
	case c.key == "":
		c.requestID = given
	case given != "" && given != c.key:
		return fault.Invalid("request_id", given, "must be left out, or be the Idempotency-Key")
	default:
		r.Set(fd, protoreflect.ValueOfString(c.key))
	}
	return nil
}

// guard puts If-Match where the call takes an expected_revision (SPEC X3).
func (c *call) guard(r protoreflect.Message) error {
	if !c.conditional {
		return nil
	}
	fd := r.Descriptor().Fields().ByName("expected_revision")
	if fd == nil {
		return fault.InvalidArgument.New("this call takes no If-Match; leave the header out", "field", "If-Match")
	}
	if r.Has(fd) && r.Get(fd).Int() != c.revision {
		return fault.Invalid("expected_revision", r.Get(fd).String(), "must be left out, or be the revision of If-Match")
	}
	r.Set(fd, protoreflect.ValueOfInt64(c.revision))
	return nil
}
