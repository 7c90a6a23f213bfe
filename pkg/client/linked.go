package client

import (
	"context"
	"errors"
	"time"

	"quartet/pkg/fault"
)

// linked keeps a worker's stream open until ctx ends, and then returns nil. once must open a stream and
// serve it until it breaks. linked calls troubled with each error after which it calls once again. It
// returns an error if the server refuses the worker permanently.
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

// drained waits until left returns 0, but for at most reportTerm. idle must receive a value after left
// has decreased.
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
