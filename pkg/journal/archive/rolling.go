package archive

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/journal/framelog"
)

// FrameRoom is about how many bytes a log needs for a frame beside its body.
const FrameRoom = 320

// prepareAgain is how long a Roller waits after a segment could not be prepared.
const prepareAgain = 10 * time.Second

// stopTerm is how long Stop waits for a request that was sent.
const stopTerm = 2 * time.Second

// Roller counts what a partition writes, closes segments that have become large, and prepares the next one while the
// present one is still written to. It lets segments be archived that no snapshot needs. A nil *Roller closes none.
type Roller struct {
	//nolint:containedctx // not a request's: it lasts until Stop
	ctx    context.Context
	cancel context.CancelFunc
	idle   sync.WaitGroup

	log      framelog.Segmented
	archiver *Archiver // of closed segments; nil: they stay in the log
	limit    int64     // bytes of a segment
	mono     func() time.Time
	logger   *zap.Logger

	mu        sync.Mutex
	segment   uint64    // that is written to
	size      int64     // of it, as far as it is known
	sizeKnown bool      // size includes everything that was written before this process
	busy      bool      // prepare runs, or Stop was called
	next      uint64    // where the next segment begins, once that is prepared
	retry     time.Time // prepare is not called before this time
}

// NewRoller returns the Roller of a log, or nil if the log has no segments or limit is not positive. Segments are
// closed once they have limit bytes. If the log is an *archive.Log, closed segments are archived. mono is a monotonic
// clock. Metrics are registered with reg unless it is nil.
func NewRoller(log framelog.Log, limit int64, now, mono func() time.Time, logger *zap.Logger,
	reg prometheus.Registerer,
) *Roller {
	s, ok := log.(framelog.Segmented)
	if !ok || limit <= 0 {
		return nil
	}
	r := &Roller{log: s, limit: limit, mono: mono, logger: logger}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.archiver = Start(log, now, logger, NewMetrics(reg))
	return r
}

// Below allows the segments before end, which must be that of the oldest kept snapshot, to be archived. It does not
// block.
func (r *Roller) Below(end framelog.End) {
	if r != nil {
		r.archiver.Below(end)
	}
}

// Close prepares the next segment, and makes the next Write close segment n, however small it is. It has no effect if
// segment n is closed already. It returns ErrNotArchived if r is nil, and otherwise errors of the log.
func (r *Roller) Close(ctx context.Context, n uint64) error {
	if r == nil {
		return ErrNotArchived
	}
	next, err := r.log.Prepare(ctx, n)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.segment || r.segment == 0 && r.size == 0 { // this process has not written to segment n yet
		r.segment, r.size, r.sizeKnown = n, 0, false
	}
	if n == r.segment {
		r.next = next
	}
	return nil
}

// Archives reports whether closed segments are archived.
func (r *Roller) Archives() bool { return r != nil && r.archiver != nil }

// Erase calls Archiver.Erase, which erases lines in the archived segments up to the one with the number lastSegment. It
// returns ErrNotArchived if r is nil.
func (r *Roller) Erase(ctx context.Context, lastSegment uint64, what Erasing) (int64, error) {
	if r == nil {
		return 0, ErrNotArchived
	}
	return r.archiver.Erase(ctx, lastSegment, what)
}

// Expire calls Archiver.Expire, which removes old lines from archived segments. It returns ErrNotArchived if r is nil.
func (r *Roller) Expire(ctx context.Context, x Expiry) (int64, error) {
	if r == nil {
		return 0, ErrNotArchived
	}
	return r.archiver.Expire(ctx, x)
}

// Settle waits until all segments that may be archived are archived (Archiver.Settle). It returns nil at once if r is
// nil.
func (r *Roller) Settle(ctx context.Context) error {
	if r == nil {
		return nil
	}
	return r.archiver.Settle(ctx)
}

// Stop ends the Roller and what it does in the background, for which it waits; for an answer of the log up to
// stopTerm.
func (r *Roller) Stop() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.busy = true // nothing more is begun
	r.mu.Unlock()
	term := time.AfterFunc(stopTerm, r.cancel)
	defer term.Stop()
	r.archiver.Stop()
	r.idle.Wait()
	r.cancel()
}

// Write writes a frame behind an end of the log as w does, in a new segment if the present one is to be closed. It
// calls record with the end behind the frame that closes a segment. Then the result is not Clean, since followers
// have to read that frame in the log.
func (r *Roller) Write(ctx context.Context, w *framelog.Writer, end framelog.End, f framelog.Frame, c *framelog.Content,
	record func(framelog.End),
) framelog.Result {
	// Close the present segment if it is due.
	next, clean := r.nextToOpen(end.Segment), true
	if next > 0 {
		closing := w.CloseSegment(ctx, end, f.Generation, next)
		switch {
		case closing.Outcome == framelog.Stored && !closing.Foreign:
			record(closing.At)
			end, clean = closing.End, false
		case closing.Outcome == framelog.Stored: // but another writer has written behind it: the partition must reload
			closing.Outcome = framelog.Absent // of f, which was not tried
			return closing
		case closing.Outcome == framelog.Refused: // it is closed later
			end = closing.End
		default:
			return closing
		}
	}

	v := w.Write(ctx, end, f, c)
	v.Clean = v.Clean && clean
	if v.Outcome == framelog.Stored {
		r.wrote(v.At.Segment, len(f.Body))
	}
	return v
}

// wrote counts a frame that was stored in a segment. It does not block: what has to be measured or prepared is done by
// a goroutine.
func (r *Roller) wrote(segment uint64, body int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if segment != r.segment {
		r.segment, r.size, r.sizeKnown, r.next = segment, 0, false, 0
	}
	r.size += int64(body) + FrameRoom

	// Begin to measure the segment or to prepare the next one, if either is due and not done already.
	if r.busy || r.next > 0 || r.sizeKnown && r.size < r.limit || r.mono().Before(r.retry) {
		return
	}
	r.busy = true
	sizeKnown := r.sizeKnown
	r.idle.Go(func() { r.prepare(segment, sizeKnown) })
}

// prepare prepares the segment behind the given one, if the given one is still written to and has limit bytes. Unless
// sizeKnown is set, it first asks the log for the size of the given one. The caller must have set busy.
func (r *Roller) prepare(segment uint64, sizeKnown bool) {
	var size int64
	var err error
	if !sizeKnown {
		size, err = r.log.Size(r.ctx, segment)
	}
	r.mu.Lock()
	if err == nil && !sizeKnown && segment == r.segment {
		r.size, r.sizeKnown = max(r.size, size), true
	}
	due := err == nil && segment == r.segment && r.size >= r.limit
	r.mu.Unlock()

	var next uint64
	if due {
		next, err = r.log.Prepare(r.ctx, segment)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = r.ctx.Err() != nil           // once ctx has ended nothing more is begun
	if next > 0 && segment == r.segment { // if next is 0, what Close may have set meanwhile stays
		r.next = next
	}
	if err != nil && r.ctx.Err() == nil {
		r.retry = r.mono().Add(prepareAgain)
		r.logger.Warn("journal: the next segment could not be prepared; the present one continues",
			zap.Uint64("segment", segment), zap.Error(err))
	}
}

// nextToOpen returns where the segment behind the given one begins, if that is to be closed now, and otherwise 0.
func (r *Roller) nextToOpen(segment uint64) uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if segment != r.segment {
		return 0
	}
	return r.next
}
