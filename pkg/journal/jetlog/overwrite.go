package jetlog

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
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
		_, err = Patiently(ctx, func(ctx context.Context) (struct{}, error) {
			return struct{}{},
				stream.SecureDeleteMsg(ctx, next)
		})
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) &&
			!errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
			return err
		}
	}
}
