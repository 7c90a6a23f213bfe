package journal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/tracing"
)

// Limits of sizes. The broker's max_payload is 8 MiB; JetStream's throughput does not grow beyond messages of
// 900 KB.
const (
	DefaultMaxFrame      = 900_000
	DefaultMaxEvent      = 3 << 20
	DefaultRequestMemory = 4_000_000
	// MaxCommand is the size in bytes that the events of a command may have together.
	MaxCommand     = 6 << 20
	maxFrameEvents = 8192
	maxQueued      = 1 << 16
)

// Config configures a partition. Log, Plane, New, Registry and NewID are required.
type Config[S State] struct {
	Log       framelog.Log
	Plane     string
	Partition int
	New       func() S // returns an empty state; called at every load
	Registry  *Registry
	Now       func() time.Time
	NewID     func(prefix string) string // "evt_" -> "evt_..."
	Logger    *zap.Logger

	// OnCommit receives the plane's events of each frame, in order, once they are durable; not those replayed
	// at a load. It runs in the loop and must not block. Events of other writers arrive by a load only.
	OnCommit func(events []*Event)

	// OnApply receives the events of each command once they are applied and before they are durable, including
	// those of the journal itself; a reload may discard them. It lets the plane prepare the next command while the
	// frame is written (Ahead). It returns the number of expected follow-ups (Op.FollowUp) of these events: a
	// small frame waits FollowUpTerm for them, so that they share one write. It runs in the loop, must not block,
	// and must not change or keep state.
	OnApply func(state S, events []*Event) (followUps int)

	// OnLoad receives the state of every load, at Open and after a reload, before any other use of the state.
	// Derived indexes such as due times are rebuilt from it. It must not block.
	OnLoad func(state S)

	// Lease, if set, reports whether this process holds the partition (R6). Writes are fenced by the log
	// regardless of it; reads depend on it.
	Lease Lease
	// Tracer records commands and reactions as spans that their events continue. Nil records nothing.
	Tracer *tracing.Tracer
	// Metrics registers quartet_journal_…; nil counts nothing.
	Metrics prometheus.Registerer

	// Witness remembers how far the log was written, so that a loss at its end is noticed; nil for none.
	Witness framelog.Witness
	// LossPatience is for how long a log that ends before its witness is read again, since one of a cluster may
	// show an old end; default 0.
	LossPatience time.Duration

	// Snapshots keeps snapshots of the state, which must be Paged; nil: none are written, and the log is read from its
	// beginning.
	Snapshots snapshot.Store
	// A snapshot is written once there are SnapshotBytes of frames since the last one, or a sixteenth of that and
	// SnapshotTerm has passed; defaults 16 MiB and 10 min.
	SnapshotBytes int64
	SnapshotTerm  time.Duration
	// CheckRestored, if set, compares the state of a load that began at a snapshot with that of the whole log. If they
	// differ it returns an error, and the partition is not loaded. Tests only.
	CheckRestored func(restored, replayed State) error

	// Eviction says when owners are evicted; nil: all stay in memory. The state must be a snapshot.Resident.
	Eviction *snapshot.EvictionPolicy

	// Feed passes durable frames to followers in this process; nil for none.
	Feed *Feed

	// Room says whether the store has room for more; nil: it always has.
	Room *framelog.Room

	// Requests is the pool of entries that the request memories of a process share; nil: this partition has
	// RequestMemory entries for itself.
	Requests      *requests.Pool
	RequestMemory int           // entries; default 4 000 000 (SPEC X2)
	MaxFrame      int           // bytes; default 900 KB
	MaxEvent      int           // bytes; default 3 MiB (SPEC X8)
	SegmentSize   int64         // bytes after which the log continues in a new segment; default 0: never
	AppendTimeout time.Duration // of one attempt; default 5 s
	// ViewPatience is how long a View waits for the log; default 5 s. A write has to wait for its outcome, but
	// a reader is better served by an early error.
	ViewPatience   time.Duration
	UnhealthyAfter time.Duration    // duration of a stall; default 30 s
	FollowUpTerm   time.Duration    // how long a frame waits for follow-ups; default 0.5 ms
	Mono           func() time.Time // measures stalls; default time.Now. Tests only.
	Elapsed        func() time.Time // measures the age of remembered requests; default Mono
	// NewSecret returns 32 random bytes, which no reader of the log knows; default crypto/rand.
	NewSecret func() [32]byte
	// Arrive, if set, is called before a command is queued and before a View reads, and may block until ctx ends.
	// Simulations use it to order commands and Views.
	Arrive func(ctx context.Context, method, agentID, requestID string)

	ages requests.Ages // set by complete
}

