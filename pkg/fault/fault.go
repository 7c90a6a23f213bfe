package fault

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the ErrorInfo domain of every fault.
const Domain = "quartet"

// ErrorIDKey is the metadata key of the id that an INTERNAL fault shares with the log entry of
// its cause.
const ErrorIDKey = "error_id"

// Reason is the name of a refusal, such as NOT_FOUND; All lists them. Handlers return an *Error, and
// callers test its reason with errors.Is(err, fault.NotFound).
type Reason string

// Error implements error, so that a Reason can be the target of errors.Is.
func (r Reason) Error() string { return string(r) }

// New returns a fault with this reason and its documented code. A reason that is not documented
// gets codes.Internal.
func (r Reason) New(msg string, meta ...string) *Error {
	return New(r.Code(), r, msg, meta...)
}

// Newf is New with a formatted message and no metadata.
func (r Reason) Newf(format string, args ...any) *Error {
	return New(r.Code(), r, fmt.Sprintf(format, args...))
}

// Violation describes what is wrong with one request field.
type Violation struct {
	Field       string // path of the field, snake_case: "todo_list[3].text"
	Description string // what is wrong and how to fix it
}

// Error is a fault. It is immutable: With and WithField return copies, so a fault may be kept in
// a variable and shared between goroutines.
type Error struct {
	code       codes.Code
	reason     Reason
	message    string
	metadata   map[string]string
	violations []Violation
	retryAfter time.Duration // 0: unknown
	cause      error         // never leaves the process
}

// New returns a fault. meta is key, value, key, value; a last key without a value gets an empty
// one.
func New(code codes.Code, reason Reason, msg string, meta ...string) *Error {
	e := &Error{code: code, reason: reason, message: msg}
	if len(meta) > 0 {
		e.metadata = make(map[string]string, (len(meta)+1)/2)
		for i := 0; i < len(meta); i += 2 {
			v := ""
			if i+1 < len(meta) {
				v = meta[i+1]
			}
			e.metadata[meta[i]] = v
		}
	}
	return e
}

// Internal returns an INTERNAL fault with a new error_id, whose message does not contain that of
// err. The cause is kept for errors.Is and for the log, in this process only.
func Internal(err error) *Error {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // crypto/rand.Read never fails since Go 1.24
	id := hex.EncodeToString(raw[:])
	e := New(codes.Internal, InternalError,
		"internal error "+id+"; the server's log has the cause under this id", ErrorIDKey, id)
	e.cause = err
	return e
}

// Error returns the reason and the message.
func (e *Error) Error() string { return string(e.reason) + ": " + e.message }

// Message returns the message for people, without the reason.
func (e *Error) Message() string { return e.message }

// Reason returns the documented reason.
func (e *Error) Reason() Reason { return e.reason }

// Code returns the canonical gRPC code.
func (e *Error) Code() codes.Code { return e.code }

// Metadata returns the metadata, which must not be changed and may be nil.
func (e *Error) Metadata() map[string]string { return e.metadata }

// Violations returns the field violations in the order in which they were added. The slice must
// not be changed and may be nil.
func (e *Error) Violations() []Violation { return e.violations }

// Unwrap gives the cause, which exists only in the process that made it.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is the Reason of this fault.
func (e *Error) Is(target error) bool {
	r, ok := target.(Reason)
	return ok && r == e.reason
}

// With returns a copy with one more metadata pair.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.metadata = make(map[string]string, len(e.metadata)+1)
	maps.Copy(c.metadata, e.metadata)
	c.metadata[key] = value
	return &c
}

// WithField returns a copy with one more field violation.
func (e *Error) WithField(field, description string) *Error {
	c := *e
	c.violations = append(slices.Clip(e.violations), Violation{field, description})
	return &c
}

// WithRetryAfter returns a copy that says after which time the caller should repeat the request.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.retryAfter = d
	return &c
}

// RetryAfter returns after which time the caller should repeat the request, or 0 if that is unknown.
func (e *Error) RetryAfter() time.Duration { return e.retryAfter }

// WithCause returns a copy with a cause, for the log and for errors.Is in this process.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.cause = err
	return &c
}

// GRPCStatus returns the fault as a gRPC status. grpc and status.FromError call it.
func (e *Error) GRPCStatus() *status.Status {
	// grpc cannot send invalid UTF-8 in an offending value, and would send Internal instead.
	st := status.New(e.code, strings.ToValidUTF8(e.message, "\uFFFD"))
	info := &errdetails.ErrorInfo{Reason: string(e.reason), Domain: Domain}
	if len(e.metadata) > 0 {
		info.Metadata = make(map[string]string, len(e.metadata))
		for k, v := range e.metadata {
			info.Metadata[strings.ToValidUTF8(k, "\uFFFD")] = strings.ToValidUTF8(v, "\uFFFD")
		}
	}
	details := []protoadapt.MessageV1{info}
	if len(e.violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range e.violations {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field:       strings.ToValidUTF8(v.Field, "\uFFFD"),
				Description: strings.ToValidUTF8(v.Description, "\uFFFD"),
			})
		}
		details = append(details, bad)
	}
	if e.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.retryAfter)})
	}
	full, err := st.WithDetails(details...)
	if err != nil { // only for codes.OK, which no fault has
		return st
	}
	return full
}

// From returns err as a fault: the fault that it is or wraps, unchanged, without what wraps it; a
// status error with its reason, or the general reason of its code if it has none; a context
// error as DEADLINE or CANCELLED; and any other error as INTERNAL without its text. From(nil)
// is a nil *Error, which must not be assigned to an error variable.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var carrier interface{ GRPCStatus() *status.Status }
	if errors.As(err, &carrier) {
		return fromStatus(carrier.GRPCStatus(), err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline.New("the deadline passed before the answer was known").WithCause(err)
	case errors.Is(err, context.Canceled):
		return Cancelled.New("the caller went away before the answer was known").WithCause(err)
	}
	return Internal(err)
}

// fromStatus converts a status to a fault. A status without an ErrorInfo of Quartet was created
// by grpc itself (connection refused, message too large) and gets the general reason of its
// code.
func fromStatus(st *status.Status, cause error) *Error {
	e := &Error{code: st.Code(), message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain {
				e.reason, e.metadata = Reason(d.GetReason()), d.GetMetadata()
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.violations = append(e.violations, Violation{v.GetField(), v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.retryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	if e.reason != "" {
		return e
	}
	e.cause = cause
	switch st.Code() {
	case codes.ResourceExhausted:
		e.reason = Overloaded
		if strings.Contains(st.Message(), "larger than max") {
			e.reason, e.code = TooLarge, codes.InvalidArgument
		}
	case codes.InvalidArgument:
		e.reason = InvalidArgument
	case codes.NotFound:
		e.reason = NotFound
	case codes.AlreadyExists:
		e.reason = AlreadyExists
	case codes.PermissionDenied:
		e.reason = PermissionDenied
	case codes.Unauthenticated:
		e.reason = Unauthenticated
	case codes.Unavailable:
		e.reason = NotReady
	case codes.Unimplemented:
		e.reason = Unimplemented
	case codes.DeadlineExceeded:
		e.reason = Deadline
	case codes.Canceled:
		e.reason = Cancelled
	default:
		return Internal(cause)
	}
	return e
}
