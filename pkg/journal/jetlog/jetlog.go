// Package jetlog implements framelog.Log on NATS JetStream: one stream for each plane, one
// subject for each partition, one message for each frame.
//
// The connection must be one of pkg/natsd, with ReconnectBufSize(-1), so that no frame is sent
// after its append has returned (R5).
package jetlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/framelog"
)

// Headers of a frame.
const (
	HeaderFrame      = "Quartet-Frame"
	HeaderGeneration = "Quartet-Generation"
	HeaderLink       = "Quartet-Link"
)

// JetStream error codes that are not ambiguous.
const (
	codeWrongSequence     = 10071
	codeWrongSequenceBusy = 10164
	codeAccountFull       = 10002 // the account has no space left
	codeServerFull        = 10023 // the server has no space left
	codeMessageTooLarge   = 10054 // larger than the stream's max_msg_size
)

// HeaderRoom is how many bytes of max_payload are left for the headers of a frame, and for what the journal adds to
// the events of a command.
const HeaderRoom = 64 << 10

// pullBytes bounds the bytes that a reader has in flight. It is larger than the largest
// message. The number of messages is not bounded, because the client would make its channel
// that small, and it drops what does not fit, status messages included.
const pullBytes = 32 << 20

// followBytes is the same of a follower, of which there may be many: one for each stream of events that
// reads what was written before. It is just larger than the largest message.
const followBytes = 9 << 20

// StreamName returns the stream of a plane's journal.
func StreamName(plane string) string { return "quartet-journal-" + plane }

// Unused returns the subject of empty messages that take the place of sequence numbers which a stream does not use, where a
// server assigns the numbers.
func Unused(stream string) string {
	return SubjectPrefix(strings.TrimPrefix(stream, StreamName(""))) + "unused"
}

// Subject returns the subject of one partition.
func Subject(plane string, partition int) string {
	return SubjectPrefix(plane) + strconv.Itoa(partition)
}

// SubjectPrefix returns with what the subjects of a plane begin; the number of the partition follows.
func SubjectPrefix(plane string) string { return "quartet.journal." + plane + "." }

// Log is one partition's log.
type Log struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  string
	subject string
	stored  atomic.Pointer[jetstream.Stream] // asked for once

	// OnDamage, if set, is called with the server of a replica that does not have what others have, and what is wrong
	// with it. The reader goes on at another one.
	OnDamage func(server string, damage error)
	replicas replicas
}

var (
	_ framelog.Log     = (*Log)(nil)
	_ framelog.Bounded = (*Log)(nil)
)

// New returns the log of a partition. The stream must exist; see EnsureStream.
func New(nc *nats.Conn, plane string, partition int) (*Log, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetlog: %w", err)
	}
	return &Log{nc: nc, js: js, stream: StreamName(plane), subject: Subject(plane, partition)}, nil
}

// MaxBody implements framelog.Bounded: what max_payload of the server that the connection has now leaves for a body.
func (l *Log) MaxBody() int { return int(max(l.nc.MaxPayload()-HeaderRoom, 0)) }

// Append implements framelog.Log. It sends one request and never repeats it.
func (l *Log) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("%w: %w", framelog.ErrRefused, err)
	}
	msg := &nats.Msg{
		Subject: l.subject,
		Data:    f.Body,
		Header:  Header(l.stream, expect, f),
	}
	resp, err := l.nc.RequestMsgWithContext(ctx, msg)
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return 0, fmt.Errorf("%w: %w", framelog.ErrTooLarge, err)
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
	case ack.Stream != l.stream || ack.Seq == 0:
		return 0, fmt.Errorf("jetlog: append was answered by stream %q, sequence %d", ack.Stream, ack.Seq)
	}
	return ack.Seq, nil
}

// handle returns the stream. It is looked up once, because a lookup costs a round trip.
func (l *Log) handle(ctx context.Context) (jetstream.Stream, error) {
	if s := l.stored.Load(); s != nil {
		return *s, nil
	}
	s, err := patiently(ctx, func(ctx context.Context) (jetstream.Stream, error) { return l.js.Stream(ctx, l.stream) })
	if err == nil {
		l.stored.Store(&s)
	}
	return s, err
}

// askTerm bounds one request. A cluster that elects a leader loses requests, and the caller
// would wait until its own deadline.
const askTerm = 3 * time.Second

