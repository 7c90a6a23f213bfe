package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/meter"
	"quartet/pkg/retry"
)

// Stream is the name of the stream that programs outside of the planes read.
const Stream = "EVENTS"

// The limits of EVENTS. The server drops events that are older than maxAge, and the oldest ones beyond the
// configured bytes, of which there are at least minBytes; the journals still have them. A journal that was never
// copied is copied from maxAge ago.
const (
	minBytes = 1 << 20
	maxAge   = 7 * 24 * time.Hour
)

// DefaultBytes is the default of how many bytes EVENTS keeps at most.
const DefaultBytes = 128 << 20

const (
	// window is how many frames are copied at once. After their events, one message records
	// how far the journal was copied.
	window = 256
	// defaultLag is how long the first frame of a window waits for others. No plane waits
	// for EVENTS, and copying each frame alone takes as much processor time as committing
	// it: 5 ms make the mutations of a single caller a third faster.
	defaultLag = 5 * time.Millisecond
)

// PositionPrefix begins the subjects of positions; plane and partition follow.
const PositionPrefix = "quartet.bus.position."

// positionSubject returns the subject of a publisher's position. The position is in EVENTS itself, because
// EVENTS may lose its end (it is not fsynced on a single node, and may be deleted), and then
// the position must be lost as well. The acknowledgements of a durable consumer would survive
// and leave a gap; such a consumer also delivers new frames before it repeats those that were
// not acknowledged.
func positionSubject(s journal.Source) string {
	return PositionPrefix + s.Plane() + "." + strconv.Itoa(s.Partition())
}

// The headers of a position. A position of a version before journals had hash chains has only the first one.
const (
	headerSequence = "Quartet-Sequence"
	headerEnd      = "Quartet-End"
)

// EnsureStream creates EVENTS or updates its limits, and repeats requests that are not answered
// until ctx ends. EVENTS may have at most bytes, at most a quarter of the store, and less if the server
// cannot reserve that, but at least minBytes. With one replica a new stream has asynchronous persistence:
// events that are lost with the machine's power are copied again. The mode of an existing stream stays.
func EnsureStream(ctx context.Context, nc *nats.Conn, replicas int, bytes int64, space *framelog.Room) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("bus: %w", err)
	}
	cfg := jetstream.StreamConfig{
		Name:        Stream,
		Description: "Quartet: committed events as CloudEvents",
		Subjects:    []string{"quartet.events.>", "quartet.bus.position.>"},
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardOld,
		MaxBytes:    max(bytes, minBytes),
		MaxAge:      maxAge,
		Replicas:    max(replicas, 1),
		// Allows the fast batches that batches publishes. They are not atomic: the
		// stream keeps what it stored of a batch that failed.
		AllowBatchPublish: true,
	}
	if cfg.Replicas == 1 {
		cfg.PersistMode = jetstream.AsyncPersistMode
	}

	// Take at most a quarter of the store, and less if the server cannot reserve that.
	limit := space.Now().Limit
	for limit > 0 && cfg.MaxBytes > max(limit/4, minBytes) {
		cfg.MaxBytes /= 2
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, ensureTerm)
		err := createOrUpdate(attempt, js, cfg)
		cancel()
		var refused *jetstream.APIError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused) && slices.Contains(noRoom, refused.ErrorCode) && cfg.MaxBytes > minBytes:
			cfg.MaxBytes /= 2
		case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			return fmt.Errorf("bus: stream %s: %w", Stream, err)
		}
	}
}

// noRoom are the JetStream error codes for a stream that reserves more than is available: to the account, on the
// server, and on any server of the cluster.
var noRoom = []jetstream.ErrorCode{10023, 10047, 10005}

// ensureTerm bounds one attempt to create the stream. A cluster that elects a leader drops
// requests.
const ensureTerm = 3 * time.Second

// createOrUpdate creates EVENTS or updates its settings. Its error is jetstream's, or that of ctx.
func createOrUpdate(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) error {
	s, err := js.Stream(ctx, Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if _, err = js.CreateStream(ctx, cfg); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil // another process has just created it
		}
	case err == nil && !sameSettings(s.CachedInfo().Config, cfg):
		// The mode cannot be changed on a stream that exists.
		cfg.PersistMode = s.CachedInfo().Config.PersistMode
		_, err = js.UpdateStream(ctx, cfg)
	}
	return err
}

// sameSettings reports whether a stream has those settings of want that an update can change. It avoids updates that
// change nothing, which would occupy the leader of a cluster whenever a partition moves.
func sameSettings(got, want jetstream.StreamConfig) bool {
	return got.Description == want.Description && slices.Equal(got.Subjects, want.Subjects) &&
		got.Storage == want.Storage && got.Discard == want.Discard &&
		got.MaxBytes == want.MaxBytes && got.MaxAge == want.MaxAge && got.Replicas == want.Replicas &&
		got.AllowBatchPublish == want.AllowBatchPublish
}

