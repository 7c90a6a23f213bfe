package jetlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/retry"
)

// segment is one segment of a partition's log.
type segment struct {
	*Place
	nc       *nats.Conn
	js       jetstream.JetStream
	stored   jetstream.Stream
	first    uint64 // sequence number at which it begins
	onDamage func(server string, damage error)
	replicas replicas
}

// open looks a segment up.
func (l *Log) open(ctx context.Context, p Place) (*segment, error) {
	s, err := Patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return l.js.Stream(ctx, p.Stream())
	})
	if err != nil {
		return nil, err
	}
	return l.opened(p, s), nil
}

// opened returns the segment of a stream that was looked up.
func (l *Log) opened(p Place, s jetstream.Stream) *segment {
	return &segment{
		Place: &p, nc: l.nc, js: l.js, stored: s, first: max(s.CachedInfo().Config.FirstSeq, 1),
		onDamage: func(server string, damage error) {
			if l.OnDamage != nil {
				l.OnDamage(server, damage)
			}
		},
	}
}

// append sends one request and never repeats it. Its errors are those of Log.Append.
func (s *segment) append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	if expect < s.first {
		expect = 0 // the last frame is in the segment before, so this segment has none
	}
	resp, err := s.nc.RequestMsgWithContext(ctx, &nats.Msg{
		Subject: s.Subject(), Data: Body(f),
		Header: Header(s.Stream(), expect, f),
	})
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return 0, fmt.Errorf("%w: %w", framelog.ErrTooLarge, err)
	case errors.Is(err, nats.ErrNoResponders) && s.gone(ctx):
		return 0, fmt.Errorf("%w: %s", framelog.ErrSegmentGone, s.Stream())
	case err != nil:
		return 0, fmt.Errorf("jetlog: append: %w", err)
	}
	var ack struct {
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
		Error  *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(resp.Data, &ack); err != nil {
		return 0, fmt.Errorf("jetlog: answer to append: %w", err)
	}
	switch {
	case ack.Error != nil && ack.Error.ErrorCode == codeWrongSequence:
		return 0, fmt.Errorf("%w: %s", framelog.ErrWrongSequence, ack.Error.Description)
	case ack.Error != nil && ack.Error.ErrorCode == codeWrongSequenceBusy:
		return 0, fmt.Errorf("%w: %s", framelog.ErrBusy, ack.Error.Description)
	case ack.Error != nil && (ack.Error.ErrorCode == codeAccountFull || ack.Error.ErrorCode == codeServerFull):
		return 0, fmt.Errorf("%w: %w", framelog.ErrFull, ack.Error)
	case ack.Error != nil && ack.Error.ErrorCode == codeMessageTooLarge:
		return 0, fmt.Errorf("%w: %w", framelog.ErrTooLarge, ack.Error)
	case ack.Error != nil:
		return 0, fmt.Errorf("jetlog: append: %w", ack.Error)
	case ack.Stream != s.Stream() || ack.Seq == 0:
		return 0, fmt.Errorf("jetlog: append was answered by stream %q, sequence %d", ack.Stream, ack.Seq)
	}
	return ack.Seq, nil
}

// gone asks the broker whether the stream of the segment exists, and reports whether the answer is that it does not.
// After any other error it returns false.
func (s *segment) gone(ctx context.Context) bool {
	_, err := s.js.Stream(ctx, s.Stream())
	return errors.Is(err, jetstream.ErrStreamNotFound)
}

// tail returns the last frame of the segment and its sequence number, or a zero Frame and 0. AllowDirect is off, so the
// leader answers.
func (s *segment) tail(ctx context.Context) (framelog.Frame, uint64, error) {
	m, err := Patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return s.stored.GetLastMsgForSubject(ctx, s.Subject())
	})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return framelog.Frame{}, 0, nil
	case err != nil:
		return framelog.Frame{}, 0, fmt.Errorf("jetlog: tail: %w", err)
	}
	return Decode(m.Header, m.Data), m.Sequence, nil
}

// info asks for the state of the segment's stream.
func (s *segment) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	return Patiently(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) { return s.stored.Info(ctx) })
}

