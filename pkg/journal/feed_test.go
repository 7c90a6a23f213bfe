package journal_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// hears is what a follower heard, and over which way.
type hears struct {
	mu        sync.Mutex
	seqs      []uint64
	events    []string // type/wal_seq
	fed, read int
}

func (h *hears) take(at framelog.End, lines []journal.Line) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seqs = append(h.seqs, at.Seq)
	for _, l := range lines {
		if l.Event != nil {
			h.fed++
		} else {
			h.read++
		}
		ev, err := l.Read(journaltest.Registry())
		if err != nil {
			return err
		}
		h.events = append(h.events, fmt.Sprintf("%s/%d", ev.Type, ev.WalSeq))
	}
	return nil
}

func (h *hears) count() (seqs, fed int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seqs), h.fed
}

type feedRig struct {
	log   *journaltest.FaultLog
	feeds *journal.Feeds
}

func newFeedRig() *feedRig {
	return &feedRig{journaltest.NewFaultLog(journaltest.NewMemLog()), journal.NewFeeds()}
}

func (r *feedRig) open(t *testing.T) *partition {
	t.Helper()
	cfg := journaltest.Config(r.log)
	cfg.Plane, cfg.Feed = "fed", r.feeds.Of("fed", 0)
	return must.Value(journal.Open(t.Context(), cfg))(t)
}

func (r *feedRig) source() journal.Source {
	return r.feeds.Source(journal.NewSource("fed", 0, r.log))
}

func (r *feedRig) follow(t *testing.T, after framelog.End) (h *hears, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h = &hears{}
	done := make(chan error, 1)
	go func() { done <- r.source().Follow(ctx, after, h.take) }()
	return h, func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	}
}

// whole returns what a follower must have heard by now: the log, frame by frame.
func (r *feedRig) whole(t *testing.T, after framelog.End) *hears {
	t.Helper()
	h := &hears{}
	require.NoError(t, r.log.Scan(context.Background(), after.Seq+1, func(seq uint64, f framelog.Frame) error {
		if len(f.Body) == 0 {
			return nil // a fence says nothing
		}
		var all []journal.Line
		for _, text := range framelog.SplitLines(f.Body) {
			all = append(all, journal.Line{Text: text})
		}
		return h.take(framelog.End{Seq: seq}, all)
	}))
	return h
}

func (r *feedRig) same(t *testing.T, h *hears, after framelog.End) {
	t.Helper()
	want := r.whole(t, after)
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.events) >= len(want.events)
	}, time.Minute, time.Millisecond)
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Equal(t, want.events, h.events)
}

// A follower that was there before the partition, one that comes later, and
// one that begins at the end all hear what the log holds; what is committed
// while they follow comes over the feed.
func TestFeedSaysWhatTheLogSays(t *testing.T) {
	r := newFeedRig()
	early, stopEarly := r.follow(t, framelog.End{})
	p := r.open(t)
	for i := range 20 {
		put(t, p, "k", fmt.Sprint(i))
	}
	late, stopLate := r.follow(t, framelog.End{})
	end := must.Value(r.source().End(t.Context()))(t)
	newest, stopNewest := r.follow(t, end)
	for i := range 600 { // more than the feed keeps
		put(t, p, "k", fmt.Sprint(20+i))
		if i%100 == 0 { // a follower that falls too far behind reads the log
			r.same(t, newest, end)
		}
	}
	r.same(t, early, framelog.End{})
	r.same(t, late, framelog.End{})
	r.same(t, newest, end)
	_, fed := newest.count()
	require.Equal(t, 600, fed, "all of it came over the feed")
	behind, stopBehind := r.follow(t, framelog.End{})
	r.same(t, behind, framelog.End{})
	stopEarly()
	stopLate()
	stopNewest()
	stopBehind()
	require.NoError(t, p.Close(t.Context()))
}

// Whatever happens to appends, no frame is missed or heard twice.
func TestFeedThroughFaults(t *testing.T) {
	r := newFeedRig()
	p := r.open(t)
	h, stop := r.follow(t, framelog.End{})
	for f := journaltest.None; f < journaltest.Last; f++ {
		switch f {
		case journaltest.Refused, journaltest.HeldRefused, journaltest.Late, journaltest.Frozen:
			continue // these wait for somebody
		}
		r.log.Inject(f)
		put(t, p, "k", fmt.Sprint(f))
		r.log.Heal()
		put(t, p, "k", fmt.Sprint(f))
	}
	r.same(t, h, framelog.End{})
	stop()
	require.NoError(t, p.Close(t.Context()))
}

