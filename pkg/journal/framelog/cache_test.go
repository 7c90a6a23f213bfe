package framelog

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

func TestLinesAreReadOnceWhileCached(t *testing.T) {
	var c Cache
	reads := map[uint64]int{}
	read := func(_ context.Context, seq uint64) ([][]byte, error) {
		reads[seq]++
		return [][]byte{{byte(seq)}}, nil
	}
	get := func(seq uint64) {
		require.Equal(t, [][]byte{{byte(seq)}}, must.Value(c.Lines(t.Context(), seq, read))(t))
	}
	for range 3 {
		for seq := uint64(1); seq <= cachedFrames; seq++ {
			get(seq)
			require.Equal(t, 1, reads[seq])
		}
	}
	get(cachedFrames + 1) // replaces the oldest
	get(1)
	require.Equal(t, 2, reads[1])
}

func TestErrorsAreNotCached(t *testing.T) {
	var c Cache
	broken := errors.New("broken")
	_, err := c.Lines(t.Context(), 1, func(context.Context, uint64) ([][]byte, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
	lines, err := c.Lines(t.Context(), 1, func(context.Context, uint64) ([][]byte, error) { return [][]byte{{1}}, nil })
	require.NoError(t, err)
	require.Len(t, lines, 1)
}

func TestReadsAreBounded(t *testing.T) {
	var c Cache
	started, release := make(chan struct{}, maxReads+1), make(chan struct{})
	read := func(context.Context, uint64) ([][]byte, error) {
		started <- struct{}{}
		<-release
		return [][]byte{{1}}, nil
	}
	var wg sync.WaitGroup
	for seq := range uint64(maxReads) {
		wg.Go(func() {
			must.Value(c.Lines(context.Background(), seq+1, read))(t)
		})
	}
	for range maxReads {
		<-started
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	must.Refuse(c.Lines(ended, maxReads+1, read))(t, context.Canceled, "one more has to wait")
	require.Empty(t, started)
	close(release)
	wg.Wait()
}
