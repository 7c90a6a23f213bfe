package runner

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The pause grows up to MaxBackoff, whatever number of repetitions there were, and is never shorter than what is
// demanded.
func TestPauseIsBounded(t *testing.T) {
	c := Config{Backoff: time.Second, MaxBackoff: time.Minute}
	for n, most := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute,
		64: time.Minute, math.MaxInt32: time.Minute,
	} {
		for range 20 {
			p := c.pause(n, 0)
			require.LessOrEqual(t, p, most, n)
			require.GreaterOrEqual(t, p, most/2, n)
		}
		require.Equal(t, time.Hour, c.pause(n, time.Hour), n)
	}
}
