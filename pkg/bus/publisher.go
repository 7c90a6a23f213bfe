package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/jetlog"
)

// Stream is the name of the stream for everybody outside.
const Stream = "EVENTS"

// Limits of EVENTS. Beyond them the oldest go; the journal has everything. A
// journal that was never copied is copied from maxAge ago.
const (
	maxBytes = 1 << 30
	maxAge   = 7 * 24 * time.Hour
)

// window is how many frames are copied at once. Behind the last of their
// events goes one message that says how far the journal was copied.
const window = 64

// positionSubject is where a plane's publisher writes how far it came: into
// EVENTS itself, since EVENTS may lose its end (it is not fsynced on a single
// node, and it may be deleted) and then the position must be lost with it. A
// durable consumer's acknowledgement would survive and leave a gap; it also
// hands out new frames before it repeats those that were not acknowledged.
func positionSubject(plane string) string { return "quartet.bus.position." + plane }

const headerSequence = "Quartet-Sequence"

// EnsureStream creates EVENTS or brings its limits up to date. On a single
// node it is persisted asynchronously: what a power cut takes from it is still
// in the journal.
func EnsureStream(ctx context.Context, nc *nats.Conn, replicas int) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("bus: %w", err)
	}
	cfg := jetstream.StreamConfig{
		Name:        Stream,
		Description: "Quartet: committed events as CloudEvents",
		Subjects:    []string{"quartet.events.>", "quartet.bus.position.*"},
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardOld,
		MaxBytes:    maxBytes,
		MaxAge:      maxAge,
		Replicas:    max(replicas, 1),
	}
	if cfg.Replicas == 1 {
		cfg.PersistMode = jetstream.AsyncPersistMode
	}
	s, err := js.Stream(ctx, Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		_, err = js.CreateStream(ctx, cfg)
	case err == nil:
		// The mode cannot be changed on a stream that exists.
		cfg.PersistMode = s.CachedInfo().Config.PersistMode
		_, err = js.UpdateStream(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("bus: stream %s: %w", Stream, err)
	}
	return nil
}

// Config is what a Publisher needs.
type Config struct {
	Conn   *nats.Conn
	Plane  string // of the journal; one Publisher for each
	Logger *zap.Logger
	// AckTimeout is how long EVENTS may take for one window before it is
	// copied again; default 10 s.
	AckTimeout time.Duration
}

// Publisher copies one plane's journal to EVENTS: at least once, in the order
// of the journal.
type Publisher struct {
	cfg    Config
	cancel context.CancelFunc
	done   chan struct{}
}

