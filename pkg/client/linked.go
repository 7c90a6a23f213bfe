package client

import (
	"context"
	"errors"
	"time"

	"quartet/pkg/fault"
)

// linked keeps a worker's stream open until ctx ends: once opens one and serves
// it until it breaks. The error is a refusal that stays.
func linked(ctx context.Context, once func(context.Context) error, troubled func(error)) error {
	pacer := newPacer()
	for ctx.Err() == nil {
		began := time.Now()
		err := once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was sentStart to end
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

// drained waits until nothing is left to be stored, for a term; idle says that
// something was.
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
