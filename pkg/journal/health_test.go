package journal_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// While nothing can be written time stands still for leases, and after 30 s
// the service is not ready any more.
func TestStallIsMeasuredAndUnhealthy(t *testing.T) {
	log := journaltest.NewFaultLog(journaltest.NewMemLog())
	cfg := journaltest.Config(log)
	var mono atomic.Int64
	cfg.Mono = func() time.Time { return time.Unix(0, mono.Load()) }
	loads := 0
	cfg.OnLoad = func(*journaltest.State) { loads++ }
	p := must.Value(journal.Open(t.Context(), cfg))(t)
	require.NoError(t, p.Health())
	log.Inject(journaltest.Late)
	done := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(context.Background(), p, journaltest.Put("k", "v", ""))
		done <- err
	}()
	<-log.Held()
	mono.Add(int64(29 * time.Second))
	require.Equal(t, 29*time.Second, p.Stalled())
	require.NoError(t, p.Health())
	mono.Add(int64(2 * time.Second))
	require.Error(t, p.Health())
	log.Release()
	require.NoError(t, <-done)
	require.Eventually(t, func() bool { return p.Health() == nil && p.Stalled() == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, 31*time.Second, p.StallTotal())
	require.NoError(t, p.Close(t.Context()))
	require.Equal(t, 1, loads)
}

func TestOnCommitGetsThePlanesEventsInOrder(t *testing.T) {
	cfg := journaltest.Config(journaltest.NewMemLog())
	var got []uint64
	cfg.OnCommit = func(events []*journal.Event) {
		for _, ev := range events {
			got = append(got, ev.WalSeq)
		}
	}
	p := must.Value(journal.Open(t.Context(), cfg))(t)
	for range 3 {
		put(t, p, "k", "v")
	}
	require.NoError(t, p.Close(t.Context()))
	require.Equal(t, []uint64{2, 3, 4}, got)
}

func TestOpenRefusesWhatItCannotRead(t *testing.T) {
	log := journaltest.NewMemLog()
	must.Value(log.Append(t.Context(), 0, framelog.Frame{ID: "x", Body: []byte("no line\n")}))(t)
	require.Error(t, must.Err(journal.Open(t.Context(), journaltest.Config(log))))
	require.Error(t, must.Err(journal.Open(t.Context(), journal.Config[*journaltest.State]{})))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.Refuse(journal.Open(ctx, journaltest.Config(journaltest.NewMemLog())))(t, context.Canceled)
}

func TestSetSpreadsOwners(t *testing.T) {
	open := func(n int) (*journal.Partitions[*journaltest.State], error) {
		config := func(int) (journal.Config[*journaltest.State], error) {
			return journaltest.Config(journaltest.NewMemLog()), nil
		}
		return journal.OpenShare(t.Context(), journal.WholeShare(n), config)
	}
	require.Error(t, must.Err(open(0)))
	s := must.Value(open(4))(t)
	used := map[int]bool{}
	for _, owner := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		p := s.For("default", owner)
		require.Same(t, p, s.For("default", owner))
		require.Same(t, p, s.All()[p.Index()])
		used[p.Index()] = true
	}
	require.Greater(t, len(used), 1)
	require.NoError(t, s.Health())
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, s.Close(t.Context()))
	require.Error(t, s.Health())
}

// One partition that cannot be opened is an error, and those that are open are closed: goleak would find their loops.
func TestSetThatCannotBeOpened(t *testing.T) {
	over := &lease{}
	over.over.Store(true)
	must.Refuse(journal.OpenShare(t.Context(), journal.WholeShare(6), func(partition int) (
		journal.Config[*journaltest.State], error,
	) {
		cfg := journaltest.Config(journaltest.NewMemLog())
		if partition == 3 {
			cfg.Lease = over
		}
		return cfg, nil
	}))(t, journal.ErrNotHeld)
	_, err := journal.OpenShare(t.Context(), journal.WholeShare(2), func(partition int) (
		journal.Config[*journaltest.State], error,
	) {
		if partition == 1 {
			return journal.Config[*journaltest.State]{}, errors.New("no log")
		}
		return journaltest.Config(journaltest.NewMemLog()), nil
	})
	require.EqualError(t, err, "no log")
}