// Start starts copying where EVENTS says that it stopped. Both streams must
// exist.
func Start(ctx context.Context, cfg Config) (*Publisher, error) {
	if cfg.Conn == nil || cfg.Plane == "" {
		return nil, errors.New("bus: Config needs Conn and Plane")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.AckTimeout <= 0 {
		cfg.AckTimeout = 10 * time.Second
	}
	cfg.Logger = cfg.Logger.With(zap.String("plane", cfg.Plane))
	js, err := jetstream.New(cfg.Conn)
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	for _, stream := range []string{Stream, jetlog.StreamName(cfg.Plane)} {
		if _, err := js.Stream(ctx, stream); err != nil {
			return nil, fmt.Errorf("bus: stream %s: %w", stream, err)
		}
	}
	run, cancel := context.WithCancel(context.Background())
	p := &Publisher{cfg: cfg, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.run(run)
	}()
	return p, nil
}

// Stop stops copying and returns when nothing is on its way any more. It is
// idempotent.
func (p *Publisher) Stop() {
	p.cancel()
	<-p.done
}

// run copies until ctx ends. After trouble it begins again behind the last
// position that EVENTS holds.
func (p *Publisher) run(ctx context.Context) {
	for wait := time.Duration(0); ctx.Err() == nil; {
		copied, err := p.session(ctx)
		if ctx.Err() != nil {
			return
		}
		p.cfg.Logger.Warn("bus: copying events is interrupted and goes on from the last position", zap.Error(err))
		if copied {
			wait = 0
		}
		wait = min(max(2*wait, 50*time.Millisecond), 5*time.Second)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

type frame struct {
	seq  uint64
	body []byte
}

// session copies over one connection, which does not reconnect: if it did,
// events after a lost one would get through and stand before it in EVENTS.
func (p *Publisher) session(ctx context.Context) (copied bool, err error) {
	opts := p.cfg.Conn.Opts
	opts.AllowReconnect, opts.RetryOnFailedConnect = false, false
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts.ClosedCB = func(*nats.Conn) { cancel() }
	opts.DisconnectedErrCB, opts.ReconnectedCB, opts.ConnectedCB = nil, nil, nil
	nc, err := opts.Connect()
	if err != nil {
		return false, fmt.Errorf("bus: connect: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096))
	if err != nil {
		return false, fmt.Errorf("bus: %w", err)
	}
	next, err := p.position(ctx, js)
	if err != nil {
		return false, err
	}
	frames, ended := make(chan frame, window), make(chan error, 1)
	go func() {
		ended <- jetlog.FollowPlane(ctx, nc, p.cfg.Plane, next, time.Now().Add(-maxAge), func(seq uint64, f journal.Frame) error {
			select {
			case frames <- frame{seq, f.Body}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		cancel()
	}()
	for {
		select {
		case f := <-frames:
			err = p.copyWindow(ctx, js, gather(f, frames))
			copied = copied || err == nil
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			cancel()
			return copied, errors.Join(err, <-ended)
		}
	}
}

// gather takes what is there, at most a window.
func gather(first frame, more <-chan frame) []frame {
	out := []frame{first}
	for len(out) < window {
		select {
		case f := <-more:
			out = append(out, f)
		default:
			return out
		}
	}
	return out
}

// position is the journal sequence to go on from, 0 if EVENTS knows none.
func (p *Publisher) position(ctx context.Context, js jetstream.JetStream) (uint64, error) {
	s, err := js.Stream(ctx, Stream)
	if err != nil {
		return 0, fmt.Errorf("bus: %w", err)
	}
	m, err := s.GetLastMsgForSubject(ctx, positionSubject(p.cfg.Plane))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("bus: position of %s: %w", p.cfg.Plane, err)
	}
	seq, err := strconv.ParseUint(m.Header.Get(headerSequence), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("bus: position of %s: %w", p.cfg.Plane, err)
	}
	return seq + 1, nil
}

// copyWindow publishes the events of frames in order, then the position, and
// waits until EVENTS has them all.
func (p *Publisher) copyWindow(ctx context.Context, js jetstream.JetStream, frames []frame) error {
	var acks []jetstream.PubAckFuture
	publish := func(msg *nats.Msg) error {
		// No message id: the broker would keep each for two minutes, and the
		// event id tells a repetition as well.
		ack, err := js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
		acks = append(acks, ack)
		return err
	}
	for _, f := range frames {
		events, err := messages(f.body)
		if err != nil {
			// It will not become readable. Others must not wait for it.
			p.cfg.Logger.Error("bus: a frame cannot be read and is passed", zap.Uint64("sequence", f.seq), zap.Error(err))
			continue
		}
		for _, e := range events {
			if err := publish(&nats.Msg{Subject: e.subject, Data: e.body}); err != nil {
				return err
			}
		}
	}
	if err := wait(ctx, p.cfg.AckTimeout, acks); err != nil {
		return err
	}
	// Only behind events that are all there: a position never covers a gap.
	acks = acks[:0]
	err := publish(&nats.Msg{Subject: positionSubject(p.cfg.Plane), Header: nats.Header{
		headerSequence: {strconv.FormatUint(frames[len(frames)-1].seq, 10)},
	}})
	if err != nil {
		return err
	}
	return wait(ctx, p.cfg.AckTimeout, acks)
}

func wait(ctx context.Context, timeout time.Duration, acks []jetstream.PubAckFuture) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
