package journal

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a feed. A follower that is further behind reads the log. At 256
// callers 4 MiB are 300 ms of frames, and a follower is a few milliseconds
// behind.
const (
	feedBytes  = 4 << 20
	feedFrames = 512
	// feedCheck is how often, while nothing is committed here, the log is asked
	// whether somebody else has written to it.
	feedCheck = time.Second
)

// Line is one event of a followed frame.
type Line struct {
	// Text is the line as it stands in the log, without the newline.
	Text []byte
	// Event is set where the line was written by this process: shared with
	// everybody who follows, never to be changed. Reading it from Text costs
	// 5-10 µs for each follower.
	Event *Event
}

// Type is the line's event type and agent, without reading the rest.
func (l Line) Type() (eventType, agentID string) {
	if l.Event != nil {
		return l.Event.Type, l.Event.AgentID
	}
	return LineType(l.Text)
}

// Envelope is the event without its payload. It must not be changed.
func (l Line) Envelope() (*Event, error) {
	if l.Event != nil {
		return l.Event, nil
	}
	raw, err := ParseLine(l.Text)
	if err != nil {
		return nil, err
	}
	return &raw.Event, nil
}

// Read is the event with its payload, of a type that reg knows.
func (l Line) Read(reg *Registry) (*Event, error) {
	if l.Event != nil {
		return l.Event, nil
	}
	raw, err := ParseLine(l.Text)
	if err != nil {
		return nil, err
	}
	return raw.Decode(reg)
}

func textLines(body []byte) []Line {
	texts := Lines(body)
	out := make([]Line, len(texts))
	for i, t := range texts {
		out[i].Text = t
	}
	return out
}

// Feeds are the feeds of the partitions that this process may hold. Whoever
// follows asks for a Source; whether the partition is held here, elsewhere, or
// first here and then elsewhere, makes a difference in time only.
type Feeds struct {
	mu  sync.Mutex
	all map[sourceKey]*Feed
}

// NewFeeds returns no feeds yet.
func NewFeeds() *Feeds { return &Feeds{all: map[sourceKey]*Feed{}} }

// Of is the feed of a partition; nil where f is.
func (f *Feeds) Of(plane string, partition int) *Feed {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	k := sourceKey{plane, partition}
	if f.all[k] == nil {
		f.all[k] = &Feed{changed: make(chan struct{})}
	}
	return f.all[k]
}

// Source follows src, through the feed as far as that reaches.
func (f *Feeds) Source(src Source) Source {
	return fedSource{src, f.Of(src.Plane(), src.Partition())}
}

// Feed hands the frames that a partition of this process made durable to
// followers in the same process, without the way through the broker: that took
// 1-2 ms and, for each follower, a tenth of the processor time of a mutation.
//
// It holds the newest frames as a chain: each knows the end of the log that it
// was written behind, so a follower that stands there knows that nothing is
// between. Whatever breaks the chain (another writer, a reload, a follower that
// is too far behind) sends followers to the log, and back when they have
// caught up.
type Feed struct {
	mu      sync.Mutex
	open    bool   // the partition is held here, and head is the log's end
	base    uint64 // the frames in (base, head] are here, and no others are there
	head    uint64
	frames  []*fedFrame
	bytes   int
	changed chan struct{} // closed and replaced when any of the above changed
	checked time.Time     // when the log was last heard of

	hints atomic.Pointer[[]*hint]
}

type hint struct {
	fn func(events []*Event, lost bool)
}

// Hinter is a Source in this process. fn gets events as soon as they are applied,
// so that who looks at what they name, in the way that journal.Ahead is meant for,
// does so an fsync earlier. What was taken back, or will not be heard of any more
// here, it gets again as lost: whoever looked meanwhile must look again. fn runs in
// the loop of the partition and must not block.
type Hinter interface {
	Hint(fn func(events []*Event, lost bool)) (stop func())
}

// Hint implements Hinter.
func (s fedSource) Hint(fn func(events []*Event, lost bool)) (stop func()) {
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

func (f *Feed) setHints(all []*hint) { f.hints.Store(&all) }

func (f *Feed) listHints() []*hint {
	if f == nil {
		return nil
	}
	if all := f.hints.Load(); all != nil {
		return *all
	}
	return nil
}

// Hinted says whether somebody gets hints of the partition.
func (f *Feed) Hinted() bool { return len(f.listHints()) > 0 }

func (f *Feed) hint(events []*Event, lost bool) {
	for _, h := range f.listHints() {
		h.fn(events, lost)
	}
}

type fedFrame struct {
	seq    uint64
	body   []byte
	events []*Event
	once   sync.Once
	lines  []Line
}

func (f *fedFrame) read() []Line {
	f.once.Do(func() {
		f.lines = textLines(f.body)
		for i := range min(len(f.lines), len(f.events)) {
			f.lines[i].Event = f.events[i]
		}
	})
	return f.lines
}

// begin says that the partition was loaded up to head and is held here.
func (f *Feed) begin(head uint64) {
	f.change(func() { f.open, f.base, f.head, f.frames, f.bytes = true, head, head, nil, 0 })
}

// end says that the partition may be written by others.
func (f *Feed) end() {
	f.change(func() { f.open, f.frames, f.bytes = false, nil, 0 })
}

func (f *Feed) change(how func()) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
	f.checked = time.Now()
	close(f.changed)
	f.changed = make(chan struct{})
}

