package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/meter"
	"quartet/pkg/retry"
)

// retryAfter is how long an Archiver waits after an error.
const retryAfter = 10 * time.Second

// Archiver moves closed segments of a log into its archive, in the background. A nil *Archiver moves nothing.
type Archiver struct {
	log     *Log
	now     func() time.Time
	logger  *zap.Logger
	metrics *Metrics
	//nolint:containedctx // not a request's: it lasts until Stop
	ctx     context.Context
	cancel  context.CancelFunc
	due     chan struct{}
	idle    sync.WaitGroup
	working chan struct{} // has a value while the catalog is changed
	// by name: the Expiry.State until whose change Expire has nothing more to remove of a segment
	looked map[string]uint64

	mu      sync.Mutex
	started bool
	below   framelog.End
	done    chan struct{} // closed when nothing is left to do; nil: nothing is
}

// Start returns the Archiver of a log; nil if that is no Log.
func Start(log framelog.Log, now func() time.Time, logger *zap.Logger, metrics *Metrics) *Archiver {
	l, ok := log.(*Log)
	if !ok {
		return nil
	}
	a := &Archiver{
		log: l, now: now, logger: logger, metrics: metrics, due: make(chan struct{}, 1),
		working: make(chan struct{}, 1),
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// Stop ends the Archiver and waits for it.
func (a *Archiver) Stop() {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.cancel()
	a.mu.Unlock()
	a.idle.Wait()
}

// Below allows the segments before end, an end of the log, to be archived. It does not block.
func (a *Archiver) Below(end framelog.End) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx.Err() != nil || end.Segment == 0 {
		return
	}
	if !a.started {
		a.started = true
		a.idle.Go(func() { a.run(a.ctx) })
	}
	a.below = end
	if a.done == nil {
		a.done = make(chan struct{})
	}
	select {
	case a.due <- struct{}{}:
	default:
	}
}

// Settle waits until all segments that may be archived are archived.
func (a *Archiver) Settle(ctx context.Context) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	done := a.done
	a.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Archiver) run(ctx context.Context) {
	for {
		select {
		case <-a.due:
		case <-ctx.Done():
			return
		}
		for {
			err := a.pass(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				break
			}
			a.metrics.failed(a.log.partition)
			a.logger.Warn("journal: a segment was not archived; it is tried again", zap.Error(err))
			if retry.New(retryAfter, retryAfter).Wait(ctx) != nil {
				return
			}
		}
		a.mu.Lock()
		if len(a.due) == 0 && a.done != nil {
			close(a.done)
			a.done = nil
		}
		a.mu.Unlock()
	}
}

