package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/jetlog"
)

// Lag is how far EVENTS is behind the journal of a partition.
type Lag struct {
	Frames uint64        // that were not copied yet
	Behind time.Duration // how long ago the oldest of them was stored; 0 if there is none
}

// fences is how many frames without content may be behind the last one with events. Publishers need not see them.
const fences = 16

// LagOf returns how far EVENTS is behind the journal of a partition. It asks the NATS servers, so that it knows of a
// publisher that does not run as well. now is compared with the servers' times.
func LagOf(ctx context.Context, js jetstream.JetStream, plane string, partition int, now time.Time) (Lag, error) {
	lag, err := lagOf(ctx, js, plane, partition, now)
	if err != nil {
		return Lag{}, fmt.Errorf("bus: how far %s is behind the journal of %s/%d: %w", Stream, plane, partition, err)
	}
	return lag, nil
}

func lagOf(ctx context.Context, js jetstream.JetStream, plane string, partition int, now time.Time) (lag Lag, err error) {
	log, err := js.Stream(ctx, jetlog.StreamName(plane))
	if err != nil {
		return lag, err
	}
	tail, err := log.GetLastMsgForSubject(ctx, jetlog.Subject(plane, partition))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return lag, nil
	}
	if err != nil {
		return lag, err
	}
	events, err := js.Stream(ctx, Stream)
	if err != nil {
		return lag, err
	}
	from := jetstream.ConsumerConfig{
		FilterSubject: jetlog.Subject(plane, partition), AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 10 * time.Second,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
	}
	m, err := events.GetLastMsgForSubject(ctx, PositionPrefix+plane+"."+strconv.Itoa(partition))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound): // never copied, or nothing was for as long as EVENTS keeps a position
		oldest := now.Add(-maxAge)
		from.DeliverPolicy, from.OptStartTime = jetstream.DeliverByStartTimePolicy, &oldest
	case err != nil:
		return lag, err
	default:
		end, err := PositionOf(m.Header)
		if err != nil || end.Seq >= tail.Sequence {
			return lag, err
		}
		from.OptStartSeq = end.Seq + 1
	}
	cons, err := log.CreateConsumer(ctx, from)
	if err != nil {
		return lag, err
	}
	defer func() { _ = log.DeleteConsumer(ctx, cons.CachedInfo().Name) }() // it ends by itself
	lag.Frames = cons.CachedInfo().NumPending
	for n := 0; lag.Frames > 0 && n < fences; n++ {
		m, err := cons.Next(jetstream.FetchContext(ctx))
		if err != nil {
			return lag, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return lag, err
		}
		if len(m.Data()) > 0 {
			lag.Behind = max(now.Sub(meta.Timestamp), 0)
			return lag, nil
		}
		lag.Frames = meta.NumPending
	}
	return Lag{}, nil
}