// Config holds the settings and dependencies of a Publisher. Source is required, and Conn or Target.
type Config struct {
	Conn   *nats.Conn
	Target Target         // the stream to which events are copied; default: EVENTS of Conn
	Source journal.Source // the journal that is copied; there must be only one Publisher for it
	Logger *zap.Logger
	// Metrics gets quartet_events_…. Optional.
	Metrics prometheus.Registerer
	// AckTimeout is how long EVENTS may take to acknowledge a batch before the batch is copied
	// again. Default 10 s.
	AckTimeout time.Duration
	// Lag is how long an event may wait for others that are copied with it. Default 5 ms;
	// negative: it does not wait.
	Lag time.Duration
	// Room says whether the store has room. While it has none but the reserve, nothing is copied. nil: there
	// is always room.
	Room *framelog.Room
}

// Publisher copies one partition's journal to EVENTS: at least once, in the order
// of the journal.
type Publisher struct {
	cfg    Config
	cancel context.CancelFunc
	done   chan struct{}
	// wrapped is used by the copying goroutine only.
	wrapped wrapped

	published, interrupted prometheus.Counter
	lag                    prometheus.Observer
}

// Start starts to copy at the position in EVENTS, and copies until Stop; the end of ctx does not
// end it. Both the stream and the journal must exist.
func Start(ctx context.Context, cfg Config) (*Publisher, error) {
	if cfg.Conn == nil && cfg.Target == nil || cfg.Source == nil {
		return nil, errors.New("bus: Config needs Source, and Conn or Target")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.AckTimeout <= 0 {
		cfg.AckTimeout = 10 * time.Second
	}
	if cfg.Lag == 0 {
		cfg.Lag = defaultLag
	}
	cfg.Logger = cfg.Logger.With(zap.String("plane", cfg.Source.Plane()), zap.Int("partition", cfg.Source.Partition()))
	if cfg.Target == nil {
		cfg.Target = natsTarget{cfg.Conn, cfg.AckTimeout}
	}

	// Without the stream or the journal, copying could only fail.
	if err := cfg.Target.Exists(ctx); err != nil {
		return nil, fmt.Errorf("bus: stream %s: %w", Stream, err)
	}
	if _, err := cfg.Source.End(ctx); err != nil {
		return nil, fmt.Errorf("bus: the journal of %s: %w", cfg.Source.Plane(), err)
	}

	run, cancel := context.WithCancel(context.Background())
	p := &Publisher{cfg: cfg, cancel: cancel, done: make(chan struct{})}
	plane := cfg.Source.Plane()
	p.published = meter.Counter(cfg.Metrics, "quartet_events_published_total", "Events copied to the EVENTS stream.",
		"plane").WithLabelValues(plane)
	p.interrupted = meter.Counter(cfg.Metrics, "quartet_events_interruptions_total",
		"Times that copying stopped with an error and continued at its last position.", "plane").WithLabelValues(plane)
	p.lag = meter.Histogram(cfg.Metrics, "quartet_events_publish_lag_seconds",
		"Time from an event to its copy in EVENTS, one observation a window.", meter.Work, "plane").
		WithLabelValues(plane)
	go func() {
		defer close(p.done)
		p.run(run)
	}()
	return p, nil
}

// Stop stops copying and returns when the copying goroutine has ended. It does not wait for
// acknowledgements: the broker may still store messages that were sent, and events whose copy
// was not acknowledged are copied again after the next Start. Stop is idempotent.
func (p *Publisher) Stop() {
	p.cancel()
	<-p.done
}

// run copies until ctx ends. After an error it pauses, for at most 5 s, and starts again behind the
// last position in EVENTS; events that were stored after that position are copied twice.
func (p *Publisher) run(ctx context.Context) {
	pacer := retry.New(50*time.Millisecond, 5*time.Second)
	for ctx.Err() == nil {
		copied, err := p.session(ctx)
		if ctx.Err() != nil {
			return
		}
		p.interrupted.Inc()
		p.cfg.Logger.Warn("bus: copying events is interrupted and continues from the last position", zap.Error(err))
		if copied {
			pacer.Reset()
		}
		_ = pacer.Wait(ctx) // the loop checks ctx
	}
}

// frame is a frame of the journal to copy.
type frame struct {
	end   framelog.End // the end of the log behind the frame
	lines []journal.Line
}

// session copies over one connection until ctx ends or an error occurs, which it returns with whether a window was
// copied. The connection does not reconnect: otherwise an event could be lost, and later ones stored before it is
// copied again.
func (p *Publisher) session(ctx context.Context) (copied bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := p.cfg.Target.Open(cancel)
	if err != nil {
		return false, err
	}
	defer out.Close()

	// Follow the journal from the position in EVENTS.
	after, err := out.Position(ctx, positionSubject(p.cfg.Source))
	if err != nil {
		return false, fmt.Errorf("bus: position of %s: %w", p.cfg.Source.Plane(), err)
	}
	oldest := time.Time{} // of the events to copy; from the first frame on that is not olderThan it, all are
	if after.Seq == 0 {
		oldest = time.Now().Add(-maxAge)
	}
	frames, ended := make(chan frame, window), make(chan error, 1)
	go func() {
		ended <- p.cfg.Source.Follow(ctx, after, func(end framelog.End, lines []journal.Line) error {
			if olderThan(lines, oldest) {
				return nil
			}
			oldest = time.Time{}
			select {
			case frames <- frame{end, lines}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		cancel()
	}()

	// Copy in windows until that or following fails.
	for {
		select {
		case f := <-frames:
			err = p.copyWindow(ctx, out, p.gatherWindow(ctx, f, frames))
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

// olderThan reports whether the last event of a frame is older than oldest. It returns false if oldest is zero, and
// for a frame without a readable last line.
func olderThan(lines []journal.Line, oldest time.Time) bool {
	if oldest.IsZero() || len(lines) == 0 {
		return false
	}
	ev, err := lines[len(lines)-1].Envelope()
	return err == nil && ev.CreatedAt.Before(oldest)
}

// gatherWindow waits for Config.Lag and returns first and the frames that have arrived, but at most window frames. If
// ctx ends it returns at once; copying them then fails.
func (p *Publisher) gatherWindow(ctx context.Context, first frame, more <-chan frame) []frame {
	if p.cfg.Lag > 0 {
		// The channel has room for a window, so the source is not blocked meanwhile, and
		// this goroutine is not woken for each frame.
		t := time.NewTimer(p.cfg.Lag)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
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

// PositionOf returns the position in the headers of a position's message. Of a message that was written before
// journals had hash chains it has only the sequence number.
func PositionOf(h nats.Header) (end framelog.End, err error) {
	if text := h.Get(headerEnd); text != "" {
		return framelog.ParseEnd(text)
	}
	end.Seq, err = strconv.ParseUint(h.Get(headerSequence), 10, 64)
	return end, err
}

// copyWindow publishes the events of frames in order, then the position, and
// waits until EVENTS has them all. The events of a frame that has an unreadable
// line are left out.
func (p *Publisher) copyWindow(ctx context.Context, out Session, frames []frame) error {
	if err := p.awaitRoom(ctx); err != nil {
		return err
	}

	count := 0
	for _, f := range frames {
		if err := p.wrapped.wrap(f.lines); err != nil {
			// The frame will not become readable, and must not stop the others.
			p.cfg.Logger.Error("bus: a frame cannot be read and is passed", zap.Uint64("sequence", f.end.Seq),
				zap.Error(err))
			continue
		}
		count += len(p.wrapped.events)
		for _, e := range p.wrapped.events {
			m := &nats.Msg{Subject: e.subject, Data: p.wrapped.buf[e.start:e.end]}
			if err := out.Publish(ctx, m, moreFollow); err != nil {
				return err
			}
		}
	}

	// The position is published after the events, so a position never covers a gap.
	last := frames[len(frames)-1].end
	err := out.Publish(ctx, &nats.Msg{Subject: positionSubject(p.cfg.Source), Header: nats.Header{
		headerSequence: {strconv.FormatUint(last.Seq, 10)}, headerEnd: {last.String()},
	}}, endsWindow)
	if err == nil {
		p.published.Add(float64(count))
		p.observeLag(frames)
	}
	return err
}

// awaitRoom waits until the store has room beyond its reserve. It returns the error of ctx if that ends first.
func (p *Publisher) awaitRoom(ctx context.Context) error {
	err := p.cfg.Room.Check(0, false)
	if err == nil {
		return nil
	}
	p.cfg.Logger.Warn("bus: no events are copied while the store is full", zap.Error(err))
	pacer := retry.New(100*time.Millisecond, time.Second)
	for p.cfg.Room.Full() {
		if err := pacer.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// observeLag records the age of the oldest event of a window, which is the first that can be read; nothing if there is
// none.
func (p *Publisher) observeLag(frames []frame) {
	for _, f := range frames {
		for _, line := range f.lines {
			if t, _ := line.Type(); journal.Internal(t) {
				continue
			}
			if ev, err := line.Envelope(); err == nil {
				p.lag.Observe(max(time.Since(ev.CreatedAt), 0).Seconds())
				return
			}
		}
	}
}
