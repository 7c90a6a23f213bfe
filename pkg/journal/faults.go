package journal

import (
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
)

// Values of the metadata key outcome (SPEC X1).
const (
	outcomeNone    = "none"
	outcomeUnknown = "unknown"
)

func unavailable(outcome, msg string, cause error) error {
	e := fault.New(codes.Unavailable, fault.Storage, msg, "outcome", outcome)
	if cause != nil {
		e = e.WithCause(cause)
	}
	return e
}

func leaseLost() error {
	return unavailable(outcomeNone, "the lease of the partition is over, so what stands here may be old; try again", ErrNotHeld)
}

func internal(cause error) error { return fault.Internal(cause) }

func reused(requestID string) error {
	return fault.New(codes.AlreadyExists, fault.RequestIDReused,
		"request_id "+requestID+" was used with other arguments; use a new one for a new request", "request_id", requestID)
}

func unknownRequest(requestID string) error {
	return fault.NotFound.Newf("no request with the id %s changed anything here", requestID).With("request_id", requestID)
}

func tooLarge(eventType string, size, limit int) error {
	return fault.TooLarge.Newf("event %s has %d bytes, at most %d are allowed (SPEC X8)", eventType, size, limit)
}
