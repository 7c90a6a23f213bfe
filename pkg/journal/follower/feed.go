package follower

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"quartet/pkg/journal/event"
	"quartet/pkg/journal/framelog"
)

// feedKey identifies a partition.
type feedKey struct {
	plane     string
	partition int
}

// Feeds holds the feeds of the partitions that this process may hold. Followers need not know whether a
// partition is held here, elsewhere, or first here and then elsewhere: only the delay differs.
type Feeds struct {
	mu    sync.Mutex
	feeds map[feedKey]*Feed
	// Damage is what is known to be wrong with journals that this process holds or follows.
	Damage framelog.Damages
}

// NewFeeds returns an empty set of feeds.
func NewFeeds() *Feeds { return &Feeds{feeds: map[feedKey]*Feed{}} }

// Of returns the feed of a partition, creating it at the first call. It returns nil if f is nil.
func (f *Feeds) Of(plane string, partition int) *Feed {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	k := feedKey{plane, partition}
	if f.feeds[k] == nil {
		f.feeds[k] = &Feed{chain: framelog.NewChain[fedFrame](), set: f, name: framelog.PartitionName(plane, partition)}
	}
	return f.feeds[k]
}

// Report records that the partition's journal is damaged, or with nil that it was loaded.
func (f *Feed) Report(damage error) {
	if f != nil {
		f.set.Damage.Report(f.name, damage)
	}
}

// Source returns src with the partition's feed in front of it.
func (f *Feeds) Source(src Source) Source {
	return fedSource{src, f.Of(src.Plane(), src.Partition())}
}

// Feed gives the frames that a partition of this process made durable to followers in the same
// process. Reading them from the broker took 1-2 ms longer and, for each follower, a tenth of the
// processor time of a mutation. The methods of a nil *Feed do nothing.
//
// A follower reads the log until the chain covers what comes next, then the chain, and the log
// again when the chain was closed (another writer, a reload) or the follower is too far behind.
type Feed struct {
	chain *framelog.Chain[fedFrame]
	set   *Feeds
	name  string
	hints atomic.Pointer[[]*hint] // replaced as a whole under mu
	mu    sync.Mutex
}

// hint is one registered receiver of hints.
type hint struct {
	fn func(events []*event.Event, lost bool)
}

// Hinter is implemented by a Source that has a Feed. fn receives events as soon as they are applied, before they are
// durable, also those of the journal itself, so that a reader under Ahead can start one fsync earlier. Events that were
// withdrawn, or whose outcome will not be known here, are passed again with lost set; a reader must then read again.
// fn runs in the partition's loop and must not block. stop unregisters fn; a call that is in progress may still end
// after it.
type Hinter interface {
	Hint(fn func(events []*event.Event, lost bool)) (stop func())
}

// Hint implements Hinter.
func (s fedSource) Hint(fn func(events []*event.Event, lost bool)) (stop func()) {
	f, h := s.feed, &hint{fn}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.setHints(append(slices.Clone(f.listHints()), h))
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.setHints(slices.DeleteFunc(slices.Clone(f.listHints()), func(other *hint) bool { return other == h }))
	}
}

// setHints replaces the receivers. f.mu must be held.
func (f *Feed) setHints(hints []*hint) { f.hints.Store(&hints) }

// listHints returns the receivers, without locking. The slice must not be changed.
func (f *Feed) listHints() []*hint {
	if f == nil {
		return nil
	}
	if hints := f.hints.Load(); hints != nil {
		return *hints
	}
	return nil
}

// Hinted reports whether the partition has a receiver of hints.
func (f *Feed) Hinted() bool { return len(f.listHints()) > 0 }

// HintApplied passes events that were applied to all receivers of hints.
func (f *Feed) HintApplied(events []*event.Event) {
	for _, h := range f.listHints() {
		h.fn(events, false)
	}
}

// HintWithdrawn passes events that were withdrawn, or may have been, to all receivers of hints.
func (f *Feed) HintWithdrawn(events []*event.Event) {
	for _, h := range f.listHints() {
		h.fn(events, true)
	}
}

// fedFrame is a frame of a feed. Its lines are split when the first follower reads it.
type fedFrame struct {
	previous framelog.End // before it
	end      framelog.End // behind it
	body     []byte
	events   []*event.Event
	once     sync.Once
	lines    []event.Line
}

// read returns the lines of the frame with their events. They are shared between followers.
func (f *fedFrame) read() []event.Line {
	f.once.Do(func() {
		f.lines = event.Lines(f.body)
		for i := range min(len(f.lines), len(f.events)) {
			f.lines[i].Event = f.events[i]
		}
	})
	return f.lines
}

