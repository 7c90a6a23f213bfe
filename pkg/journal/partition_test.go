package journal_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestX1_DoThenView(t *testing.T) {
	ctx := t.Context()
	p := must.Value(journal.Open(ctx, journaltest.Config(journaltest.NewMemLog())))(t)
	for i := range 3 {
		n, res, err := journal.Do(ctx, p, journaltest.Put("k", "v", ""))
		require.NoError(t, err)
		require.Equal(t, i+1, n)
		require.Equal(t, uint64(i+2), res.Seq, "partition_opened is wal_seq 1")
	}
	n, rev, err := journal.View(ctx, p, journaltest.Count("k"))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, uint64(4), rev)
	require.NoError(t, p.Close(context.Background()))
	require.NoError(t, p.Close(context.Background()))
}

// While the log answers nothing a reader is told so within its patience; the
// write goes on waiting for its outcome.
func TestR4_AReaderSoonGetsTheErrorOfAStalledLog(t *testing.T) {
	ctx := t.Context()
	log := journaltest.NewFaultLog(journaltest.NewMemLog())
	cfg := journaltest.Config(log)
	cfg.ViewPatience = 20 * time.Millisecond
	p := must.Value(journal.Open(ctx, cfg))(t)
	log.Inject(journaltest.Late)
	written := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(ctx, p, journaltest.Put("k", "v", ""))
		written <- err
	}()
	<-log.Held()
	_, _, err := journal.View(ctx, p, journaltest.Count("k"))
	require.ErrorIs(t, err, fault.Storage)
	require.Equal(t, "none", fault.From(err).Metadata()["outcome"])
	require.Empty(t, written)
	log.Release()
	require.NoError(t, <-written)
	n, _, err := journal.View(ctx, p, journaltest.Count("k"))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, p.Close(context.Background()))
}

// Who prepares the next command is told of a frame as it is applied and sees it
// while it is written; readers of other partitions' journals, and everybody else, wait.
func TestR4_WhoWritesNextSeesWhatIsBeingWritten(t *testing.T) {
	ctx := t.Context()
	log := journaltest.NewFaultLog(journaltest.NewMemLog())
	cfg := journaltest.Config(log)
	cfg.ViewPatience = 20 * time.Millisecond
	applied := make(chan string, 1)
	cfg.OnApply = func(_ *journaltest.State, events []*journal.Event) int {
		applied <- events[0].Type
		return 0
	}
	p := must.Value(journal.Open(ctx, cfg))(t)
	other := must.Value(journal.Open(ctx, journaltest.Config(journaltest.NewMemLog())))(t)
	log.Inject(journaltest.Late)
	written := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(ctx, p, journaltest.Put("k", "v", ""))
		written <- err
	}()
	<-log.Held()
	require.NotEmpty(t, <-applied)
	n, _, err := journal.View(journal.Ahead(ctx, p), p, journaltest.Count("k"))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, _, err = journal.View(journal.Ahead(ctx, other), p, journaltest.Count("k"))
	require.ErrorIs(t, err, fault.Storage)
	require.Empty(t, written)
	log.Release()
	require.NoError(t, <-written)
	require.NoError(t, p.Close(context.Background()))
	require.NoError(t, other.Close(context.Background()))
}

// A read that waits for a reload ends when the partition does, not after ViewPatience.
func TestViewEndsWithAPartitionThatHasToReload(t *testing.T) {
	log := journaltest.NewFaultLog(journaltest.NewMemLog())
	cfg := journaltest.Config(log)
	cfg.ViewPatience = time.Hour
	p := must.Value(journal.Open(t.Context(), cfg))(t)
	log.Inject(journaltest.Late)
	done := make(chan error, 3)
	go func() {
		_, _, err := journal.Do(context.Background(), p, journaltest.Put("k", "v", ""))
		done <- err
	}()
	<-log.Held()
	go func() {
		_, _, err := journal.Do(context.Background(), p, journaltest.Put("poison", "", ""))
		done <- err
	}()
	require.Eventually(t, func() bool { // until the state is hidden, also from a read of what is not durable
		ctx, cancel := context.WithTimeout(journal.Ahead(t.Context(), p), time.Millisecond)
		defer cancel()
		_, _, err := journal.View(ctx, p, journaltest.Count("k"))
		return err != nil
	}, time.Minute, time.Millisecond)
	reading := make(chan struct{}, 100)
	go func() {
		_, _, err := journal.View(context.Background(), p, func(*journaltest.State) (int, error) {
			reading <- struct{}{}
			return 0, nil
		})
		done <- err
	}()
	<-reading
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, p.Close(ctx), context.Canceled)
	for range 3 {
		select {
		case err := <-done:
			require.Error(t, err)
		case <-time.After(time.Minute):
			require.Fail(t, "a caller is not answered")
		}
	}
}
