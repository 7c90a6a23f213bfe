package fault_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"quartet/pkg/fault"
)

// wire is what a client sees of err: the status, as bytes would carry it.
func wire(err error) error {
	return status.FromProto(fault.From(err).GRPCStatus().Proto()).Err()
}

func TestX5_FaultKeepsIdentityOverTheWire(t *testing.T) {
	sent := fault.WorkItemCompleted.New("wi_1 is completed", "work_item_id", "wi_1").
		WithField("work_item_id", "names a completed item")
	got := fault.From(wire(fmt.Errorf("update: %w", sent)))

	require.ErrorIs(t, sent, fault.WorkItemCompleted)
	require.ErrorIs(t, got, fault.WorkItemCompleted)
	require.NotErrorIs(t, got, fault.NotFound)
	require.Equal(t, codes.FailedPrecondition, got.Code())
	require.Equal(t, codes.FailedPrecondition, status.Code(got))
	require.Equal(t, "wi_1 is completed", got.Message())
	require.Equal(t, map[string]string{"work_item_id": "wi_1"}, got.Metadata())
	require.Equal(t, sent.Violations(), got.Violations())
}

func TestX5_InternalTextNeverCrosses(t *testing.T) {
	secret := errors.New("open /secret/path: denied")
	e := fault.From(secret)
	require.ErrorIs(t, e, secret)
	require.Equal(t, fault.InternalError, e.Reason())

	got := fault.From(wire(e))
	require.NotContains(t, got.Error(), "secret")
	require.NotErrorIs(t, got, secret)
	require.Len(t, got.Metadata()[fault.ErrorIDKey], 16)
	require.Equal(t, e.Metadata()[fault.ErrorIDKey], got.Metadata()[fault.ErrorIDKey])
	require.NotEqual(t, e.Metadata(), fault.From(secret).Metadata())
}

func TestFromForeignErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		reason fault.Reason
		code   codes.Code
	}{
		{context.DeadlineExceeded, fault.Deadline, codes.DeadlineExceeded},
		{context.Canceled, fault.Cancelled, codes.Canceled},
		{status.Error(codes.Unavailable, "connection refused"), fault.NotReady, codes.Unavailable},
		{
			status.Error(codes.ResourceExhausted, "received message larger than max (5 vs. 4)"), fault.TooLarge,
			codes.InvalidArgument,
		},
		{status.Error(codes.ResourceExhausted, "quota"), fault.Overloaded, codes.ResourceExhausted},
		{status.Error(codes.Unimplemented, "x"), fault.Unimplemented, codes.Unimplemented},
		{status.Error(codes.Unknown, "private"), fault.InternalError, codes.Internal},
		{errors.New("private"), fault.InternalError, codes.Internal},
	} {
		e := fault.From(c.err)
		require.Equal(t, c.reason, e.Reason(), "%v", c.err)
		require.Equal(t, c.code, e.Code(), "%v", c.err)
		require.ErrorIs(t, e, c.err)
	}
	require.Nil(t, fault.From(nil))
}

func TestWithDoesNotChangeTheOriginal(t *testing.T) {
	base := fault.NotFound.New("no such item", "a", "1")
	_ = base.With("b", "2").WithField("f", "d")
	require.Equal(t, map[string]string{"a": "1"}, base.Metadata())
	require.Empty(t, base.Violations())
}

func TestInvalidUTF8StillCrosses(t *testing.T) {
	got := fault.From(wire(fault.Invalid("name", "a\xffb", "must be a name")))
	require.Equal(t, fault.InvalidArgument, got.Reason())
}

func TestHTTPStatus(t *testing.T) {
	for r, want := range map[fault.Reason]int{
		fault.InvalidArgument:   http.StatusBadRequest,
		fault.TooLarge:          http.StatusRequestEntityTooLarge,
		fault.NotFound:          http.StatusNotFound,
		fault.RevisionConflict:  http.StatusConflict,
		fault.WorkItemCompleted: http.StatusConflict,
		fault.AlreadyExists:     http.StatusConflict,
		fault.TriggerRevoked:    http.StatusForbidden,
		fault.Unauthenticated:   http.StatusUnauthorized,
		fault.Overloaded:        http.StatusTooManyRequests,
		fault.Storage:           http.StatusServiceUnavailable,
		fault.Deadline:          http.StatusGatewayTimeout,
		fault.InternalError:     http.StatusInternalServerError,
		fault.Unimplemented:     http.StatusNotImplemented,
		fault.Cancelled:         499,
	} {
		require.Equal(t, want, fault.HTTPStatus(r.New("m")), r)
	}
}
