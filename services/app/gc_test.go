package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A large live heap is collected more often, a small or busy one less often.
func TestGCPercentForLiveHeapAndRate(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live, rate uint64
		want       int
	}{
		{0, 0, 400},
		{16 * mib, 0, 200},
		{32 * mib, 0, 100},
		{64 * mib, 0, 50},
		{128 * mib, 0, 50},
		{16 * mib, 8 * mib, 200}, // what is allocated in four seconds is no more than that
		{16 * mib, 10 * mib, 250},
		{16 * mib, 16 * mib, 400},
		{20 * mib, 17 * mib, 320}, // a busy process with a small heap
		{512 * mib, 0, 50},
		{8192 * mib, 0, 50},
		{512 * mib, 64 * mib, 50}, // the allocations of four seconds are the minimum headroom
		{512 * mib, 128 * mib, 100},
		{512 * mib, 256 * mib, 200},
		{512 * mib, 4096 * mib, 200}, // the maximum headroom
		{64 * mib, 4096 * mib, 200},  // the maximum of a busy process
		{24 * mib, 4096 * mib, 266},  // its minimum
		{8192 * mib, 4096 * mib, 50},
	} {
		require.Equal(t, c.want, gcPercentFor(c.live, c.rate, gcMaxHeadroom), "%d MiB live, %d MiB/s", c.live/mib,
			c.rate/mib)
	}
}

// A process with little memory has less headroom.
func TestGCPercentWithLittleMemory(t *testing.T) {
	const mib = 1 << 20
	require.Equal(t, 200, gcPercentFor(256*mib, 4096*mib, 512*mib))
	require.Equal(t, 50, gcPercentFor(1024*mib, 4096*mib, 512*mib))
}

// After a busy time, unused memory is returned once when the process is idle. A short
// pause is not idle.
func TestUnusedMemoryIsReleasedOnceWhenIdle(t *testing.T) {
	m := gcMonitor{headroom: gcMaxHeadroom}
	var allocated uint64
	var released []int
	for second, mibs := range []uint64{
		900, 900, 0, 900, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 900, 0, 0, 0, 0, 0,
		0, 0, 0, 0, 0, 0, 0,
	} {
		allocated += mibs << 20
		if _, release := m.update(40<<20, allocated); release {
			released = append(released, second)
		}
	}
	require.Equal(t, []int{12, 27}, released)
	percent, _ := m.update(40<<20, allocated)
	require.Zero(t, percent, "an unchanged percentage is not set again")
	percent, _ = m.update(1000<<20, allocated)
	require.Equal(t, gcMinPercent, percent)
}