// complete verifies the required fields and sets the defaults.
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
	if c.Elapsed == nil {
		c.Elapsed = c.Mono
	}
	if c.OnLoad == nil {
		c.OnLoad = func(S) {}
	}
	c.ages = requests.NewAges(c.Now(), c.Elapsed)
	if c.Arrive == nil {
		c.Arrive = atOnce
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.NewSecret == nil {
		c.NewSecret = func() (s [32]byte) {
			_, _ = rand.Read(s[:]) // it never fails
			return s
		}
	}
	c.Logger = c.Logger.With(zap.String("plane", c.Plane), zap.Int("partition", c.Partition))
	if c.Requests == nil {
		c.Requests = requests.NewPool(orDefault(c.RequestMemory, DefaultRequestMemory))
	}
	if c.Room == nil {
		c.Room = &framelog.Room{}
	}
	c.MaxFrame = orDefault(c.MaxFrame, DefaultMaxFrame)
	c.MaxEvent = orDefault(c.MaxEvent, DefaultMaxEvent)
	c.AppendTimeout = orDefault(c.AppendTimeout, 5*time.Second)
	c.SnapshotBytes = orDefault(c.SnapshotBytes, 16<<20)
	c.SnapshotTerm = orDefault(c.SnapshotTerm, 10*time.Minute)
	c.ViewPatience = orDefault(c.ViewPatience, 5*time.Second)
	c.UnhealthyAfter = orDefault(c.UnhealthyAfter, 30*time.Second)
	c.FollowUpTerm = orDefault(c.FollowUpTerm, followUpTerm)
	return nil
}

// atOnce is the default of Config.Arrive.
func atOnce(context.Context, string, string, string) {}

