package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"quartet/pkg/journal/framelog"
)

// Target is a stream to which a Publisher copies.
type Target interface {
	// Exists returns an error if there is no such stream.
	Exists(ctx context.Context) error
	// Open begins a session. It calls lost when the session's connection is lost.
	Open(lost func()) (Session, error)
}

// Session is one connection to a stream. The stream stores its messages in the order in which they were published,
// without gaps, until an error. After an error the session must not be used any more. Messages that were published
// before an error or Close may still be stored afterwards.
type Session interface {
	// Position returns the last position that is stored with a subject; the zero End if there is none.
	Position(ctx context.Context, subject string) (framelog.End, error)
	// Publish sends a message. The caller may reuse m when it returns. If last is set, as for the last message of a
	// window, Publish returns only when the stream has everything that was sent.
	Publish(ctx context.Context, m *nats.Msg, last bool) error
	// Close ends the session. It does not wait for acknowledgements.
	Close()
}

// The argument last of Session.Publish.
const (
	moreFollow = false
	endsWindow = true
)

// natsTarget is EVENTS.
type natsTarget struct {
	conn    *nats.Conn
	timeout time.Duration
}

// Exists implements Target. Without EVENTS the error is jetstream.ErrStreamNotFound.
func (t natsTarget) Exists(ctx context.Context) error {
	js, err := jetstream.New(t.conn)
	if err == nil {
		_, err = js.Stream(ctx, Stream)
	}
	return err
}

// Open implements Target with a connection of its own, which has the options of t.conn and does not reconnect.
func (t natsTarget) Open(lost func()) (Session, error) {
	opts := t.conn.Opts
	opts.AllowReconnect, opts.RetryOnFailedConnect = false, false
	opts.ClosedCB = func(*nats.Conn) { lost() }
	opts.DisconnectedErrCB, opts.ReconnectedCB, opts.ConnectedCB = nil, nil, nil
	nc, err := opts.Connect()
	if err != nil {
		return nil, fmt.Errorf("bus: connect: %w", err)
	}
	js, err := jetstream.New(nc)
	if err == nil {
		var out *batches
		if out, err = newBatches(nc, t.timeout); err == nil {
			return natsSession{nc, js, out}, nil
		}
	}
	nc.Close()
	return nil, fmt.Errorf("bus: %w", err)
}

// natsSession is a connection to EVENTS.
type natsSession struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	out *batches
}

// Close implements Session. It does not wait for acknowledgements.
func (s natsSession) Close() { s.nc.Close() }

// Publish implements Session. It also waits for the stream whenever batchMessages were sent.
func (s natsSession) Publish(ctx context.Context, m *nats.Msg, last bool) error {
	return s.out.publish(ctx, m, last)
}

// Position implements Session.
func (s natsSession) Position(ctx context.Context, subject string) (framelog.End, error) {
	stream, err := s.js.Stream(ctx, Stream)
	if err != nil {
		return framelog.End{}, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return framelog.End{}, nil
	case err != nil:
		return framelog.End{}, err
	}
	return PositionOf(m.Header)
}
