package fault

import (
	"net/http"

	"google.golang.org/grpc/codes"
)

// HTTPStatus returns the HTTP status of a fault. The gateway uses 412 instead for a
// REVISION_CONFLICT of If-Match (SPEC X3).
func HTTPStatus(e *Error) int {
	if e == nil {
		return http.StatusOK
	}
	if e.reason == TooLarge {
		return http.StatusRequestEntityTooLarge
	}
	switch e.code {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return 499 // the client closed the connection; nobody reads this
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted, codes.FailedPrecondition:
		// FailedPrecondition is 409 rather than 400, because the request is valid and
		// conflicts with the state of the record.
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}