// orDefault returns v, or d if v is not positive.
func orDefault[T int | int64 | time.Duration](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// Lease is a partition's lease.
type Lease interface {
	// Valid reports whether the lease is held. It is called after the state was read: if the lease is still held, no
	// other process can have written before the read. It must not block.
	Valid() bool
}

// Partition is one log with its state and single writer. It is used through Do, View and Consume.
type Partition[S State] struct {
	cfg Config[S]

	// mu guards core and uncommitted. Only the loop writes them, so the loop reads them without mu.
	mu   sync.RWMutex
	core *core[S]
	// uncommitted is the result of the newest applied frame that is not durable, or of a pending reload; nil if
	// the state is durable.
	uncommitted *frameOutcome

	inbox *inbox[*command[S]]
	loop  loop[S]

	log        *framelog.Writer
	roller     *archive.Roller
	snapshots  snapshots
	consumed   follower.Positions[sourceKey]
	metrics    *counters
	frameCache framelog.Cache
	stall      stallMeter
	failed     atomic.Pointer[error] // set once, when the partition ends

	//nolint:containedctx // not a request's: it lasts until the partition ends
	ctx     context.Context
	cancel  context.CancelFunc
	closing atomic.Bool
	stopped chan struct{}
}

// Open loads a partition from its log and takes it over: it returns once its partition_opened frame is
// acknowledged (R6), so that no earlier writer can store anything any more. It retries errors of the log until
// ctx ends; a log that does not match the state, and a lease that is not held, are errors at once.
func Open[S State](ctx context.Context, cfg Config[S]) (*Partition[S], error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	p := &Partition[S]{cfg: cfg, stopped: make(chan struct{})}
	p.inbox = newInbox[*command[S]](maxQueued)
	p.metrics = newCounters(cfg.Metrics, cfg.Plane)
	p.log = &framelog.Writer{
		Log: cfg.Log, Partition: framelog.PartitionName(cfg.Plane, cfg.Partition), NewID: cfg.NewID,
		Timeout: cfg.AppendTimeout, Logger: cfg.Logger,
		Secret: cfg.NewSecret(), Fencing: func() { p.loop.fencing.Store(true) }, Appended: p.metrics.Appended,
	}
	p.roller = archive.NewRoller(cfg.Log, cfg.SegmentSize, cfg.Now, cfg.Mono, cfg.Logger, cfg.Metrics)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	core, err := p.load(ctx, nil, nil)
	if err != nil {
		p.cancel()
		p.roller.Stop()
		if IsDamage(err) {
			p.cfg.Logger.Error("journal: the partition cannot be loaded and refuses everything", zap.Error(err))
		}
		return nil, fmt.Errorf("journal: open %s/%d: %w", cfg.Plane, cfg.Partition, err)
	}
	p.core = core
	p.startLoop()
	return p, nil
}

// Close refuses new commands, finishes those that were accepted, and stops. If ctx ends first, the remaining
// commands are abandoned and Close returns the error of ctx; callers whose events may be in the log get an unknown
// outcome. In either case the loop has ended when Close returns. Close is idempotent.
func (p *Partition[S]) Close(ctx context.Context) error {
	p.closing.Store(true)
	p.inbox.Close()
	select {
	case <-p.stopped:
		return nil
	case <-ctx.Done():
	}
	p.cancel()
	<-p.stopped
	return ctx.Err()
}

// held reports whether the lease is held, so that no other process can have written to the partition.
func (p *Partition[S]) held() bool { return p.cfg.Lease == nil || p.cfg.Lease.Valid() }

// Plane returns the plane's name.
func (p *Partition[S]) Plane() string { return p.cfg.Plane }

// Index returns the partition's number.
func (p *Partition[S]) Index() int { return p.cfg.Partition }

// Source returns this partition as a source for others.
func (p *Partition[S]) Source() Source {
	return NewSource(p.cfg.Plane, p.cfg.Partition, p.cfg.Log)
}

// Health returns nil while the partition can serve, and the cause once it has ended. For a partition whose log is
// damaged it returns nil, since its plane serves the other partitions. After a stall of UnhealthyAfter it returns an
// error and the service becomes NOT_SERVING, since a full disk shows as timeouts only.
func (p *Partition[S]) Health() error {
	if err := p.failed.Load(); err != nil {
		if p.Damage() != nil {
			return nil //nolint:nilerr // its plane serves the other partitions
		}
		return *err
	}
	if d := p.stall.Current(p.cfg.Mono()); d >= p.cfg.UnhealthyAfter {
		return fmt.Errorf("journal %s/%d: nothing could be written for %s", p.cfg.Plane, p.cfg.Partition,
			d.Round(time.Second))
	}
	return nil
}

// Damage returns the damage because of which the partition refuses all commands and reads; nil if there is none.
func (p *Partition[S]) Damage() error {
	var damage *damageError
	if err := p.failed.Load(); err != nil && errors.As(*err, &damage) {
		return damage
	}
	return nil
}

// Stalled returns for how long the journal has been unable to write; 0 while it can, and until that is
// stallThreshold. While it is not 0, the caller must let no lease expire.
func (p *Partition[S]) Stalled() time.Duration { return p.stall.Current(p.cfg.Mono()) }

// StallTotal returns the sum of all stalls since Open, including the current one. A caller that sets a deadline
// records it, and extends the deadline by its growth.
func (p *Partition[S]) StallTotal() time.Duration { return p.stall.Total(p.cfg.Mono()) }

// NotHeld returns a partition that refuses everything with ErrNotHeld.
func NotHeld[S State](cfg Config[S]) *Partition[S] { return refusing(cfg, ErrNotHeld) }

// Damaged returns a partition that refuses everything with STORAGE, for a log that cannot be loaded because of cause.
// The other partitions of the plane are not concerned.
func Damaged[S State](cfg Config[S], cause error) *Partition[S] {
	_ = cfg.complete() // it was complete when the log was opened
	return refusing(cfg, cfg.explain(cause))
}

// explain returns the cause with which a partition ends: err, or, if err is a *replayError, a
// *damageError that names the partition. It reports such damage to the feed too.
func (c *Config[S]) explain(err error) error {
	var broken *framelog.Broken
	var replay *replayError
	if !errors.As(err, &replay) {
		return err
	}
	name := framelog.PartitionName(c.Plane, c.Partition)
	cause := fmt.Errorf("the journal of %s is damaged: %w", name, replay.Cause)
	if errors.As(err, &broken) {
		cause = broken
	}
	c.Feed.Report(cause)
	return &damageError{Partition: name, Cause: cause}
}

// refusing returns a partition that has ended with a cause: it has no loop, and is closed already.
func refusing[S State](cfg Config[S], cause error) *Partition[S] {
	cfg.Requests, cfg.Arrive, cfg.Eviction = requests.NewPool(0), atOnce, nil
	p := &Partition[S]{cfg: cfg, core: newCore(&cfg), stopped: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.cancel()
	p.failed.Store(&cause)
	p.inbox = newInbox[*command[S]](maxQueued)
	p.inbox.Close()
	p.closing.Store(true)
	close(p.stopped)
	return p
}
