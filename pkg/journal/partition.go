package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/journal/framecache"
	"quartet/pkg/journal/stall"
	"quartet/pkg/tracing"
)

// Limits of the wire. The broker's max_payload is 8 MiB; a message of 900 KB
// is where JetStream's throughput stops growing.
const (
	DefaultMaxFrame      = 900_000
	DefaultMaxEvent      = 3 << 20
	DefaultRequestMemory = 4_000_000
	maxCommandBytes      = 6 << 20
	maxFrameEvents       = 8192
	maxQueued            = 1 << 16
)

// Config is what a partition needs. Log, Plane, New, Registry and NewID are
// required.
type Config[S State] struct {
	Log       Log
	Plane     string
	Partition int
	New       func() S // an empty state; called at every load
	Registry  *Registry
	Now       func() time.Time
	NewID     func(prefix string) string // "evt_" -> "evt_..."
	Logger    *zap.Logger

	// OnCommit gets the plane's events of each frame, in order, once they are
	// durable; not those replayed at load. It runs in the loop and must not
	// block. Events that another writer made arrive by load only.
	OnCommit func(events []*Event)

	// OnApply gets the events of each command once they are applied, before they
	// are durable; a reload may take them back. For who can prepare what follows
	// while the frame is written; see Ahead. It answers how many sequels of them
	// (Op.Sequel) are on their way by now: a frame that nobody shares waits half a
	// millisecond for them, so that what belongs together is one write. It runs in
	// the loop, must not block, and must not change or keep state.
	OnApply func(state S, events []*Event) (followUps int)

	// OnLoad gets the state of every load, at Open and whenever the partition
	// was lost and taken back, before anything else happens to it. Derived
	// indexes (due times) start over from it. It must not block.
	OnLoad func(state S)

	// Lease, if set, says whether this process holds the partition (R6). Writes
	// are fenced by the log whatever it says; reads rely on it.
	Lease Lease
	// Tracer has commands and reactions told of as spans, and their events carry
	// them on; nil: none.
	Tracer *tracing.Tracer
	// Metrics gets quartet_journal_…; nil counts nothing.
	Metrics prometheus.Registerer

	// Feed hands durable frames to followers in this process; nil: none.
	Feed *Feed

	RequestMemory int           // entries; default 4 000 000 (SPEC X2)
	MaxFrame      int           // bytes; default 900 KB
	MaxEvent      int           // bytes; default 3 MiB (SPEC X8)
	AppendTimeout time.Duration // of one attempt; default 5 s
	// ViewPatience is how long a reader waits for the log; default 5 s. A write
	// has to wait for its outcome; who only reads is better told soon.
	ViewPatience   time.Duration
	UnhealthyAfter time.Duration    // of a stall; default 30 s
	FollowUpTerm   time.Duration    // that a frame waits for sequels; default 0.5 ms
	Mono           func() time.Time // measures stalls; default time.Now. Tests only.
}

