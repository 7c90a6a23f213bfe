package bus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/jetlog"
)

// Lag is how far EVENTS is behind the journal of a partition.
type Lag struct {
	Frames uint64        // how many frames were not copied yet
	Behind time.Duration // how long ago the oldest of them was stored; 0 if there is none
}

// fences is how many frames without events may be at the end of a journal without counting as lag: a publisher does
// not copy them.
const fences = 16

// LagOf returns how far EVENTS is behind the journal of a partition. It asks the NATS servers, so that the result
// is right even if the publisher does not run. It does not count archived frames. It compares now with times of the
// servers.
func LagOf(ctx context.Context, js jetstream.JetStream, plane string, partition int, now time.Time) (Lag, error) {
	lag, err := lagOf(ctx, js, plane, partition, now)
	if err != nil {
		return Lag{}, fmt.Errorf("bus: how far %s is behind the journal of %s/%d: %w", Stream, plane, partition, err)
	}
	return lag, nil
}

// lagOf is LagOf with errors that do not say which journal they are about.
func lagOf(ctx context.Context, js jetstream.JetStream, plane string, partition int, now time.Time) (lag Lag,
	err error,
) {
	events, err := js.Stream(ctx, Stream)
	if err != nil {
		return lag, err
	}
	// Determine what was copied: consumer begins behind the frame at copied, or, without a position, maxAge ago.
	consumer, copied := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 10 * time.Second,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
	}, uint64(0)
	m, err := events.GetLastMsgForSubject(ctx, PositionPrefix+plane+"."+strconv.Itoa(partition))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound): // nothing was copied, or only before maxAge
		oldest := now.Add(-maxAge)
		consumer.DeliverPolicy, consumer.OptStartTime = jetstream.DeliverByStartTimePolicy, &oldest
	case err != nil:
		return lag, err
	default:
		end, err := PositionOf(m.Header)
		if err != nil {
			return lag, err
		}
		copied = end.Seq
		consumer.OptStartSeq = copied + 1
	}

	// Add up the segments, the oldest first.
	places, err := jetlog.Places(ctx, js, plane)
	if err != nil {
		return lag, err
	}
	if len(places) == 0 {
		return lag, jetstream.ErrStreamNotFound
	}
	for _, p := range places {
		if p.Shared {
			p.Partition = partition
		}
		if p.Partition != partition {
			continue
		}
		segment, err := lagIn(ctx, js, p, consumer, copied, now)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // it was removed since
		}
		if err != nil {
			return lag, err
		}
		lag.Frames += segment.Frames
		if lag.Behind == 0 { // the oldest frame is in the first segment that has any
			lag.Behind = segment.Behind
		}
	}
	return lag, nil
}

// lagIn returns how far EVENTS is behind one segment. EVENTS has the frames up to copied; consumer is the configuration
// of one that begins behind them. The Lag is zero if the frames behind copied, or the first of them up to the number
// fences, have no events.
func lagIn(ctx context.Context, js jetstream.JetStream, p jetlog.Place, consumer jetstream.ConsumerConfig,
	copied uint64, now time.Time,
) (lag Lag, err error) {
	log, err := js.Stream(ctx, p.Stream())
	if err != nil {
		return lag, err
	}
	tail, err := log.GetLastMsgForSubject(ctx, p.Subject())
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && tail.Sequence <= copied {
		return lag, nil
	}
	if err != nil {
		return lag, err
	}
	consumer.FilterSubject = p.Subject()
	cons, err := log.CreateConsumer(ctx, consumer)
	if err != nil {
		return lag, err
	}
	defer func() { _ = log.DeleteConsumer(ctx, cons.CachedInfo().Name) }() // it ends by itself

	// Pass over fences: the first frame with events says how far EVENTS is behind.
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

// CopiedThrough returns the wal_seq up to which EVENTS has the events of a partition's journal. It returns
// math.MaxUint64 if that is not known, but EVENTS has, or would not keep, every event that is older than old. It asks
// the NATS servers, and returns an error if it cannot determine either.
func CopiedThrough(ctx context.Context, nc *nats.Conn, plane string, partition int, old time.Duration) (uint64, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, fmt.Errorf("bus: %w", err)
	}
	end, err := natsSession{js: js}.Position(ctx, PositionPrefix+plane+"."+strconv.Itoa(partition))
	if err != nil {
		return 0, fmt.Errorf("bus: how far %s has the journal of %s/%d: %w", Stream, plane, partition, err)
	}
	if end.WalSeq > 0 {
		return end.WalSeq, nil
	}
	// EVENTS drops positions as it drops events, so that the position of a journal that is seldom written is dropped
	// soon beside busy journals. A publisher without a position begins at maxAge ago, so older events are not needed.
	// Whether newer ones are copied follows from the newest frame, which is never archived.
	if old >= maxAge {
		return math.MaxUint64, nil
	}
	lag, err := LagOf(ctx, js, plane, partition, time.Now())
	if err == nil && lag.Frames > 0 {
		err = fmt.Errorf("bus: how far %s has the journal of %s/%d is not known: %d frames are not copied", Stream,
			plane, partition, lag.Frames)
	}
	if err != nil {
		return 0, err
	}
	return math.MaxUint64, nil
}