// Another process takes the partition. Its writes are heard, although the
// holder here has not noticed yet, and those of here again after that.
func TestFeedReceivesAnotherWriter(t *testing.T) {
	r := newFeedRig()
	p := r.open(t)
	h, stop := r.follow(t, framelog.End{})
	put(t, p, "k", "1")
	cfg := journaltest.Config(r.log)
	cfg.Plane = "fed"
	other := must.Value(journal.Open(t.Context(), cfg))(t)
	for i := range 5 {
		put(t, other, "k", fmt.Sprint(i))
	}
	r.same(t, h, framelog.End{})
	put(t, p, "k", "2") // loads again, and fences the other
	put(t, p, "k", "3")
	r.same(t, h, framelog.End{})
	_, fed := h.count()
	require.NotZero(t, fed)
	require.NoError(t, p.Close(t.Context()))
	put(t, other, "k", "4") // nobody here any more
	r.same(t, h, framelog.End{})
	stop()
	require.NoError(t, other.Close(t.Context()))
}

// An error of the follower's own comes back, whichever way it was reached.
func TestFeedGivesBackTheFollowersError(t *testing.T) {
	r := newFeedRig()
	p := r.open(t)
	put(t, p, "k", "1")
	enough := errors.New("enough")
	end := must.Value(r.source().End(t.Context()))(t)
	for _, after := range []framelog.End{{}, end} {
		done := make(chan error, 1)
		go func() {
			done <- r.source().Follow(t.Context(), after, func(framelog.End, []journal.Line) error { return enough })
		}()
		put(t, p, "k", "2")
		require.ErrorIs(t, <-done, enough)
	}
	require.NoError(t, p.Close(t.Context()))
}

// A plane that follows over the feed reacts to each event exactly once.
func TestConsumeOverTheFeed(t *testing.T) {
	r := newFeedRig()
	from := r.open(t)
	to := open(t, journaltest.NewMemLog(), "to")
	var want []string
	for round := range 3 {
		stop := copies(t, to, r.source())
		for i := range 40 {
			put(t, from, "k", fmt.Sprintf("%d-%d", round, i))
			want = append(want, fmt.Sprintf("heard=%d-%d@%d", round, i, len(want)))
		}
		heardEventually(t, to, want...)
		stop()
	}
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Close(t.Context()))
}

// shortened is a log that loses its last frame.
type shortened struct {
	framelog.Log
	from atomic.Uint64 // the frames from there on are gone; 0: none is
}

// Tail implements framelog.Log.
func (s *shortened) Tail(ctx context.Context) (last framelog.Frame, at uint64, err error) {
	gone := s.from.Load()
	err = s.Scan(ctx, 0, func(seq uint64, f framelog.Frame) error {
		if gone == 0 || seq < gone {
			last, at = f, seq
		}
		return nil
	})
	return last, at, err
}

// Get implements framelog.Log.
func (s *shortened) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	if gone := s.from.Load(); gone > 0 && seq >= gone {
		return framelog.Frame{}, framelog.ErrGone
	}
	return s.Log.Get(ctx, seq)
}

// TestR10_FollowersInTheHoldersProcessNotice: they get their frames from memory, and notice all the same, while nothing
// is written, that the log does not have the last one any more.
func TestR10_FollowersInTheHoldersProcessNotice(t *testing.T) {
	log, feeds := &shortened{Log: journaltest.NewMemLog()}, journal.NewFeeds()
	cfg := journaltest.Config(log)
	cfg.Feed = feeds.Of(cfg.Plane, 0)
	p, err := journal.Open(t.Context(), cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close(context.Background())) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, ended := make(chan uint64, 10), make(chan error, 1)
	go func() {
		ended <- feeds.Source(journal.NewSource(cfg.Plane, 0, log)).Follow(ctx, framelog.End{},
			func(at framelog.End, _ []journal.Line) error {
				read <- at.Seq
				return nil
			})
	}()
	<-read
	_, _, err = journal.Do(t.Context(), p, journaltest.Put("k", "v", ""))
	require.NoError(t, err)
	last := <-read
	require.Empty(t, feeds.Damage.All())
	log.from.Store(last)
	var broken *framelog.Broken
	select {
	case err := <-ended:
		require.ErrorAs(t, err, &broken)
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	require.Equal(t, last, broken.Seq)
	require.Len(t, feeds.Damage.All(), 1)
}
