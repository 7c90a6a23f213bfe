package journal_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/faultlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/memlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestX1_DoThenView(t *testing.T) {
	ctx := t.Context()
	p, err := journal.Open(ctx, journaltest.Config(memlog.New()))
	require.NoError(t, err)
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
	log := faultlog.New(memlog.New())
	cfg := journaltest.Config(log)
	cfg.ViewPatience = 20 * time.Millisecond
	p, err := journal.Open(ctx, cfg)
	require.NoError(t, err)
	log.Inject(faultlog.Late)
	written := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(ctx, p, journaltest.Put("k", "v", ""))
		written <- err
	}()
	<-log.Held()
	_, _, err = journal.View(ctx, p, journaltest.Count("k"))
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
	log := faultlog.New(memlog.New())
	cfg := journaltest.Config(log)
	cfg.ViewPatience = 20 * time.Millisecond
	applied := make(chan string, 1)
	cfg.OnApply = func(_ *journaltest.State, events []*journal.Event) int {
		applied <- events[0].Type
		return 0
	}
	p, err := journal.Open(ctx, cfg)
	require.NoError(t, err)
	other, err := journal.Open(ctx, journaltest.Config(memlog.New()))
	require.NoError(t, err)
	log.Inject(faultlog.Late)
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
