package journal_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/journal"
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