// add takes a durable frame: it is at seq, the log ended at after before and
// ends at tail now, and nothing of others is between. It keeps body and events.
func (f *Feed) add(after, seq, tail uint64, body []byte, events []*Event) {
	f.change(func() {
		if !f.open || f.head != after {
			f.open, f.base, f.frames, f.bytes = true, after, nil, 0
		}
		f.head = tail
		f.frames = append(f.frames, &fedFrame{seq: seq, body: body, events: events})
		f.bytes += len(body)
		drop := 0
		for f.bytes > feedBytes && drop < len(f.frames)-1 || len(f.frames)-drop > feedFrames {
			f.bytes -= len(f.frames[drop].body)
			f.base = f.frames[drop].seq
			drop++
		}
		if drop > 0 {
			f.frames = append(f.frames[:0:0], f.frames[drop:]...)
		}
	})
}

// next is what a follower that wants from does: take the frame, or if there is
// none wait for news, or if it is not covered read the log until it is.
func (f *Feed) next(from uint64) (frame *fedFrame, covered bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.open || from <= f.base {
		return nil, false, f.changed
	}
	i := sort.Search(len(f.frames), func(i int) bool { return f.frames[i].seq >= from })
	if i < len(f.frames) {
		return f.frames[i], true, nil
	}
	return nil, true, f.changed
}

// due says whether the log should be asked for its end, and that the caller
// is the one to do it.
func (f *Feed) due() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.open || time.Since(f.checked) < feedCheck {
		return false
	}
	f.checked = time.Now()
	return true
}

// check closes the feed if the log goes on behind its head: the partition is
// held elsewhere and its holder here has not noticed yet.
func (f *Feed) check(end uint64) {
	f.mu.Lock()
	beyond := f.open && end > f.head+1
	f.mu.Unlock()
	if beyond {
		// A frame of ours whose acknowledgement is on its way looks the same;
		// followers then read it from the log, and its add opens the feed.
		f.end()
	}
}

// fedSource is a log with a feed in front of it.
type fedSource struct {
	Source
	feed *Feed
}

var errCovered = errors.New("journal: the feed goes on from here")

func (s fedSource) Follow(ctx context.Context, from uint64, fn func(uint64, []Line) error) error {
	idle := time.NewTicker(feedCheck)
	defer idle.Stop()
	for {
		frame, covered, changed := s.feed.next(from)
		if frame != nil {
			if err := fn(frame.seq, frame.read()); err != nil {
				return err
			}
			from = frame.seq + 1
			if err := ctx.Err(); err != nil {
				return err
			}
			continue
		}
		if !covered {
			next, err := s.catchUp(ctx, from, changed, fn)
			if err != nil {
				return err
			}
			from = next
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			if !s.feed.due() {
				continue
			}
			// Without an answer the next round asks again.
			if end, err := s.End(ctx); err == nil {
				s.feed.check(end)
			}
		}
	}
}

// catchUp follows the log until the feed covers what comes next.
func (s fedSource) catchUp(ctx context.Context, from uint64, changed <-chan struct{}, fn func(uint64, []Line) error) (uint64, error) {
	var next atomic.Uint64
	next.Store(from)
	covers := func() (bool, <-chan struct{}) {
		frame, covered, changed := s.feed.next(next.Load())
		return frame != nil || covered, changed
	}
	// Where nothing comes from the log any more, the feed's news ends the wait.
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
	var own error
	err := s.Source.Follow(reading, from, func(seq uint64, lines []Line) error {
		if seq >= next.Load() {
			if own = fn(seq, lines); own != nil {
				return own
			}
			next.Store(seq + 1)
		}
		if covered, _ := covers(); covered {
			return errCovered
		}
		return nil
	})
	stop()
	<-ended
	switch covered, _ := covers(); {
	case own != nil:
		err = own
	case ctx.Err() != nil:
		err = ctx.Err()
	case covered:
		err = nil
	}
	return next.Load(), err
}
