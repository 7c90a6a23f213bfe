package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/retry"
)

const (
	// attemptTerm bounds one attempt of a call: the longest poll that the server
	// knows, and time to answer.
	attemptTerm = 90 * time.Second
	firstPause  = 50 * time.Millisecond
	lastPause   = 2 * time.Second
)

// Passing says whether an error may go by itself: the server is away, has no
// room, or could not answer in time. A mutation that failed so may have happened
// all the same; repeat it with the same request id.
func Passing(err error) bool {
	switch fault.From(err).Code() {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return false
}

// Again repeats a call while its error is a passing one, until ctx ends; then
// the error is ctx's cause. A call that changes something must carry the same
// request id each time.
func Again[R any](ctx context.Context, call func(context.Context) (R, error)) (R, error) {
	pacer := newPacer()
	for {
		one, cancel := context.WithTimeout(ctx, attemptTerm)
		r, err := call(one)
		cancel()
		switch {
		case err == nil:
			return r, nil
		case ctx.Err() != nil:
			return r, context.Cause(ctx)
		case !Passing(err):
			return r, err
		}
		if err := pacer.Wait(ctx); err != nil {
			return r, err
		}
	}
}

// newPacer paces the attempts of this package.
func newPacer() *retry.Pacer { return retry.New(firstPause, lastPause) }