func (c *Config[S]) complete() error {
	switch {
	case c.Log == nil || c.New == nil || c.Registry == nil || c.NewID == nil:
		return errors.New("journal: Config needs Log, New, Registry and NewID")
	case c.Plane == "":
		return errors.New("journal: Config needs Plane")
	case c.Registry.Err() != nil:
		return c.Registry.Err()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Mono == nil {
		c.Mono = time.Now
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.Logger = c.Logger.With(zap.String("plane", c.Plane), zap.Int("partition", c.Partition))
	c.RequestMemory = orDefault(c.RequestMemory, DefaultRequestMemory)
	c.MaxFrame = orDefault(c.MaxFrame, DefaultMaxFrame)
	c.MaxEvent = orDefault(c.MaxEvent, DefaultMaxEvent)
	c.AppendTimeout = orDefault(c.AppendTimeout, 5*time.Second)
	c.ViewPatience = orDefault(c.ViewPatience, 5*time.Second)
	c.UnhealthyAfter = orDefault(c.UnhealthyAfter, 30*time.Second)
	c.FollowUpTerm = orDefault(c.FollowUpTerm, followUpTerm)
	return nil
}

func orDefault[T int | time.Duration](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// Lease is the right to answer for a partition.
type Lease interface {
	// Valid is asked after a state was looked at: nobody else can have changed it
	// before. It must not block.
	Valid() bool
}

// Partition is one log and its state. Use it through Do, View and Consume.
type Partition[S State] struct {
	cfg Config[S]

	// mu guards core and newest. Only the loop writes them, so the loop reads
	// without it.
	mu          sync.RWMutex
	core        *core[S]
	uncommitted *commitResult // of the newest frame that is applied and not durable; else nil

	inbox inbox[S]
	loop  loop[S]

	metrics    *metrics
	frameCache framecache.Cache
	stall      stall.Meter
	failed     atomic.Pointer[error] // set once: the partition answers no more

	//nolint:containedctx // not a request's: the partition's own life, ended by Close
	ctx     context.Context
	cancel  context.CancelFunc
	closing atomic.Bool
	stopped chan struct{}
}

// Open loads a partition from its log and takes it over: it returns once its
// partition_opened frame is acknowledged (R6), so no earlier writer can store
// anything any more. It keeps trying through trouble with the log until ctx
// ends; a log that does not fit the state is an error at once.
func Open[S State](ctx context.Context, cfg Config[S]) (*Partition[S], error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	p := &Partition[S]{cfg: cfg, stopped: make(chan struct{})}
	p.inbox.signal = make(chan struct{}, 1)
	p.metrics = newMetrics(cfg.Metrics, cfg.Plane)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	core, err := p.load(ctx, nil)
	if err != nil {
		p.cancel()
		return nil, fmt.Errorf("journal: open %s/%d: %w", cfg.Plane, cfg.Partition, err)
	}
	p.core = core
	p.startLoop()
	return p, nil
}

// Close refuses new commands, finishes those that were accepted, and stops. If
// ctx ends first it gives up on them; their callers learn that the outcome is
// unknown. Close is idempotent.
func (p *Partition[S]) Close(ctx context.Context) error {
	p.closing.Store(true)
	p.inbox.close()
	select {
	case <-p.stopped:
		return nil
	case <-ctx.Done():
	}
	p.cancel()
	<-p.stopped
	return ctx.Err()
}

// held says whether what stands in memory is the newest there is.
func (p *Partition[S]) held() bool { return p.cfg.Lease == nil || p.cfg.Lease.Valid() }

// Plane is the plane's name.
func (p *Partition[S]) Plane() string { return p.cfg.Plane }

// Index is the partition's number.
func (p *Partition[S]) Index() int { return p.cfg.Partition }

// Source is this partition as another one's source.
func (p *Partition[S]) Source() Source {
	return NewSource(p.cfg.Plane, p.cfg.Partition, p.cfg.Log)
}

// Health is nil while the partition can answer. After a stall of 30 s it is an
// error and the service goes NOT_SERVING: a full disk shows as timeouts only.
func (p *Partition[S]) Health() error {
	if err := p.failed.Load(); err != nil {
		return *err
	}
	if d := p.stall.Current(p.cfg.Mono()); d >= p.cfg.UnhealthyAfter {
		return fmt.Errorf("journal %s/%d: nothing could be written for %s", p.cfg.Plane, p.cfg.Partition, d.Round(time.Second))
	}
	return nil
}

// Stalled is how long the journal has been unable to write, 0 while it can.
// While it is not 0 no lease may expire.
func (p *Partition[S]) Stalled() time.Duration { return p.stall.Current(p.cfg.Mono()) }

// StallTotal is the sum of all stalls since Open, this one included. Whoever
// arms a term notes it, and adds what it grew by to the term.
func (p *Partition[S]) StallTotal() time.Duration { return p.stall.Total(p.cfg.Mono()) }
