package usernet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	nic = 1
	// maxConnecting bounds the TCP connections of a network that are being established.
	maxConnecting = 512
	// maxOpen bounds the open TCP connections and UDP flows of a network, together.
	maxOpen = 4096
	// dialTimeout bounds the time to make a connection.
	dialTimeout = 30 * time.Second
	// flowTimeout is how long a UDP flow without packets is kept.
	flowTimeout = 60 * time.Second
	// receiveWindow bounds the bytes that are received and not yet written, per connection.
	receiveWindow = 256 << 10
)

// Network forwards the packets of one interface.
type Network struct {
	fd     int
	stack  *stack.Stack
	ctx    context.Context //nolint:containedctx // of all connections; ends with Close
	cancel context.CancelFunc
	open   chan struct{} // one element for each open connection
	once   sync.Once
}

// Open begins to forward the packets of an interface that OpenInterface made, until Close. It takes ownership of fd,
// also if it returns an error.
func Open(fd int) (*Network, error) {
	n := &Network{fd: fd, open: make(chan struct{}, maxOpen)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	link, err := fdbased.New(&fdbased.Options{FDs: []int{fd}, MTU: mtu})
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	n.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := n.start(link); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Network) start(link stack.LinkEndpoint) error {
	// Packets arrive as soon as the interface exists, so it is made after the routes and handlers.
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(n.stack, receiveWindow, maxConnecting,
		n.connect).HandlePacket)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(n.stack, n.exchange).HandlePacket)
	sack := tcpip.TCPSACKEnabled(true)
	for _, err := range []tcpip.Error{
		n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sack),
		n.stack.CreateNIC(nic, link),
		n.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{
			Protocol:          ipv4.ProtocolNumber,
			AddressWithPrefix: tcpip.AddrFrom4(netip.MustParseAddr(Gateway).As4()).WithPrefix(),
		}, stack.AddressProperties{}),
		n.stack.SetPromiscuousMode(nic, true), // accept packets to every address
		n.stack.SetSpoofing(nic, true),        // and answer from it
	} {
		if err != nil {
			return fmt.Errorf("usernet: %s", err)
		}
	}
	return nil
}

// Close ends the network and all of its connections. It is idempotent.
func (n *Network) Close() {
	n.once.Do(func() {
		n.cancel()
		n.stack.Destroy()
		_ = unix.Close(n.fd) // the interface is removed with its namespace
	})
}

// connect makes the outside connection that a process of the namespace requests, and relays its bytes.
func (n *Network) connect(r *tcp.ForwarderRequest) {
	to := destination(r.ID())
	if !n.begin() {
		r.Complete(true)
		return
	}
	outside, err := n.dial("tcp", to)
	if err != nil {
		n.end()
		r.Complete(true) // the process sees a refused connection
		return
	}
	var queue waiter.Queue
	endpoint, failed := r.CreateEndpoint(&queue)
	if failed != nil {
		n.end()
		_ = outside.Close() // nothing was sent
		r.Complete(true)
		return
	}
	r.Complete(false)
	inside := gonet.NewTCPConn(&queue, endpoint)
	go func() {
		defer n.end()
		relay(n.ctx, inside, outside)
	}()
}

// exchange forwards the packets of a UDP flow. It returns false if the stack must tell the sender that the
// port is unreachable.
func (n *Network) exchange(r *udp.ForwarderRequest) bool {
	to := destination(r.ID())
	if err := refused(to.Addr()); err != nil && !isNameServer(to) {
		return false // an address that must not be reached
	}
	var queue waiter.Queue
	endpoint, failed := r.CreateEndpoint(&queue)
	if failed != nil {
		return true
	}
	inside := gonet.NewUDPConn(&queue, endpoint)
	if !n.begin() {
		_ = inside.Close() // the packet is lost, as UDP allows
		return true
	}
	go func() {
		defer n.end()
		outside, err := n.dial("udp", to)
		if err != nil {
			_ = inside.Close() // the packet is lost, as UDP allows
			return
		}
		var wait sync.WaitGroup
		wait.Go(func() { copyPackets(n.ctx, outside, inside) })
		wait.Go(func() { copyPackets(n.ctx, inside, outside) })
		wait.Wait()
	}()
	return true
}

// begin reserves room for a connection, and returns true. It returns false if maxOpen are open. The caller must call
// end when the connection is closed.
func (n *Network) begin() bool {
	select {
	case n.open <- struct{}{}:
		return true
	default:
		return false
	}
}

func (n *Network) end() { <-n.open }

// destination returns the address to which a process of the namespace sends.
func destination(id stack.TransportEndpointID) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	return netip.AddrPortFrom(addr.Unmap(), id.LocalPort)
}

// isNameServer reports whether an address is that of the gateway's name server.
func isNameServer(to netip.AddrPort) bool { return to.Addr().String() == Gateway && to.Port() == 53 }

// dial connects from the host to an address, or, if to is the name server of the gateway, to a name server of the
// host. It returns an error for an address that must not be reached, such as one of the host itself; private networks
// may be reached. See refused.
func (n *Network) dial(network string, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(n.ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	if isNameServer(to) {
		return dialNameServer(ctx, &d, network)
	}
	if err := refused(to.Addr()); err != nil {
		return nil, err
	}
	return d.DialContext(ctx, network, to.String())
}

// relay copies bytes in both directions until both directions have ended or ctx ends, and closes both connections.
func relay(ctx context.Context, inside *gonet.TCPConn, outside net.Conn) {
	stop := context.AfterFunc(ctx, func() {
		_, _ = inside.Close(), outside.Close() // this ends both copies
	})
	defer stop()
	var wait sync.WaitGroup
	wait.Go(func() {
		_, _ = io.Copy(outside, inside) // the other end learns of an error by the end of its stream
		if c, ok := outside.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite()
		}
	})
	wait.Go(func() {
		_, _ = io.Copy(inside, outside)
		_ = inside.CloseWrite()
	})
	wait.Wait()
	_, _ = inside.Close(), outside.Close() // both streams have ended
}

// copyPackets copies packets until none arrives for flowTimeout or ctx ends. Then it closes both connections,
// so that the other direction ends as well.
func copyPackets(ctx context.Context, to, from net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = from.Close() })
	defer stop()
	defer func() { _, _ = to.Close(), from.Close() }()
	packet := make([]byte, 64<<10)
	for {
		if err := from.SetReadDeadline(time.Now().Add(flowTimeout)); err != nil {
			return
		}
		n, err := from.Read(packet)
		if err != nil {
			return
		}
		if _, err := to.Write(packet[:n]); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
}
