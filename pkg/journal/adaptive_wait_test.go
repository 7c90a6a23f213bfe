package journal

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// skipped returns how many waits are skipped until the next one.
func skipped(w *adaptiveWait) (n int) {
	for !w.ShouldWait() {
		n++
	}
	return n
}

func TestWaitsInVainAreSkippedMoreAndMore(t *testing.T) {
	var w adaptiveWait
	require.Zero(t, skipped(&w))
	for _, want := range []int{1, 3, 7, 15, 31, 63, 127, 127} {
		w.Record(false)
		require.Equal(t, want, skipped(&w))
	}
	w.Record(true)
	require.Zero(t, skipped(&w))
	w.Record(false)
	require.Equal(t, 1, skipped(&w))
}
