package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that holds much is collected more often, one that holds little or
// does much more rarely (ARCHITECTURE: 100 000 agents in 1 GiB).
func TestGCPercentFollowsWhatLivesAndWhatIsMade(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live, rate uint64
		want       int
	}{
		{0, 0, 400},
		{64 * mib, 0, 400},
		{128 * mib, 0, 200},
		{512 * mib, 0, 50},
		{8192 * mib, 0, 50},
		{512 * mib, 64 * mib, 50}, // what four seconds make is just the least headroom
		{512 * mib, 128 * mib, 100},
		{512 * mib, 256 * mib, 200},
		{512 * mib, 4096 * mib, 200}, // the most headroom
		{64 * mib, 4096 * mib, 400},
		{8192 * mib, 4096 * mib, 50},
	} {
		require.Equal(t, c.want, gcPercentFor(c.live, c.rate), "%d MiB live, %d MiB/s", c.live/mib, c.rate/mib)
	}
}

// What a busy time left behind is given back once, when it is calm; a pause is
// not calm.
func TestMemoryIsGivenBackOnceItIsCalm(t *testing.T) {
	var tend tending
	var made uint64
	var gave []int
	for second, mibs := range []uint64{900, 900, 0, 900, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 900, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} {
		made += mibs << 20
		if _, giveBack := tend.look(100<<20, made); giveBack {
			gave = append(gave, second)
		}
	}
	require.Equal(t, []int{12, 27}, gave)
	percent, _ := tend.look(100<<20, made)
	require.Zero(t, percent, "what is in force is not set again")
	percent, _ = tend.look(1000<<20, made)
	require.Equal(t, gcLeastPercent, percent)
}
