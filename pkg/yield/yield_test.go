package yield

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestG12_ComputationsPause: while the process is short of processor time, computations pause once per slice, all
// together; otherwise none does.
func TestG12_ComputationsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer Short(false)
		pauses := func() time.Duration {
			began := time.Now()
			for range 10 {
				Now()
			}
			return time.Since(began)
		}
		<-time.After(slice)
		require.Zero(t, pauses())
		Short(true)
		paused.Store(time.Since(start).Nanoseconds())
		require.Zero(t, pauses(), "the slice has not ended")
		<-time.After(slice - 1)
		require.Zero(t, pauses())
		<-time.After(1)
		require.Equal(t, pause, pauses(), "one of ten, and then the next slice begins")
		Short(false)
		<-time.After(slice)
		require.Zero(t, pauses())
	})
}
