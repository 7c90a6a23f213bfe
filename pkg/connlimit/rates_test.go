package connlimit

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestI12_RatesAreBySource: one source at its limit leaves others theirs, and the memory is bounded.
func TestI12_RatesAreBySource(t *testing.T) {
	r := NewRates(1e-3, 2)
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	require.Zero(t, r.Take(one))
	require.Zero(t, r.Take(one)) // at the limit
	require.Positive(t, r.Take(one))
	require.Zero(t, r.Take(other))
	for i := range uint32(8192) {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], i)
		r.Take(netip.AddrFrom4(a))
	}
	require.Zero(t, r.Take(other), "a source that is remembered keeps what it has")
	require.Positive(t, r.Take(netip.MustParseAddr("198.51.100.1")), "those beyond share one limit")
}
