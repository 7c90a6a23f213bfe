package journal_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
)

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
