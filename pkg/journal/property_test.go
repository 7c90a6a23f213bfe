package journal_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// TestX1_NothingTwiceNothingMissing: whatever the log does, every answered put
// is there once, none is there twice, and the log tells the same state.
func TestX1_NothingTwiceNothingMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := journaltest.NewFaultLog(journaltest.NewMemLog())
		writers := make([]*partition, rapid.IntRange(1, 2).Draw(t, "writers"))
		segment := rapid.SampledFrom([]int64{0, 1, 1500}).Draw(t, "segment size")
		store := journaltest.NewMemSnapshots()
		snapshots := rapid.SampledFrom([]int64{0, 1, 1500}).Draw(t, "snapshot bytes")
		config := func() journal.Config[*journaltest.State] {
			cfg := journaltest.Config(log)
			if snapshots > 0 {
				cfg.Snapshots, cfg.SnapshotBytes = store, snapshots
			}
			return cfg
		}
		for i := range writers {
			cfg := config()
			cfg.AppendTimeout, cfg.SegmentSize = 5*time.Millisecond, segment
			writers[i] = must.Value(journal.Open(context.Background(), cfg))(t)
		}
		faults := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) journaltest.Fault {
			f := journaltest.Fault(rapid.IntRange(0, int(journaltest.Last)-1).Draw(t, "fault"))
			if f == journaltest.Late || f == journaltest.HeldRefused {
				f = journaltest.None
			}
			return f
		}), 0, 25).Draw(t, "faults")
		log.Inject(faults...)
		given := rapid.Bool().Draw(t, "request ids")
		var wg sync.WaitGroup
		var mu sync.Mutex
		answered, refused := map[string]bool{}, map[string]bool{}
		for c := range rapid.IntRange(1, 4).Draw(t, "callers") {
			p := writers[c%len(writers)]
			wg.Go(func() {
				for i := range 5 {
					value, requestID := fmt.Sprintf("%d-%d", c, i), ""
					if given {
						requestID = value
					}
					for {
						_, _, err := journal.Do(context.Background(), p, journaltest.Put("k", value, requestID))
						if err != nil && given {
							continue // refused on order: the same request again
						}
						mu.Lock()
						answered[value], refused[value] = err == nil, err != nil
						mu.Unlock()
						break
					}
				}
			})
		}
		wg.Wait()
		log.Heal()
		live, _, err := journal.View(context.Background(), writers[0], journaltest.Snapshot)
		require.NoError(t, err)
		for _, p := range writers {
			require.NoError(t, p.Close(context.Background()))
		}
		p := must.Value(journal.Open(context.Background(), config()))(t)
		restored, _, err := journal.View(context.Background(), p, journaltest.Snapshot)
		require.NoError(t, err)
		require.NoError(t, p.Close(context.Background()))
		p = must.Value(journal.Open(context.Background(), journaltest.Config(log)))(t)
		replayed, _, err := journal.View(context.Background(), p, journaltest.Snapshot)
		require.NoError(t, err)
		require.NoError(t, p.Close(context.Background()))
		require.Equal(t, replayed, restored, "a snapshot and the log behind it give the same state as the log")
		for value, ok := range answered {
			want := 0
			if ok {
				want = 1
			}
			require.Equal(t, want, replayed.Values["k="+value], "%s answered %t refused %t", value, ok, refused[value])
		}
		if len(writers) == 1 {
			require.Equal(t, replayed, live, "replay gives the live state (R7)")
		}
	})
}
