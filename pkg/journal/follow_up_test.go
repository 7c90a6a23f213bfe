package journal_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
)

// openWithFollowUps opens a partition that announces a follow-up of every put to the key "first", and reports each
// announcement on the channel.
func openWithFollowUps(t *testing.T, log framelog.Log, term time.Duration) (*partition, <-chan struct{}) {
	t.Helper()
	announced := make(chan struct{}, 64)
	cfg := journaltest.Config(log)
	cfg.FollowUpTerm = term
	cfg.OnApply = func(_ *journaltest.State, events []*journal.Event) int {
		if events[0].AgentID != "first" {
			return 0
		}
		announced <- struct{}{}
		return 1
	}
	p, err := journal.Open(t.Context(), cfg)
	require.NoError(t, err)
	return p, announced
}

func frames(t *testing.T, log framelog.Log) (n int) {
	t.Helper()
	require.NoError(t, log.Scan(t.Context(), 1, func(uint64, framelog.Frame) error {
		n++
		return nil
	}))
	return n
}

func putKey(t *testing.T, p *partition, key string, followUp bool) error {
	op := journaltest.Put(key, "v", "")
	op.FollowUp = followUp
	_, _, err := journal.Do(t.Context(), p, op)
	return err
}

// A command and its expected follow-up are one write, and both are completed by it.
func TestR3_AFollowUpSharesTheFrame(t *testing.T) {
	log := journaltest.NewMemLog()
	p, announced := openWithFollowUps(t, log, time.Hour)
	before := frames(t, log)
	for range 3 {
		errs := make(chan error, 1)
		go func() { errs <- putKey(t, p, "first", false) }()
		<-announced
		require.Empty(t, errs, "it is written with what follows")
		require.NoError(t, putKey(t, p, "second", true))
		require.NoError(t, <-errs)
	}
	require.Equal(t, before+3, frames(t, log))
	require.NoError(t, p.Close(context.Background()))
}

// A follow-up that does not arrive delays the frame by the term, and ever fewer frames wait.
func TestR3_AFollowUpThatDoesNotArrive(t *testing.T) {
	p, _ := openWithFollowUps(t, journaltest.NewMemLog(), time.Millisecond)
	for range 40 {
		require.NoError(t, putKey(t, p, "first", false))
	}
	require.NoError(t, p.Close(context.Background()))

	// What comes meanwhile goes with it, and whoever closes does not wait for it.
	log := journaltest.NewMemLog()
	p, announced := openWithFollowUps(t, log, time.Hour)
	before := frames(t, log)
	errs := make(chan error, 2)
	go func() { errs <- putKey(t, p, "first", false) }()
	<-announced
	go func() { errs <- putKey(t, p, "other", false) }()
	require.Never(t, func() bool { return len(errs) > 0 }, 20*time.Millisecond, time.Millisecond)
	require.NoError(t, p.Close(context.Background()))
	require.NoError(t, <-errs)
	if err := <-errs; err != nil {
		require.ErrorIs(t, err, journal.ErrNotHeld, "it came after the end")
	}
	require.Equal(t, before+1, frames(t, log))
}

// A frame that several callers share does not wait for follow-ups.
func TestR3_ALargeFrameDoesNotWaitForFollowUps(t *testing.T) {
	log := journaltest.NewFaultLog(journaltest.NewMemLog())
	p, announced := openWithFollowUps(t, log, time.Hour)
	log.Inject(journaltest.Late)
	var all sync.WaitGroup
	errs := make(chan error, 8)
	do := func(key string) { all.Go(func() { errs <- putKey(t, p, key, false) }) }
	do("other")
	<-log.Held() // the next ones collect
	for range 3 {
		do("other")
	}
	do("first")
	<-announced
	require.Eventually(t, func() bool {
		n, _, err := journal.View(journal.Ahead(t.Context(), p), p, journaltest.Count("other"))
		return err == nil && n == 4
	}, time.Minute, time.Millisecond)
	log.Release()
	all.Wait()
	for range 5 {
		require.NoError(t, <-errs)
	}
	require.NoError(t, p.Close(context.Background()))
}

// Receivers of hints get events before they are durable, and again if they were withdrawn.
func TestFeedHints(t *testing.T) {
	r := newFeedRig()
	p := r.open(t)
	require.False(t, r.feeds.Of("fed", 0).Hinted())
	hints := make(chan uint64, 64)
	lostOnes := make(chan uint64, 64)
	source, ok := r.source().(journal.Hinter)
	require.True(t, ok)
	stop := source.Hint(func(events []*journal.Event, lost bool) {
		for _, ev := range events {
			switch {
			case journal.Internal(ev.Type):
			case lost:
				lostOnes <- ev.WalSeq
			default:
				hints <- ev.WalSeq
			}
		}
	})
	require.True(t, r.feeds.Of("fed", 0).Hinted())
	r.log.Inject(journaltest.Late)
	errs := make(chan error, 1)
	go func() { errs <- putKey(t, p, "k", false) }()
	<-r.log.Held()
	require.EqualValues(t, 2, <-hints)
	require.Empty(t, errs, "it is not durable")
	r.log.Release()
	require.NoError(t, <-errs)

	r.log.Inject(journaltest.Refused)
	require.Error(t, putKey(t, p, "k", false))
	require.EqualValues(t, 3, <-hints)
	require.EqualValues(t, 3, <-lostOnes, "it was taken back")
	require.Empty(t, lostOnes)

	stop()
	require.False(t, r.feeds.Of("fed", 0).Hinted())
	require.NoError(t, putKey(t, p, "k", false))
	require.Empty(t, hints)
	require.NoError(t, p.Close(context.Background()))
}