// last returns the sequence number of the last frame of the segment, 0 if it has none.
func (s *segment) last(ctx context.Context) (uint64, error) {
	_, seq, err := s.tail(ctx) // the stream's own last number may be one that is not used
	return seq, err
}

// get returns the frame at seq, or ErrNoFrame.
func (s *segment) get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	m, err := Patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return s.stored.GetMsg(ctx, seq)
	})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound) && s.stored.CachedInfo().Config.Replicas > 1:
		return s.getElsewhere(ctx, seq)
	case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && m.Subject != s.Subject():
		// The only server that has the log says so, or a frame of another partition is there.
		return framelog.Frame{}, fmt.Errorf("%w: %d", framelog.ErrGone, seq)
	case err != nil:
		return framelog.Frame{}, fmt.Errorf("jetlog: get %d: %w", seq, err)
	}
	return Decode(m.Header, m.Data), nil
}

// askTerm bounds one request. A cluster that elects a leader loses requests, and the caller
// would wait until its own deadline.
const askTerm = 3 * time.Second

// Patiently repeats a request that was not answered within askTerm, until ctx ends, and one that is refused because a
// cluster has no leader, up to ten times. Requests must be idempotent.
func Patiently[R any](ctx context.Context, ask func(context.Context) (R, error)) (R, error) {
	pacer := retry.New(100*time.Millisecond, time.Second)
	leaderless := 0
	for {
		attempt, cancel := context.WithTimeout(ctx, askTerm)
		r, err := ask(attempt)
		unanswered := attempt.Err() != nil
		cancel()
		var api *jetstream.APIError
		noLeader := errors.As(err, &api) && api.Code == 503
		if noLeader && leaderless < 10 && pacer.Wait(ctx) == nil {
			leaderless++
			continue
		}
		if err == nil || !unanswered || ctx.Err() != nil {
			return r, err
		}
	}
}

// stalled is how long a reader of frames that exist waits for the next one.
const stalled = 10 * time.Second

// errMoved means that a consumer was made again by its client, after heartbeats were missing, maybe at another server.
var errMoved = errors.New("jetlog: the consumer was made again")

// read calls fn with the frames that a consumer delivers from from on, up to last, or indefinitely if last is 0, and
// returns where to continue, also with an error. If a frame up to last does not arrive in time, the error is
// ErrIncomplete; if the consumer is lost, it is an *interruptedError. If only is not empty, read ends with errMoved
// when another consumer than the one of that name delivers.
func read(ctx context.Context, cons jetstream.Consumer, only string, from, last uint64,
	fn func(uint64, framelog.Frame) error,
) (uint64, error) {
	// Frames up to last exist, so a reader that waits for one is at a replica that does not deliver.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stalled, func() { cancel(ErrIncomplete) })
	defer stall.Stop()
	if last == 0 {
		stall.Stop()
	}
	ahead, heartbeat := pullBytes, time.Second
	if last == 0 {
		ahead, heartbeat = followBytes, 5*time.Second
	}
	// A request that a cluster lost is noticed by the missing heartbeats, after twice their interval.
	msgs, err := cons.Messages(jetstream.PullMaxMessagesWithBytesLimit(ahead/frameBytes, ahead),
		jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return from, fmt.Errorf("jetlog: read: %w", err)
	}
	defer msgs.Stop()

	for {
		m, err := msgs.Next(jetstream.NextContext(ctx))
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, ErrIncomplete) {
				err = cause
			} else if ctx.Err() == nil {
				err = &interruptedError{err}
			}
			return from, fmt.Errorf("jetlog: read: %w", err)
		}
		if last > 0 {
			stall.Reset(stalled)
		}
		meta, err := m.Metadata()
		if err != nil {
			return from, fmt.Errorf("jetlog: read: %w", err)
		}
		if only != "" && meta.Consumer != only {
			return from, errMoved
		}
		seq := meta.Sequence.Stream
		if seq < from {
			continue
		}
		if err := fn(seq, Decode(m.Headers(), m.Data())); err != nil {
			return from, err
		}
		from = seq + 1
		if last > 0 && seq >= last {
			return from, nil
		}
	}
}
