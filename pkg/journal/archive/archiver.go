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
	ctx    context.Context
	cancel context.CancelFunc
	due    chan struct{}
	idle   sync.WaitGroup
	locked chan struct{} // a mutex of the catalog, which a context can interrupt: it has a value while that is held
	// the Expiry.State, by the name of a segment, with which Expire found nothing more to remove in it
	expiredIn map[string]uint64

	mu      sync.Mutex
	started bool
	below   framelog.End
	done    chan struct{} // closed when nothing is left to do; nil: nothing is
}

// Start returns the Archiver of a log; nil if that is no Log. It does nothing until Below allows something.
func Start(log framelog.Log, now func() time.Time, logger *zap.Logger, metrics *Metrics) *Archiver {
	l, ok := log.(*Log)
	if !ok {
		return nil
	}
	a := &Archiver{
		log: l, now: now, logger: logger, metrics: metrics, due: make(chan struct{}, 1),
		locked: make(chan struct{}, 1),
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
	a.cancel() // under mu, so that Below starts no goroutine afterwards
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
	if a.ctx.Err() != nil || end.Segment == 0 { // it was stopped, or no segment is before end
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

// Settle waits until all segments that may be archived are archived, or ctx ends. A failure does not end it.
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

// run archives whenever Below allowed something, until ctx ends. After an error it tries again.
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
			a.metrics.countFailure(a.log.partition)
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

// lockCatalog waits until no other goroutine of this process changes the catalog, and keeps others from it until the
// caller calls unlockCatalog. It does not keep other processes from changing the catalog: a write of theirs makes ours
// fail with ErrReplaced. It returns the error of ctx if that ends first; then the caller must not call unlockCatalog.
func (a *Archiver) lockCatalog(ctx context.Context) error {
	select {
	case a.locked <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Archiver) unlockCatalog() { <-a.locked }

// ErrNotArchived means that a segment is not in the archive yet.
var ErrNotArchived = errors.New("archive: the segment is not archived")

// Erase erases lines in all segments up to the one with the number lastSegment, and returns how many lines it erased.
// It returns ErrNotArchived and erases nothing if not all of them are archived. If it succeeds, the store does not have
// these lines any more. After an error some may be erased; it may be repeated.
func (a *Archiver) Erase(ctx context.Context, lastSegment uint64, what Erasing) (lines int64, err error) {
	return a.rewrite(ctx, what, func(c *Catalog) (func(Segment) bool, error) {
		if len(c.Segments) == 0 || c.End().Segment <= lastSegment {
			return nil, fmt.Errorf("%w: %d of %s", ErrNotArchived, lastSegment, c.Partition)
		}
		return func(s Segment) bool { return s.GetNumber() <= lastSegment }, nil
	}, func(Segment) {})
}

// Expiry says which lines are removed because they are old.
type Expiry struct {
	// Before is a time: only segments that were archived before it are looked at.
	Before time.Time
	// All is a time: of the lines that were written before it, none becomes old later, since each is old already or is
	// kept permanently.
	All time.Time
	// Through is the last wal_seq that may be removed. A segment with later lines is not looked at.
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
// interrupted, older lines are gone before newer ones. Calls must not overlap.
func (a *Archiver) Expire(ctx context.Context, x Expiry) (lines int64, err error) {
	if a == nil {
		return 0, ErrNotArchived
	}
	// Nothing is read if the catalog was read before and no segment is due.
	due := func(s Segment) bool {
		state, done := a.expiredIn[s.GetName()]
		return s.GetArchivedAt().AsTime().Before(x.Before) && s.End.WalSeq <= x.Through && (!done || state != x.State)
	}
	if c := a.log.known(); c != nil && !slices.ContainsFunc(c.Segments, due) {
		return 0, nil
	}
	if err := x.Ready(); err != nil {
		return 0, err
	}

	// Remove the lines. After an error of x.Line no further line counts as old.
	expiredIn := map[string]uint64{}
	var lineErr error
	line := func(line []byte) bool {
		if lineErr != nil {
			return false
		}
		var old bool
		old, lineErr = x.Line(line)
		return old && lineErr == nil
	}
	lines, err = a.rewrite(ctx, Erasing{Line: line, Old: true}, func(*Catalog) (func(Segment) bool, error) {
		return due, nil
	}, func(s Segment) {
		if s.GetArchivedAt().AsTime().Before(x.All) {
			expiredIn[s.GetName()] = x.State
		}
	})
	if err = cmp.Or(err, lineErr); err != nil {
		return lines, err
	}

	// Remember which segments need not be looked at again, and forget names that are not in the catalog any more.
	for _, s := range a.log.known().Segments {
		state, known := a.expiredIn[s.GetName()]
		if _, updated := expiredIn[s.GetName()]; known && !updated {
			expiredIn[s.GetName()] = state
		}
	}
	a.expiredIn = expiredIn
	return lines, nil
}

// rewrite erases lines in those segments of the catalog for which the function that selecting returns is true, and
// calls done with each of them as it is in the catalog afterwards. It returns the number of lines that were erased,
// also with an error, and those of selecting without erasing anything.
func (a *Archiver) rewrite(ctx context.Context, what Erasing, selecting func(*Catalog) (func(Segment) bool, error),
	done func(Segment),
) (lines int64, err error) {
	if a == nil {
		return 0, ErrNotArchived
	}
	if err := a.lockCatalog(ctx); err != nil {
		return 0, err
	}
	defer a.unlockCatalog()
	c, err := a.log.Catalog(ctx)
	if err != nil {
		return 0, err
	}
	selected, err := selecting(c)
	if err != nil {
		return 0, err
	}

	// Old lines are erased from the oldest segment to the newest, and those of owners in the opposite order.
	for i := range c.Segments {
		if !what.Old {
			i = len(c.Segments) - 1 - i
		}
		if !selected(c.Segments[i]) {
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
	a.metrics.setArchived(c)
	return lines, c.Clean(ctx, a.log.store)
}

// pass archives the closed segments before the end that Below was given, one after the other, and drops segments from
// the log once they are archived. Then it removes what the store has of archived segments under names that are not in
// the catalog. It returns the first error; what was archived until then is in the catalog, and another pass continues.
func (a *Archiver) pass(ctx context.Context) error {
	if err := a.lockCatalog(ctx); err != nil {
		return err
	}
	defer a.unlockCatalog()
	c, err := a.log.Catalog(ctx)
	if err != nil {
		return err
	}
	a.metrics.setArchived(c)
	for {
		allowed := a.allowed()
		segments, err := a.log.Segments(ctx)
		if err != nil {
			return err
		}
		a.metrics.setLive(c, segments)

		// Drop the segments that are archived, and find the first one to archive.
		var next *framelog.Segment
		for _, seg := range segments {
			switch {
			case c.Has(seg.Number):
				if err := a.dropArchived(ctx, c, seg.Number); err != nil {
					return err
				}
			case next == nil && seg.Number < allowed.Segment:
				next = &seg
			}
		}
		if next == nil {
			return c.Clean(ctx, a.log.store)
		}

		// Archive it. The next round drops it.
		began := a.now()
		if c, err = a.addOrAdopt(ctx, c, *next, began); err != nil {
			return err
		}
		a.log.mu.Lock()
		a.log.catalog = c
		a.log.mu.Unlock()
		a.metrics.setArchived(c)
		s := c.Segments[len(c.Segments)-1]
		a.logger.Info("journal: a segment is archived", zap.Uint64("segment", s.GetNumber()),
			zap.Int64("frames", s.GetFrames()), zap.Int64("bytes", s.GetBytes()),
			zap.Int64("stored", s.GetStored()), zap.Duration("took", a.now().Sub(began)))
	}
}

// allowed returns the end before which segments may be archived.
func (a *Archiver) allowed() framelog.End {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.below
}

// addOrAdopt archives a segment and returns the new catalog. If another process replaced the catalog meanwhile, it
// adopts that catalog, which must have the segment.
func (a *Archiver) addOrAdopt(ctx context.Context, c *Catalog, seg framelog.Segment, now time.Time) (*Catalog, error) {
	added, err := c.Add(ctx, a.log.store, a.log.Live, seg, now)
	if errors.Is(err, ErrReplaced) {
		added, err = a.log.Catalog(ctx)
	}
	if err != nil {
		return nil, err
	}
	if !added.Has(seg.Number) {
		return nil, fmt.Errorf("archive: segment %d of %s is not in the catalog that another process wrote", seg.Number,
			c.Partition)
	}
	return added, nil
}

// dropArchived removes a segment, which must be in the catalog, from the log. It returns an error and removes nothing
// if the log has another intact frame at the segment's end than was archived: then the archive is that of another
// journal. A damaged or missing frame does not keep it from removing, since what was archived was verified.
func (a *Archiver) dropArchived(ctx context.Context, c *Catalog, number uint64) error {
	s := c.Segments[c.indexOf(number)]
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

// setArchived sets the gauges of what the archive has, by its catalog.
func (m *Metrics) setArchived(c *Catalog) {
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

// setLive sets the gauge of how many of a log's segments are not archived.
func (m *Metrics) setLive(c *Catalog, segments []framelog.Segment) {
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

func (m *Metrics) countFailure(partition string) {
	if m != nil {
		m.failures.WithLabelValues(partition).Inc()
	}
}
