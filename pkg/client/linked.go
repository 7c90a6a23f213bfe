package client

import (
	"context"
	"errors"
	"time"

	"quartet/pkg/fault"
)

// linked keeps a worker's stream open until ctx ends, which is no error. once opens a stream and
// serves it until it breaks. linked returns an error if the server refuses the worker permanently.
func linked(ctx context.Context, once func(context.Context) error, troubled func(error)) error {
	pacer := newPacer()
	for ctx.Err() == nil {
		began := time.Now()
		err := once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to end
		case errors.Is(err, fault.AlreadyExists), !mayAcquireLater(err):
			return err
		}
		if time.Since(began) > lastPause {
			pacer.Reset()
		}
		troubled(err)
		_ = pacer.Wait(ctx) // the loop checks ctx
	}
	return nil
}

// drained waits until left returns 0, but for at most reportTerm. idle receives a value when
// something was stored.
func drained(left func() int, idle <-chan struct{}) {
	term := time.NewTimer(reportTerm)
	defer term.Stop()
	for left() > 0 {
		select {
		case <-idle:
		case <-term.C:
			return
		}
	}
}
