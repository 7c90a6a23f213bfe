package usernet

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// The addresses of every cloud's metadata are refused, however they are written; their neighbours are hosts.
func TestT10_MetadataOfCloudsIsRefused(t *testing.T) {
	for addr, cloud := range metadata {
		forms := []netip.Addr{addr}
		if addr.Is4() {
			b := addr.As4()
			translated := nat64.Addr().As16()
			copy(translated[12:], b[:])
			forms = append(forms, netip.AddrFrom16(addr.As16()), netip.AddrFrom16(translated))
		} else {
			forms = append(forms, addr.WithZone("eth0"))
		}
		for _, form := range forms {
			require.ErrorContains(t, refused(form), "metadata of "+cloud, form)
		}
	}
	for _, addr := range []string{"100.100.100.201", "168.63.129.17", "64:ff9b::5db8:d822", "192.0.2.1", "fd00:ec2::1"} {
		require.NoError(t, refused(netip.MustParseAddr(addr)), addr)
	}
}
