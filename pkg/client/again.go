package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/retry"
)

const (
	// attemptTerm bounds one attempt of a call: the longest poll of the server, and time
	// to respond.
	attemptTerm = 90 * time.Second
	firstPause  = 50 * time.Millisecond
	lastPause   = 2 * time.Second
)

// Passing reports whether an error is transient: the server is unreachable or overloaded, did
// not respond in time, or a limit is reached that may have room later, such as a quota or a
// pool's workers. A mutation that failed with it may have been executed; repeat it with the
// same request id.
func Passing(err error) bool {
	switch fault.From(err).Code() {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return false
}

// Again calls call, and calls it again while its error is transient (see Passing), with growing
// pauses. It returns nil or an error that is not transient as call returns it, and the cause of ctx once
// ctx has ended. One attempt takes at most 90 s. A mutation must have the same request id in each attempt.
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

// newPacer returns the pacer for the pauses between attempts in this package.
func newPacer() *retry.Pacer { return retry.New(firstPause, lastPause) }
