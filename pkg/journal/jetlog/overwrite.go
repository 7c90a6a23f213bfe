package jetlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/retry"
)

// Overwrite removes the messages of a stream whose subjects match a filter, and overwrites their bytes in the server's
// files, which a purge leaves there until a file is written again. It is no error if there is no such message or
// stream.
func Overwrite(ctx context.Context, stream jetstream.Stream, subject string) error {
	for next := uint64(1); ; next++ {
		// Find the first message with the subject at next or behind it.
		m, err := Patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(subject))
		})
		if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		next = m.Sequence
		if err := overwriteMessage(ctx, stream, next); err != nil {
			return err
		}
	}
}

// overwriteAttempts is how often a server is asked to overwrite a message that it still has, over about 5 s.
const overwriteAttempts = 10

// overwriteMessage removes a message and overwrites its bytes. It is no error if there is none. The client has one
// error for all that a server refuses, so it asks afterwards whether the message is still there.
func overwriteMessage(ctx context.Context, stream jetstream.Stream, seq uint64) error {
	pacer := retry.New(100*time.Millisecond, time.Second)
	for n := 1; ; n++ {
		_, err := Patiently(ctx, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, stream.SecureDeleteMsg(ctx, seq)
		})
		if err == nil || errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
			return err
		}
		_, found := Patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return stream.GetMsg(ctx, seq)
		})
		if errors.Is(found, jetstream.ErrMsgNotFound) {
			return nil
		}
		if n == overwriteAttempts || pacer.Wait(ctx) != nil {
			return fmt.Errorf("message %d is still there: %w", seq, errors.Join(err, found))
		}
	}
}
