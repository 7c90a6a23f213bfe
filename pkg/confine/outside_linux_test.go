package confine_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"quartet/pkg/confine"
	"quartet/pkg/must"
)

// insideNamespace is set in the process of TestT10_OutsideIsEveryHostButThisOne that has a network of its own.
const insideNamespace = "CONFINE_TEST_IN_NAMESPACE"

// outsideAddress belongs to no interface. A route makes the kernel deliver it locally, so that it stands for another
// host.
const outsideAddress = "192.0.2.1"

// TestT10_OutsideIsEveryHostButThisOne runs in a network namespace of its own, in which it may make routes.
func TestT10_OutsideIsEveryHostButThisOne(t *testing.T) {
	exe := must.Value(os.Executable())(t)
	if os.Getenv(insideNamespace) == "" {
		cmd := exec.Command(exe, "-test.run=^TestT10_OutsideIsEveryHostButThisOne$", "-test.v")
		cmd.Env = append(os.Environ(), insideNamespace+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{
				{HostID: os.Getgid(), Size: 1},
			},
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS")
		return
	}
	lo := must.Value(netlink.LinkByName("lo"))(t)
	require.NoError(t, netlink.LinkSetUp(lo))
	_, outside, err := net.ParseCIDR(outsideAddress + "/32")
	require.NoError(t, err)
	require.NoError(t,
		netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: outside, Table: unix.RT_TABLE_LOCAL,
			Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		}))
	everywhere, packets := answer(t, "tcp", "0.0.0.0:0"), answerPackets(t, outsideAddress+":0")
	_, port, err := net.SplitHostPort(everywhere.String())
	require.NoError(t, err)
	reach := func(n confine.Network) (out, loopback, datagram string) {
		s := open(t, func(p *confine.Policy) {
			p.Level, p.Network, p.Readable = confine.LevelNamespaces, n, []string{exe}
		})
		out, _ = s.attack(exe, "dial", []string{"tcp", net.JoinHostPort(outsideAddress, port)})
		loopback, _ = s.attack(exe, "dial", []string{"tcp", net.JoinHostPort("127.0.0.1", port)})
		datagram, _ = s.attack(exe, "udp", []string{packets.String()})
		return out, loopback, datagram
	}
	out, loopback, datagram := reach(confine.NetworkOutside)
	require.Equal(t, "reached: SECRET", out)
	require.Equal(t, "reached: SECRET", datagram)
	require.True(t, strings.HasPrefix(loopback, "refused"), loopback)
	out, loopback, datagram = reach(confine.NetworkNone)
	for _, said := range []string{out, loopback, datagram} {
		require.True(t, strings.HasPrefix(said, "refused"), said)
	}
	out, loopback, datagram = reach(confine.NetworkAll)
	require.Equal(t, []string{"reached: SECRET", "reached: SECRET", "reached: SECRET"},
		[]string{out, loopback, datagram})
}
