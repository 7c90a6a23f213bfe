package connlimit

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc/peer"

	"quartet/pkg/admission"
)

type connKey struct{}

// WithConn returns a context for the requests that arrive over a connection.
func WithConn(ctx context.Context, c *Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// FromContext returns the connection over which a call arrived: the one that WithConn set, or the one
// that gRPC's peer has. It returns nil if the connection is no Conn.
func FromContext(ctx context.Context) *Conn {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		return c
	}
	if p, ok := peer.FromContext(ctx); ok {
		return Of(p.Addr)
	}
	return nil
}

// SourceOf returns the source of a call, as Conn.Source does: an IPv4 address, or the address of a
// /64 network of IPv6. It is the zero Addr for a call within the process and for one over a
// connection that is not bounded or not of IP.
func SourceOf(ctx context.Context) netip.Addr {
	if c := FromContext(ctx); c != nil {
		return c.from
	}
	return netip.Addr{}
}

// Rates limits how often each source may do something; see admission.Rates. It is safe for concurrent
// use.
type Rates struct{ rates *admission.Rates[netip.Addr] }

// NewRates returns a Rates that admits burst at once and perSecond after that, for each source.
func NewRates(perSecond float64, burst int) *Rates {
	return &Rates{admission.NewRates[netip.Addr](perSecond, burst)}
}

// Take counts one use by a source and returns 0. If the source may not do it now, Take counts nothing
// and returns the time after which it may.
func (r *Rates) Take(from netip.Addr) time.Duration { return r.rates.Take(from, 1) }
