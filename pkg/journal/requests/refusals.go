package requests

import (
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
)

// Reused returns REQUEST_ID_REUSED, for a request id that is remembered with other arguments.
func Reused(requestID string) error {
	return fault.New(codes.AlreadyExists, fault.RequestIDReused,
		"request_id "+requestID+" was used with other arguments; use a new one for a new request", "request_id",
		requestID)
}

// Unknown returns NOT_FOUND, for the recall of a request that is not remembered.
func Unknown(requestID string) error {
	return fault.NotFound.Newf("no request with the id %s is remembered here", requestID).With("request_id", requestID)
}
