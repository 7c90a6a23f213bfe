package journal_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
)

// A reader that waits for a position of a source sees the effects of every event up to
// it, also after a restart in which nothing is consumed again.
func TestAwaitConsumed(t *testing.T) {
	from, log := open(t, journaltest.NewMemLog(), "from"), journaltest.NewMemLog()
	to := open(t, log, "to")
	never := make(chan time.Time)
	fired := make(chan time.Time)
	close(fired)
	_, result, err := journal.Do(t.Context(), from, journaltest.Put("x", "1", ""))
	require.NoError(t, err)
	require.False(t, to.AwaitConsumed(t.Context(), "from", 0, result.Seq, fired), "nothing consumes the source")
	require.Zero(t, to.ConsumedUntil("from", 0))
	for range 2 {
		stop := copies(t, to, from.Source())
		require.True(t, to.AwaitConsumed(t.Context(), "from", 0, result.Seq, never))
		require.Equal(t, result.Seq, to.ConsumedUntil("from", 0))
		s, _, err := journal.View(context.Background(), to, journaltest.Snapshot)
		require.NoError(t, err)
		require.NotEmpty(t, s.Log)
		require.False(t, to.AwaitConsumed(t.Context(), "from", 0, result.Seq+1, fired), "the source has no such event")
		// An event that leads to nothing moves the position all the same.
		_, quiet, err := journal.Do(t.Context(), from, journaltest.Put("quiet", "2", ""))
		require.NoError(t, err)
		require.True(t, to.AwaitConsumed(t.Context(), "from", 0, quiet.Seq, never))
		result = quiet
		stop()
		require.NoError(t, to.Close(t.Context()))
		require.False(t, to.AwaitConsumed(t.Context(), "from", 0, result.Seq+1, never),
			"a closed partition consumes nothing")
		to = open(t, log, "to")
	}
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Close(t.Context()))
}
