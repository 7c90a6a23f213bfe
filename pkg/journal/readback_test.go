package journal_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// Whatever stands in the log can be read back by its coordinates, in any order,
// however it was framed, before and after a restart (SPEC W11).
func TestW11_ReadBack(t *testing.T) {
	ctx := context.Background()
	log := journaltest.NewFaultLog(journaltest.NewMemLog())
	p := must.Value(journal.Open(ctx, journaltest.Config(log)))(t)
	const n = 200
	var mu sync.Mutex
	wrote := map[uint64]string{}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			value := fmt.Sprint("v", i)
			_, res, err := journal.Do(ctx, p, journaltest.Put("k", value, value))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				wrote[res.Seq] = value
			}
		})
	}
	wg.Wait()
	require.Len(t, wrote, n)
	var back []uint64
	for seq := uint64(n + 1); seq > 1; seq-- { // partition_opened is wal_seq 1
		back = append(back, seq)
	}
	for _, when := range []string{"live", "after a restart"} {
		events := must.Value(journal.ReadBack(ctx, p, back))(t, when)
		require.Len(t, events, n)
		for i, ev := range events {
			require.Equal(t, back[i], ev.WalSeq)
			require.Equal(t, wrote[ev.WalSeq], ev.RequestID)
			require.NotNil(t, ev.Payload)
		}
		require.Error(t, must.Err(journal.ReadBack(ctx, p, []uint64{1 << 40})), "what was never written")
		require.Error(t, must.Err(journal.ReadBack(ctx, p, []uint64{0})))
		events = must.Value(journal.ReadBack(ctx, p, nil))(t)
		require.Empty(t, events)

		require.NoError(t, p.Close(ctx))
		must.Refuse(journal.ReadBack(ctx, p, back))(t, fault.Storage)
		p = must.Value(journal.Open(ctx, journaltest.Config(log)))(t)
	}
	require.NoError(t, p.Close(ctx))
}

// An event that is decided and not yet on disk is answered when it is.
func TestX1_ReadBackWaitsForTheDisk(t *testing.T) {
	ctx := context.Background()
	log := journaltest.NewFaultLog(journaltest.NewMemLog())
	p := must.Value(journal.Open(ctx, journaltest.Config(log)))(t)
	log.Inject(journaltest.Late)
	wrote := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(ctx, p, journaltest.Put("k", "v", "r1"))
		wrote <- err
	}()
	<-log.Held()
	early, cancel := context.WithCancel(ctx)
	read := make(chan error, 1)
	go func() {
		_, err := journal.ReadBack(early, p, []uint64{2})
		read <- err
	}()
	cancel()
	require.Error(t, <-read, "nothing is shown before it is on disk")
	log.Release()
	require.NoError(t, <-wrote)
	require.Equal(t, "r1", must.Value(journal.ReadBack(ctx, p, []uint64{2}))(t)[0].RequestID)
	require.NoError(t, p.Close(ctx))
}
