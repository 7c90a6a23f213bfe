package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/jetlog"
)

// Erase removes the events of an agent that a plane wrote from EVENTS, and overwrites their bytes. It may be repeated.
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
