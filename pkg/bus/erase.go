package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/jetlog"
)

// Erase removes from EVENTS the events about an agent that a plane has written, and overwrites their bytes on the
// disk. It may be repeated. Without the stream it does nothing.
func Erase(ctx context.Context, nc *nats.Conn, namespace, plane, agentID string) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("bus: %w", err)
	}
	stream, err := js.Stream(ctx, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) { // an installation that publishes nothing has none
		return nil
	}
	if err == nil {
		err = jetlog.Overwrite(ctx, stream, EventPrefix+token(namespace)+"."+token(plane)+"."+token(agentID)+".*")
	}
	if err != nil {
		return fmt.Errorf("bus: erase the events of an agent: %w", err)
	}
	return nil
}
