package usernet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// Gateway is the address of the gateway in the namespace, which is also its name server.
	Gateway = "10.0.2.2"
	// address is the address of the interface, and prefixBits the size of its network's prefix.
	address    = "10.0.2.100"
	prefixBits = 24
	// mtu is the MTU of the interface. It is large, because the packets never leave the machine.
	mtu           = 65520
	interfaceName = "out0"
)

// OpenInterface makes the interface in the network namespace of the calling process, which needs
// CAP_NET_ADMIN there. It returns a descriptor from which and to which its packets are read and written; see
// Open. The caller must close it.
func OpenInterface() (fd int, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.EACCES) {
			return 0, fmt.Errorf("/dev/net/tun: %w; the network \"outside\" needs it: let this user read and write "+
				"it, as most distributions do (mode 0666), or choose the network none or all", err)
		}
		return 0, fmt.Errorf("/dev/net/tun: %w", err)
	}
	if err := configure(fd); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func configure(fd int) error {
	request, err := unix.NewIfreq(interfaceName)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("make the interface: %w", err)
	}
	link, err := netlink.LinkByName(interfaceName)
	if err != nil {
		return err
	}
	own := netip.PrefixFrom(netip.MustParseAddr(address), prefixBits)
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: own.Addr().AsSlice(), Mask: net.CIDRMask(prefixBits, 32)}}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("address: %w", err)
	}
	if err := errors.Join(netlink.LinkSetMTU(link, mtu), netlink.LinkSetUp(link)); err != nil {
		return err
	}
	gateway := netip.MustParseAddr(Gateway)
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("route: %w", err)
	}
	return nil
}
