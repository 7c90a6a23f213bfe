// Package usernet gives a network namespace a network that this program, which runs on the host,
// controls: it forwards the packets of an interface in the namespace through its own sockets. It needs
// no privileges on the host.
//
// The namespace has an IPv4 address behind a gateway. Its TCP connections and UDP packets to
// other addresses leave the host from sockets of this program, unless they are to the host
// itself: to a loopback address, an address of one of its interfaces, or a link-local one,
// where clouds serve the credentials of a machine. Those are refused as unreachable. The
// gateway resolves names with the name servers of the host, even if these listen on its
// loopback interface.
package usernet