// patiently repeats a request that was not answered, until ctx ends. It is for requests that
// are idempotent.
func patiently[R any](ctx context.Context, ask func(context.Context) (R, error)) (R, error) {
	for {
		one, cancel := context.WithTimeout(ctx, askTerm)
		r, err := ask(one)
		unanswered := one.Err() != nil
		cancel()
		if err == nil || !unanswered || ctx.Err() != nil {
			return r, err
		}
	}
}

// Tail implements framelog.Log. AllowDirect is off, so the leader answers.
func (l *Log) Tail(ctx context.Context) (framelog.Frame, uint64, error) {
	s, err := l.handle(ctx)
	if err != nil {
		return framelog.Frame{}, 0, fmt.Errorf("jetlog: tail: %w", err)
	}
	m, err := patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return s.GetLastMsgForSubject(ctx, l.subject)
	})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return framelog.Frame{}, 0, nil
	case err != nil:
		return framelog.Frame{}, 0, fmt.Errorf("jetlog: tail: %w", err)
	}
	return Decode(m.Header, m.Data), m.Sequence, nil
}

// Get implements framelog.Log.
func (l *Log) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	s, err := l.handle(ctx)
	if err != nil {
		return framelog.Frame{}, fmt.Errorf("jetlog: get %d: %w", seq, err)
	}
	m, err := patiently(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) { return s.GetMsg(ctx, seq) })
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound) && s.CachedInfo().Config.Replicas > 1:
		return l.getElsewhere(ctx, s, seq)
	case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && m.Subject != l.subject:
		// The only server that has the log says so, or a frame of another partition is there.
		return framelog.Frame{}, fmt.Errorf("%w: %d", framelog.ErrGone, seq)
	case err != nil:
		return framelog.Frame{}, fmt.Errorf("jetlog: get %d: %w", seq, err)
	}
	return Decode(m.Header, m.Data), nil
}

// Scan implements framelog.Log with a reader that stops at the tail.
func (l *Log) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	_, last, err := l.Tail(ctx)
	if err != nil || last < from {
		return err
	}
	_, err = l.read(ctx, from, last, fn)
	return err
}

// Follow implements framelog.Log.
func (l *Log) Follow(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		next, err := l.read(ctx, from, 0, fn)
		var own *callbackError
		switch {
		case errors.As(err, &own):
			return own.error
		case ctx.Err() != nil:
			return ctx.Err()
		}
		from = next
		wait.Reset(200 * time.Millisecond)
	}
}

type callbackError struct{ error }

func (e *callbackError) Unwrap() error { return e.error }

// stalled is how long a reader of frames that exist waits for the next one.
const stalled = 10 * time.Second

// errMoved means that a consumer was made again by its client, after heartbeats were missing, maybe at another server.
var errMoved = errors.New("jetlog: the consumer was made again")

// read calls fn with the frames that a consumer delivers from from on, up to last or indefinitely, and returns where to
// continue. If only is not empty, it ends with errMoved when another consumer than the one of that name delivers.
func read(ctx context.Context, cons jetstream.Consumer, only string, from, last uint64, fn func(uint64, framelog.Frame) error) (uint64, error) {
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx = reading
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
	msgs, err := cons.Messages(jetstream.PullMaxBytes(ahead), jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return from, fmt.Errorf("jetlog: read: %w", err)
	}
	defer msgs.Stop()
	for {
		m, err := msgs.Next(jetstream.NextContext(ctx))
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, ErrIncomplete) {
				err = cause
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
			if last == 0 {
				err = &callbackError{err}
			}
			return from, err
		}
		from = seq + 1
		if last > 0 && seq >= last {
			return from, nil
		}
	}
}

// Header returns the header of the message of a frame that follows the one at expect.
func Header(stream string, expect uint64, f framelog.Frame) nats.Header {
	return nats.Header{
		jetstream.ExpectedStreamHeader:      {stream},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(expect, 10)},
		HeaderFrame:                         {f.ID},
		HeaderGeneration:                    {strconv.FormatUint(f.Generation, 10)},
		HeaderLink:                          {f.Link.String()},
	}
}

// Decode returns the frame of a message.
func Decode(h nats.Header, body []byte) framelog.Frame {
	generation, _ := strconv.ParseUint(h.Get(HeaderGeneration), 10, 64)
	// A link that cannot be read is like one of a format that is unknown here: no frame continues it.
	link, err := framelog.ParseLink(h.Get(HeaderLink))
	if err != nil {
		link = framelog.Link{Format: -1}
	}
	return framelog.Frame{ID: h.Get(HeaderFrame), Generation: generation, Body: body, Link: link}
}
