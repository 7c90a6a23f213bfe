package follower_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/clock"
	"quartet/pkg/journal"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const plane = "test"

// counted is a log that counts what is asked, and whose frames can be taken away.
type counted struct {
	framelog.Log
	gets  atomic.Int32
	empty atomic.Bool
}

// Get implements framelog.Log.
func (c *counted) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	c.gets.Add(1)
	if c.empty.Load() {
		return framelog.Frame{}, framelog.ErrGone
	}
	return c.Log.Get(ctx, seq)
}

// write writes n events to a log.
func write(t *testing.T, log framelog.Log, n int) {
	t.Helper()
	cfg := journaltest.Config(log)
	cfg.Plane = plane
	p, err := journal.Open(t.Context(), cfg)
	require.NoError(t, err)
	for range n {
		_, _, err = journal.Do(t.Context(), p, journaltest.Put("k", "v", ""))
		require.NoError(t, err)
	}
	require.NoError(t, p.Close(context.Background()))
}

// told is a source that says which frames a follower has taken.
type told struct {
	follower.Source
	seqs chan uint64
}

// Follow implements Source.
func (s told) Follow(ctx context.Context, after framelog.End,
	fn func(at framelog.End, lines []event.Line) error,
) error {
	return s.Source.Follow(ctx, after, func(at framelog.End, lines []event.Line) error {
		err := fn(at, lines)
		if err == nil {
			s.seqs <- at.Seq
		}
		return err
	})
}

// follow follows a source that is watched until it ends, and returns a channel with the sequence numbers that the watch
// knows and one with the error.
func follow(ctx context.Context, watch *follower.Watch, src follower.Source) (seqs chan uint64, ended chan error) {
	seqs, ended = make(chan uint64, 100), make(chan error, 1)
	watched := watch.Source(told{src, seqs})
	go func() {
		ended <- watched.Follow(ctx, framelog.End{}, func(framelog.End, []event.Line) error { return nil })
	}()
	return seqs, ended
}

// TestR10_AnIdleFollowerNotices: a journal that loses its end while nothing is written is noticed by all who follow it,
// and as long as it is in order one of them asks for one frame in each interval.
func TestR10_AnIdleFollowerNotices(t *testing.T) {
	log := &counted{Log: journaltest.NewMemLog()}
	write(t, log, 3)
	fake := clock.NewFake(time.Unix(1e9, 0))
	watch := follower.NewWatch(fake)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ends []chan error
	const followers = 5
	for range followers {
		seqs, ended := follow(ctx, watch, follower.NewSource(plane, 0, log))
		for range 4 {
			<-seqs
		}
		ends = append(ends, ended)
	}
	before := log.gets.Load()
	for range 4 { // in the first interval frames arrived
		fake.AwaitTimers(followers)
		fake.Advance(follower.IdleInterval)
	}
	fake.AwaitTimers(followers)
	require.EqualValues(t, 3, log.gets.Load()-before, "once for all followers")
	log.empty.Store(true)
	fake.Advance(follower.IdleInterval)
	for _, ended := range ends {
		var broken *framelog.Broken
		require.ErrorAs(t, <-ended, &broken)
		require.ErrorContains(t, broken, "is gone")
	}
}

// TestR10_AFrameThatAStaleServerDoesNotShow: a follower that doubted without reason goes on, without a frame twice.
func TestR10_AFrameThatAStaleServerDoesNotShow(t *testing.T) {
	log := &stale{counted: counted{Log: journaltest.NewMemLog()}}
	write(t, log, 3)
	fake := clock.NewFake(time.Unix(1e9, 0))
	ctx, cancel := context.WithCancel(t.Context())
	seqs, ended := follow(ctx, follower.NewWatch(fake), follower.NewSource(plane, 0, log))
	last := uint64(0)
	for range 4 {
		last = <-seqs
	}
	fake.AwaitTimers(1)
	fake.Advance(follower.IdleInterval)
	fake.AwaitTimers(1)
	log.once.Store(true)
	fake.Advance(follower.IdleInterval)
	fake.AwaitTimers(1) // it follows again
	require.False(t, log.once.Load())
	write(t, log, 1)
	require.Greater(t, <-seqs, last)
	require.Greater(t, <-seqs, last)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Empty(t, seqs)
}

// stale is a log that does not show a frame once.
type stale struct {
	counted
	once atomic.Bool
}

// Get implements framelog.Log.
func (s *stale) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	if s.once.CompareAndSwap(true, false) {
		return framelog.Frame{}, framelog.ErrNoFrame
	}
	return s.counted.Get(ctx, seq)
}

// TestR10_AnOlderCopyUnderAFollower: the store of a NATS server is exchanged for an older copy, and nothing is written
// since. The follower's own reading begins again behind what it has read, and alone would not notice.
func TestR10_AnOlderCopyUnderAFollower(t *testing.T) {
	store, older := t.TempDir(), filepath.Join(t.TempDir(), "older")
	var exchange sync.Once
	exchange.Do(func() {}) // the first start
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: store, Port: natsd.InProcess, BeforeOpen: func() (err error) {
		exchange.Do(func() {
			if err = os.RemoveAll(store); err == nil {
				err = os.CopyFS(store, os.DirFS(older))
			}
		})
		return err
	}}))(t)
	defer srv.Stop()
	connect := func() (*nats.Conn, framelog.Log) {
		nc := must.Value(srv.Connect("test"))(t)
		return nc, must.Value(jetlog.New(nc, plane, 0))(t)
	}
	nc, log := connect()
	defer nc.Close()
	must.Value(jetlog.Ensure(t.Context(), nc, plane, 1, 1))(t)
	write(t, log, 3)
	require.NoError(t, srv.Restart()) // everything is on the disk
	require.NoError(t, os.CopyFS(older, os.DirFS(store)))
	write(t, log, 3)

	fake := clock.NewFake(time.Unix(1e9, 0))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seqs, ended := follow(ctx, follower.NewWatch(fake), follower.NewSource(plane, 0, log))
	for range 8 {
		<-seqs
	}
	fake.AwaitTimers(1)
	fake.Advance(follower.IdleInterval)
	fake.AwaitTimers(1)
	exchange = sync.Once{}
	require.NoError(t, srv.Restart())
	require.Eventually(t, func() bool { _, _, err := log.Tail(t.Context()); return err == nil }, time.Minute,
		10*time.Millisecond)
	require.Empty(t, ended)
	fake.Advance(follower.IdleInterval)
	var broken *framelog.Broken
	require.ErrorAs(t, <-ended, &broken)
	require.Equal(t, uint64(8), broken.Seq)
}
