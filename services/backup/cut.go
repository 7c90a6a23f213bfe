package backup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/jetlog"
)

// cut is the moment up to which a backup has all messages (ADR 0018). A moment by the broker's clock divides the
// messages into those that were stored before it and those stored after it only if that clock did not go back: end
// says what was stored before the moment was chosen, so that messages whose time contradicts that are noticed.
type cut struct {
	at   time.Time
	ends map[string]end
	// gone are the streams that did not exist any more when they were asked for. A segment among them may be
	// archived.
	gone []string
}

// end is what the broker said about a stream before the moment of the cut was chosen.
type end struct {
	seq   uint64    // of the last message
	asked time.Time // by the broker's clock, not later than its answer
	final uint64    // sequence number of a segment's last message before the moment; see seal
	// messages and bytes are how much the stream had when the broker said so.
	messages, bytes uint64
}

// chooseCut asks for the end of each stream and chooses the moment: the latest time that an answer
// carries. A stream that does not exist is recorded in gone and is not an error.
func chooseCut(ctx context.Context, js jetstream.JetStream, streams []string) (cut, error) {
	c := cut{ends: map[string]end{}}
	for _, name := range streams {
		s, err := js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			c.gone = append(c.gone, name)
			continue
		}
		if err != nil {
			return cut{}, fmt.Errorf("stream %s: %w", name, err)
		}
		asked := s.CachedInfo().TimeStamp
		// The broker reads the time of an answer after the state in it. A message that is stored between the two is
		// not older than the time of the answer before, which is why asked is that one's.
		info, err := s.Info(ctx)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			c.gone = append(c.gone, name)
			continue
		}
		if err != nil {
			return cut{}, fmt.Errorf("stream %s: %w", name, err)
		}
		c.ends[name] = end{seq: info.State.LastSeq, asked: asked, messages: info.State.Msgs, bytes: info.State.Bytes}
		if info.TimeStamp.After(c.at) {
			c.at = info.TimeStamp
		}
	}
	return c, nil
}

// seal sets in ends which message of each segment is the last one before the moment. The segment may be archived
// when it is copied, and an archive does not have the times of messages. If a segment's stream does not exist any
// more, the error is jetstream.ErrStreamNotFound.
func (c cut) seal(ctx context.Context, js jetstream.JetStream) error {
	for name, e := range c.ends {
		if _, segment := jetlog.ParseStream(name); !segment {
			continue
		}
		s, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		e.final = e.seq
		for seq := e.seq + 1; seq <= s.CachedInfo().State.LastSeq; seq++ {
			m, err := s.GetMsg(ctx, seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				return fmt.Errorf("stream %s: %w", name, err)
			}
			in, err := c.includes(name, seq, m.Time)
			if err != nil {
				return fmt.Errorf("stream %s: %w", name, err)
			}
			if !in {
				break
			}
			e.final = seq
		}
		c.ends[name] = e
	}
	return nil
}

// includes reports whether a message of a stream belongs to the backup. It is an error if the times of messages
// are not in the order in which they were stored.
func (c cut) includes(stream string, seq uint64, stored time.Time) (bool, error) {
	e := c.ends[stream]
	const advice = "so no moment divides what was stored before it from what was stored after it, and a backup would " +
		"be inconsistent"
	switch {
	case seq <= e.seq && stored.After(c.at):
		return false, fmt.Errorf("message %d is of %s, and it is %s by the clock of the NATS server: the clock was "+
			"set back, or the clocks of a cluster differ, %s; synchronize the clocks, and try again after %s",
			seq, stored.UTC().Format(time.RFC3339Nano), c.at.UTC().Format(time.RFC3339Nano), advice,
			stored.UTC().Format(time.RFC3339))
	case seq > e.seq && stored.Before(e.asked):
		return false, fmt.Errorf("message %d is of %s, and was stored after %s by the clock of the NATS server: the "+
			"clock was set back while the backup was made, %s; try again when it shows %s",
			seq, stored.UTC().Format(time.RFC3339Nano), e.asked.UTC().Format(time.RFC3339Nano), advice,
			c.at.UTC().Format(time.RFC3339))
	}
	return !stored.After(c.at), nil
}
