package journal_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// lease is a lease that a test takes away.
type lease struct{ over atomic.Bool }

func (l *lease) Valid() bool { return !l.over.Load() }

func try(t *testing.T, p *partition, key string) error {
	t.Helper()
	_, _, err := journal.Do(t.Context(), p, journaltest.Put(key, "x", ""))
	return err
}

func count(t *testing.T, p *partition, key string) int {
	t.Helper()
	n, _, err := journal.View(t.Context(), p, journaltest.Count(key))
	require.NoError(t, err)
	return n
}

// TestR6_ALapsedLeaseShowsNothing: who was paused for longer than its lease shows
// nothing of what it remembers, whatever was done by the next holder meanwhile,
// and what it is asked to write is not stored.
func TestR6_ALapsedLeaseShowsNothing(t *testing.T) {
	log := journaltest.NewMemLog()
	mine := &lease{}
	open := func(l journal.Lease) *journal.Partition[*journaltest.State] {
		cfg := journaltest.Config(log)
		cfg.Lease = l
		p := must.Value(journal.Open(t.Context(), cfg))(t)
		t.Cleanup(func() { require.NoError(t, p.Close(context.WithoutCancel(t.Context()))) })
		return p
	}
	old := open(mine)
	require.NoError(t, try(t, old, "a"))
	require.Equal(t, 1, count(t, old, "a"))

	mine.over.Store(true)
	taker := open(nil)
	require.NoError(t, try(t, taker, "a"))

	_, _, err := journal.View(t.Context(), old, journaltest.Count("a"))
	require.ErrorIs(t, err, journal.ErrNotHeld)
	_, _, err = journal.Do(t.Context(), old, journal.Op[*journaltest.State, struct{}]{
		Method: "nothing", Decide: func(*journaltest.State, journal.Env) (d journal.Decision[struct{}], _ error) {
			return d, nil
		},
	})
	require.ErrorIs(t, err, journal.ErrNotHeld, "what stores nothing has nobody who says whose the partition is")

	// The log refuses, and the partition is not taken back.
	err = try(t, old, "b")
	require.ErrorIs(t, err, journal.ErrNotHeld)
	require.Equal(t, "none", fault.From(err).Metadata()["outcome"], "another frame stands where it would have")
	require.Error(t, old.Health())

	require.Equal(t, 2, count(t, taker, "a"))
	require.Zero(t, count(t, taker, "b"))
	require.NoError(t, try(t, taker, "a"), "nobody took it from the new holder")
}

// TestR6_ALeaseThatComesBackShowsAgain: a lease that could not be renewed for a
// while, and that nobody took, is as good as before.
func TestR6_ALeaseThatComesBackShowsAgain(t *testing.T) {
	mine := &lease{}
	cfg := journaltest.Config(journaltest.NewMemLog())
	cfg.Lease = mine
	p := must.Value(journal.Open(t.Context(), cfg))(t)
	require.NoError(t, try(t, p, "a"))
	mine.over.Store(true)
	require.NoError(t, try(t, p, "a"), "a write is fenced by the log, not by the lease")
	_, _, err := journal.View(t.Context(), p, journaltest.Count("a"))
	require.ErrorIs(t, err, journal.ErrNotHeld)
	mine.over.Store(false)
	require.Equal(t, 2, count(t, p, "a"))
	require.NoError(t, p.Close(t.Context()))
}

// TestR6_NotOpenedWithoutALease: a lease that ended while the log was read.
func TestR6_NotOpenedWithoutALease(t *testing.T) {
	mine := &lease{}
	mine.over.Store(true)
	log := journaltest.NewMemLog()
	cfg := journaltest.Config(log)
	cfg.Lease = mine
	must.Refuse(journal.Open(t.Context(), cfg))(t, journal.ErrNotHeld)
	_, seq, err := log.Tail(t.Context())
	require.NoError(t, err)
	require.Zero(t, seq, "it did not fence whoever holds it")
}

// TestX1_AShareHoldsItsOwners: what lies in other partitions is refused, not
// looked up in the wrong place.
func TestX1_AShareHoldsItsOwners(t *testing.T) {
	const n = 4
	open := func(h journal.Share) (*journal.Partitions[*journaltest.State], error) {
		return journal.OpenShare(t.Context(), h, func(int) (journal.Config[*journaltest.State], error) {
			return journaltest.Config(journaltest.NewMemLog()), nil
		})
	}
	for _, bad := range []journal.Share{
		{},
		{First: -1, Count: 1, Of: 4},
		{First: 3, Count: 2, Of: 4},
		{Count: 0, Of: 1},
	} {
		require.Error(t, must.Err(open(bad)), bad)
	}
	s := must.Value(open(journal.SingleShare(2, n)))(t)
	seen := map[bool]int{}
	for _, owner := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
		here := journal.PartitionOf("default", owner, n) == 2
		seen[here]++
		_, _, err := journal.View(t.Context(), s.For("default", owner), journaltest.Count("a"))
		if here {
			require.NoError(t, err)
			require.Equal(t, 2, s.For("default", owner).Index())
			continue
		}
		require.ErrorIs(t, err, journal.ErrNotHeld)
		require.ErrorIs(t, try(t, s.For("default", owner), "a"), journal.ErrNotHeld)
	}
	require.NotZero(t, seen[true])
	require.NotZero(t, seen[false])
	require.NoError(t, s.Close(t.Context()))
}
