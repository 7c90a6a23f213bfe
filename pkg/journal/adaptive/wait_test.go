package adaptive

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// skipped returns how many waits are skipped until the next one.
func skipped(w *Wait) (n int) {
	for !w.ShouldWait() {
		n++
	}
	return n
}

func TestWaitsInVainAreSkippedMoreAndMore(t *testing.T) {
	var w Wait
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