// begin waits until no other goroutine of this process changes the catalog. After it succeeded, the caller must call
// finish.
func (a *Archiver) begin(ctx context.Context) error {
	select {
	case a.working <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Archiver) finish() { <-a.working }

// ErrNotArchived means that a segment is not in the archive yet.
var ErrNotArchived = errors.New("archive: the segment is not archived")

// Erase erases lines in all segments up to the one with the number until, which must all be archived. It returns how
// many lines it erased. If it succeeds, the store does not have these lines any more. It may be repeated.
func (a *Archiver) Erase(ctx context.Context, until uint64, what Erasing) (lines int64, err error) {
	return a.rewrite(ctx, what, func(c *Catalog) (func(Segment) bool, error) {
		if len(c.Segments) == 0 || c.End().Segment <= until {
			return nil, fmt.Errorf("%w: %d of %s", ErrNotArchived, until, c.Partition)
		}
		return func(s Segment) bool { return s.GetNumber() <= until }, nil
	}, func(Segment) {})
}

// Expiry says which lines are removed because they are old.
type Expiry struct {
	// Before is a time: only segments that were archived before it are looked at.
	Before time.Time
	// All is a time: of the lines that were written before it, none becomes old later, since each is old already or is
	// kept permanently.
	All time.Time
	// Through is the last wal_seq that may be removed. A segment that goes on behind it is not looked at.
	Through uint64
	// State identifies what Line depends on beside the line and the time. A segment that was archived before All and
	// looked at is not looked at again while State is the same.
	State uint64
	// Ready is called before the first segment is looked at. If it returns an error, nothing is removed.
	Ready func() error
	// Line reports whether a line is old and not needed. After an error nothing more is removed.
	Line func(line []byte) (bool, error)
}

// Expire removes old lines, and returns how many it removed. It begins with the oldest segment, so that if it is
// interrupted, older lines are gone before newer ones.
func (a *Archiver) Expire(ctx context.Context, x Expiry) (lines int64, err error) {
	if a == nil {
		return 0, ErrNotArchived
	}
	due := func(s Segment) bool {
		state, looked := a.looked[s.GetName()]
		return s.GetArchivedAt().AsTime().Before(x.Before) && s.End.WalSeq <= x.Through && (!looked || state != x.State)
	}
	if c := a.log.known(); c != nil && !slices.ContainsFunc(c.Segments, due) {
		return 0, nil // nothing is read
	}
	if err := x.Ready(); err != nil {
		return 0, err
	}
	looked := map[string]uint64{}
	var failed error
	line := func(line []byte) bool {
		if failed != nil {
			return false
		}
		var old bool
		old, failed = x.Line(line)
		return old && failed == nil
	}
	lines, err = a.rewrite(ctx, Erasing{Line: line, Old: true}, func(*Catalog) (func(Segment) bool, error) {
		return due, nil
	}, func(s Segment) {
		if s.GetArchivedAt().AsTime().Before(x.All) {
			looked[s.GetName()] = x.State
		}
	})
	if err = cmp.Or(err, failed); err != nil {
		return lines, err
	}
	for _, s := range a.log.known().Segments {
		state, was := a.looked[s.GetName()]
		if _, again := looked[s.GetName()]; was && !again {
			looked[s.GetName()] = state
		}
	}
	a.looked = looked
	return lines, nil
}

// rewrite erases lines in some of the segments of the catalog, and calls done with each of them as it is in the
// catalog afterwards. The function that some returns reports whether a segment is one of them.
func (a *Archiver) rewrite(ctx context.Context, what Erasing, some func(*Catalog) (func(Segment) bool, error),
	done func(Segment),
) (lines int64, err error) {
	if a == nil {
		return 0, ErrNotArchived
	}
	if err := a.begin(ctx); err != nil {
		return 0, err
	}
	defer a.finish()
	c, err := a.log.Catalog(ctx)
	if err != nil {
		return 0, err
	}
	meant, err := some(c)
	if err != nil {
		return 0, err
	}
	for i := range c.Segments {
		if !what.Old { // from the newest segment to the oldest
			i = len(c.Segments) - 1 - i
		}
		if !meant(c.Segments[i]) {
			continue
		}
		next, n, err := c.Erase(ctx, a.log.store, c.Segments[i].GetNumber(), what)
		if err != nil {
			return lines, err
		}
		c, lines = next, lines+n
		done(c.Segments[i])
	}
	a.log.mu.Lock()
	a.log.catalog, a.log.cached = c, cached{}
	a.log.mu.Unlock()
	a.metrics.holds(c)
	return lines, c.Clean(ctx, a.log.store)
}

// pass archives the segments that may be archived (see Below), and drops those from the log that are archived. Then
// it removes from the store what it has of archived segments under names that are not in the catalog.
func (a *Archiver) pass(ctx context.Context) error {
	if err := a.begin(ctx); err != nil {
		return err
	}
	defer a.finish()
	c, err := a.log.Catalog(ctx)
	if err != nil {
		return err
	}
	a.metrics.holds(c)
	for {
		a.mu.Lock()
		below := a.below
		a.mu.Unlock()
		segments, err := a.log.Segments(ctx)
		if err != nil {
			return err
		}
		a.metrics.has(c, segments)
		var next *framelog.Segment
		for _, seg := range segments {
			switch {
			case c.Has(seg.Number):
				if err := a.drop(ctx, c, seg.Number); err != nil {
					return err
				}
			case next == nil && seg.Number < below.Segment:
				next = &seg
			}
		}
		if next == nil {
			return c.Clean(ctx, a.log.store)
		}
		began := a.now()
		added, err := c.Add(ctx, a.log.store, a.log.Live, *next, began)
		if errors.Is(err, ErrReplaced) { // another process was faster
			added, err = a.log.Catalog(ctx)
		}
		if err != nil {
			return err
		}
		if !added.Has(next.Number) {
			return fmt.Errorf("archive: segment %d of %s is not in the catalog that another process wrote", next.Number,
				c.Partition)
		}
		c = added
		a.log.mu.Lock()
		a.log.catalog = c
		a.log.mu.Unlock()
		a.metrics.holds(c)
		if i := c.find(c.End().Seq); i < len(c.Segments) {
			s := c.Segments[i]
			a.logger.Info("journal: a segment is archived", zap.Uint64("segment", s.GetNumber()),
				zap.Int64("frames", s.GetFrames()), zap.Int64("bytes", s.GetBytes()),
				zap.Int64("stored", s.GetStored()), zap.Duration("took", a.now().Sub(began)))
		}
	}
}

// drop removes a segment, which must be in the catalog, from the log. It returns an error if the log has another
// intact frame at the segment's end than was archived: then the archive is that of another journal. A damaged frame
// is no reason, since what was archived was verified.
func (a *Archiver) drop(ctx context.Context, c *Catalog, number uint64) error {
	s := c.Segments[c.at(number)]
	f, err := a.log.Live.Get(ctx, s.End.Seq)
	if err == nil && f.Link.Format > 0 && f.Link.Hash != s.End.Hash && framelog.HashOf(c.Partition, f) == f.Link.Hash {
		return fmt.Errorf("archive: segment %d of %s is archived with another frame %d than the log has: another "+
			"journal has its archive there", number, c.Partition, s.End.Seq)
	}
	return a.log.Drop(ctx, number)
}

// Metrics counts what archives have. A nil *Metrics counts nothing.
type Metrics struct {
	segments, stored, bytes *prometheus.GaugeVec
	live                    *prometheus.GaugeVec
	failures                *prometheus.CounterVec
}

// NewMetrics registers the metrics of the archives of a process. It returns nil if reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	if reg == nil {
		return nil
	}
	return &Metrics{
		segments: meter.Gauge(reg, "quartet_archive_segments", "Segments of a journal that are in its archive.",
			"partition"),
		stored: meter.Gauge(reg, "quartet_archive_stored_bytes",
			"Bytes that the archived segments of a journal take.", "partition"),
		bytes: meter.Gauge(reg, "quartet_archive_frame_bytes", "Bytes that the frames of the archived segments of "+
			"a journal had before they were compressed.", "partition"),
		live: meter.Gauge(reg, "quartet_journal_segments", "Segments of a journal that are streams: the one that "+
			"is written to, and those before it that are not archived yet. It is counted after each snapshot.",
			"partition"),
		failures: meter.Counter(reg, "quartet_archive_failures_total",
			"Attempts to archive segments of a journal that failed; each is tried again.", "partition"),
	}
}

// holds sets the gauges of what the archive has, by its catalog.
func (m *Metrics) holds(c *Catalog) {
	if m == nil {
		return
	}
	var stored, bytes int64
	for _, s := range c.Segments {
		stored, bytes = stored+s.GetStored(), bytes+s.GetBytes()
	}
	m.segments.WithLabelValues(c.Partition).Set(float64(len(c.Segments)))
	m.stored.WithLabelValues(c.Partition).Set(float64(stored))
	m.bytes.WithLabelValues(c.Partition).Set(float64(bytes))
}

// has sets the gauge of how many of a log's segments are not archived.
func (m *Metrics) has(c *Catalog, segments []framelog.Segment) {
	if m == nil {
		return
	}
	n := 0
	for _, s := range segments {
		if !c.Has(s.Number) {
			n++
		}
	}
	m.live.WithLabelValues(c.Partition).Set(float64(n))
}

func (m *Metrics) failed(partition string) {
	if m != nil {
		m.failures.WithLabelValues(partition).Inc()
	}
}
