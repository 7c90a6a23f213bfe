package journal_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
)

// memory is a witness in memory.
type memory struct{ end framelog.End }

func (m *memory) Last() (framelog.End, error) { return m.end, nil }
func (m *memory) Record(end framelog.End)     { m.end = end }

// TestR10_ALogThatLostItsEnd: a partition does not open over a log that ends before its witness, or has another frame
// in its place; one that is open and has to load again names the loss, and refuses everything.
func TestR10_ALogThatLostItsEnd(t *testing.T) {
	log, feeds, w := journaltest.NewFaultLog(journaltest.NewMemLog()), journal.NewFeeds(), &memory{}
	cfg := journaltest.Config(log)
	cfg.Witness, cfg.Feed = w, feeds.Of(cfg.Plane, 0)
	name := framelog.PartitionName(cfg.Plane, 0)
	p, err := journal.Open(t.Context(), cfg)
	require.NoError(t, err)
	put(t, p, "k", "1")
	right := w.end
	require.Equal(t, uint64(2), right.WalSeq)
	require.NoError(t, p.Close(t.Context()))

	other := right
	other.Hash[0]++
	for want, end := range map[string]framelog.End{
		"wal_seq 3 to 7 are missing":    {Seq: right.Seq + 9, WalSeq: 7, Hash: framelog.Hash{1}, Incarnation: 1},
		"another frame is in its place": other,
	} {
		w.end = end
		_, err = journal.Open(t.Context(), cfg)
		require.True(t, journal.IsDamage(err), err)
		require.ErrorContains(t, err, want)
		q := journal.Damaged(cfg, err)
		require.ErrorContains(t, feeds.Damage.Of(name), want)
		require.ErrorContains(t, q.Damage(), want)
		require.NoError(t, q.Health(), "the others are served")
		refusedAsDamaged(t, q, name)
	}
	w.end = right
	w.end.Seq, w.end.WalSeq, w.end.Hash, w.end.Incarnation = 99, 99, framelog.Hash{1}, 0 // of a life before a restore
	p, err = journal.Open(t.Context(), cfg)
	require.NoError(t, err)
	require.NoError(t, feeds.Damage.Of(name))

	w.end.Seq, w.end.WalSeq = w.end.Seq+50, 50 // it loses what it has, in operation
	log.Inject(journaltest.Refused)
	_, _, err = journal.Do(t.Context(), p, journaltest.Put("k", "2", ""))
	require.ErrorIs(t, err, fault.Storage)
	require.Eventually(t, func() bool { return p.Damage() != nil }, time.Minute, time.Millisecond)
	require.NoError(t, p.Health())
	require.ErrorContains(t, feeds.Damage.Of(name), "are missing")
	refusedAsDamaged(t, p, name)
	require.NoError(t, p.Close(t.Context()))
}

func refusedAsDamaged(t *testing.T, p *journal.Partition[*journaltest.State], name string) {
	t.Helper()
	_, _, err := journal.Do(t.Context(), p, journaltest.Put("k", "v", ""))
	require.ErrorIs(t, err, fault.Storage)
	require.Equal(t, name, fault.From(err).Metadata()["damaged"])
	_, _, err = journal.View(context.Background(), p, func(s *journaltest.State) (int, error) {
		return len(s.Log),
			nil
	})
	require.ErrorIs(t, err, fault.Storage)
	require.Equal(t, name, fault.From(err).Metadata()["damaged"])
}