// Begin records that the partition was loaded up to head, is held here and is not damaged.
func (f *Feed) Begin(head uint64) {
	f.Reopen(head)
	f.Report(nil)
}

// Reopen empties the feed, which then has what follows head; followers read the log up to there.
func (f *Feed) Reopen(head uint64) {
	if f != nil {
		f.chain.Open(head)
	}
}

// End records that others may write to the partition: followers read the log from then on.
func (f *Feed) End() {
	if f != nil {
		f.chain.Close()
	}
}

// Add appends a durable frame between two ends of the log (framelog.Chain.Add). The feed keeps body
// and events, which must not be changed afterwards.
func (f *Feed) Add(previous, end framelog.End, body []byte, events []*event.Event) {
	if f != nil {
		f.chain.Add(previous.Seq, end.Seq, end.Seq, len(body), &fedFrame{
			previous: previous, end: end, body: body,
			events: events,
		})
	}
}

// fedSource is a source with a feed in front of it.
type fedSource struct {
	Source
	feed *Feed
}

// errCovered ends the reading of the log when the chain covers the next frame.
var errCovered = errors.New("feed: the feed continues from here")

// Follow implements Source. It reports a journal that is damaged, see Feeds.Damage.
func (s fedSource) Follow(ctx context.Context, after framelog.End, fn func(framelog.End, []event.Line) error) error {
	err := s.follow(ctx, after, fn)
	var broken *framelog.Broken
	if errors.As(err, &broken) && broken.Partition == s.feed.name {
		s.feed.set.Damage.ReportReading(s.feed.name, broken)
	}
	return err
}

// follow is Follow without the report of damage: it passes to fn what the chain has, and reads the log where the chain
// does not cover what comes next.
func (s fedSource) follow(ctx context.Context, after framelog.End, fn func(framelog.End, []event.Line) error) error {
	idle := time.NewTicker(framelog.ChainCheckInterval)
	defer idle.Stop()
	for {
		// Pass on the next frame, if the chain has it.
		frame, _, covered, changed := s.feed.chain.Next(after.Seq + 1)
		if frame != nil {
			if !after.SameAs(frame.previous) {
				return &framelog.Broken{
					Partition: s.feed.name, After: after, Seq: frame.end.Seq,
					First: frame.previous.WalSeq + 1, Cause: "the log has other frames than those that were read",
				}
			}
			if err := fn(frame.end, frame.read()); err != nil {
				return err
			}
			after = frame.end
			if err := ctx.Err(); err != nil {
				return err
			}
			continue
		}

		// Otherwise read the log, or wait for the chain if it is at the end of the log.
		if !covered {
			next, err := s.catchUp(ctx, after, changed, fn)
			if err != nil {
				return err
			}
			after = next
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			head, due := s.feed.chain.Due()
			if !due {
				continue
			}
			// After an error the next interval tries again.
			if end, err := s.End(ctx); err == nil {
				s.feed.chain.Verify(head, end.Seq)
			}
		}
	}
}

// catchUp follows the log behind after until the chain covers the next frame, and returns the end of the log before
// that frame. changed is closed at the chain's next change. With an error of fn, of ctx or of the log it returns the
// end behind the last frame that it passed to fn.
func (s fedSource) catchUp(ctx context.Context, after framelog.End, changed <-chan struct{},
	fn func(framelog.End, []event.Line) error,
) (framelog.End, error) {
	var read atomic.Pointer[framelog.End]
	read.Store(&after)
	covers := func() (bool, <-chan struct{}) {
		_, _, covered, changed := s.feed.chain.Next(read.Load().Seq + 1)
		return covered, changed
	}
	// Follow blocks while the log has no further frame, so this goroutine ends it when the chain
	// covers the next one.
	reading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer stop()
		for covered := false; !covered; covered, changed = covers() {
			select {
			case <-changed:
			case <-reading.Done():
				return
			}
		}
	}()

	var fnErr error
	err := s.Source.Follow(reading, after, func(end framelog.End, lines []event.Line) error {
		if fnErr = fn(end, lines); fnErr != nil {
			return fnErr
		}
		read.Store(&end)
		if covered, _ := covers(); covered {
			return errCovered
		}
		return nil
	})
	stop()
	<-ended

	covered, _ := covers()
	switch {
	case fnErr != nil:
		err = fnErr
	case ctx.Err() != nil:
		err = ctx.Err()
	case covered, errors.Is(err, errCovered): // if the chain does not cover it any more, the caller reads the log again
		err = nil
	}
	return *read.Load(), err
}
