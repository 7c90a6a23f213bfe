package journal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMeterCountsWritesOfASecondAndMore(t *testing.T) {
	var m stallMeter
	at := time.Unix(1000, 0)
	require.Zero(t, m.Current(at))
	m.Begin(at)
	require.Zero(t, m.Current(at.Add(stallThreshold-1)), "a slow disk is not a stall")
	m.End(at.Add(stallThreshold - 1))
	require.Zero(t, m.Total(at))

	m.Begin(at)
	m.Begin(at.Add(time.Second)) // a repeated Begin keeps the start
	require.Equal(t, 3*time.Second, m.Current(at.Add(3*time.Second)))
	require.Equal(t, 3*time.Second, m.Total(at.Add(3*time.Second)), "the total includes the current stall")
	m.End(at.Add(5 * time.Second))
	require.Zero(t, m.Current(at.Add(time.Hour)))
	require.Equal(t, 5*time.Second, m.Total(at.Add(time.Hour)))
	m.End(at.Add(time.Hour)) // without Begin
	require.Equal(t, 5*time.Second, m.Total(at.Add(time.Hour)))
}
