package usernet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// errHost is the error of a connection to the host itself.
var errHost = errors.New("an address of this host")

// refused returns an error if addr must not be reached: it is an address of this host, such as
// loopback or the gateway, or it is link-local, multicast, broadcast or in 0.0.0.0/8. Private
// networks may be reached, but not the addresses at which clouds serve credentials. An IPv6 address that stands for an
// IPv4 address is treated as that one.
func refused(addr netip.Addr) error {
	addr = embedded(addr)
	switch {
	case metadata[addr] != "":
		return fmt.Errorf("%s serves the metadata of %s", addr, metadata[addr])
	case addr.IsLoopback(), addr.IsUnspecified(), addr.String() == Gateway:
		return errHost
	case addr.IsLinkLocalUnicast(), addr.IsMulticast(), addr.IsLinkLocalMulticast(), addr.IsInterfaceLocalMulticast():
		return fmt.Errorf("%s is local to a link", addr)
	case addr.Is4() && addr.As4()[0] == 0, addr.As16() == broadcast:
		return fmt.Errorf("%s is no address of a host", addr)
	case own.has(addr):
		return errHost
	}
	return nil
}

// embedded returns the IPv4 address of an IPv6 address that is mapped, or that a translator (NAT64, RFC 6052) turns
// into it; and otherwise addr.
func embedded(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if nat64.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96")

var broadcast = netip.MustParseAddr("255.255.255.255").As16()

// addressAge is how long the addresses of the host are remembered.
const addressAge = time.Second

// own are the addresses of this host.
var own addresses

type addresses struct {
	mu   sync.Mutex
	read time.Time
	set  map[netip.Addr]struct{}
}

// has reports whether addr is an address of this host. If these cannot be read, it returns true.
func (a *addresses) has(addr netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.read) > addressAge {
		list, err := net.InterfaceAddrs()
		if err != nil {
			return true
		}
		a.set, a.read = make(map[netip.Addr]struct{}, len(list)), time.Now()
		for _, n := range list {
			if prefix, err := netip.ParsePrefix(n.String()); err == nil {
				a.set[prefix.Addr().Unmap()] = struct{}{}
			}
		}
	}
	_, ok := a.set[addr]
	return ok
}

// dialNameServer connects to the first name server of the host that can be reached.
func dialNameServer(ctx context.Context, d *net.Dialer, network string) (net.Conn, error) {
	servers, err := nameServers("/etc/resolv.conf")
	if err != nil {
		return nil, err
	}
	err = errors.New("the host has no name server")
	for _, server := range servers {
		conn, dialErr := d.DialContext(ctx, network, net.JoinHostPort(server, "53"))
		if dialErr == nil {
			return conn, nil
		}
		err = errors.Join(err, dialErr)
	}
	return nil, err
}

// nameServers returns the name servers in a file with the form of resolv.conf, in order.
func nameServers(path string) (servers []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == "nameserver" {
			servers = append(servers, fields[1])
		}
	}
	return servers, lines.Err()
}
