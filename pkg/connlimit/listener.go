package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"quartet/pkg/meter"
)

// Listener is a net.Listener whose connections are bounded.
type Listener struct {
	net.Listener
	limits Limits
	closed *prometheus.CounterVec

	mu       sync.Mutex
	sources  map[netip.Addr]*source
	total    int
	unproven int
	stop     chan struct{} // closed by Close
	stopped  bool
}

// source has the connections of one source address.
type source struct {
	total    int
	unproven *list.List // of *Conn, in the order in which they were accepted
}

// Why a connection was closed, for the metric.
const (
	displaced = "displaced" // it was closed for a newer one before it showed a credential
	full      = "full"      // the limits did not admit it
	idle      = "idle"      // no call in time
	refused   = "refused"   // too many calls were refused
)

// Listen returns a Listener for the connections of l. name is its label in the metric
// quartet_connections_closed_total; reg may be nil.
func Listen(l net.Listener, name string, limits Limits, reg prometheus.Registerer) *Listener {
	closed := meter.Counter(reg, "quartet_connections_closed_total", "Connections that the server closed to stay "+
		"within its limits, by listener and reason.", "listener", "reason")
	out := &Listener{
		Listener: l, limits: limits.complete(), sources: map[netip.Addr]*source{}, stop: make(chan struct{}),
		closed: closed.MustCurryWith(prometheus.Labels{"listener": name}),
	}
	go out.sweepUntilClosed()
	return out
}

// Accept implements net.Listener. It closes connections that the limits do not admit, and returns the
// first one that they admit, which is a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.admit(raw); c != nil {
			return c, nil
		}
		l.closed.WithLabelValues(full).Inc()
		_ = raw.Close() // its caller gets nothing else
	}
}

// Close implements net.Listener. Accepted connections stay open, and the sweeps that close idle ones end.
func (l *Listener) Close() error {
	l.mu.Lock()
	if !l.stopped {
		l.stopped = true
		close(l.stop)
	}
	l.mu.Unlock()
	return l.Listener.Close()
}

// admit registers a new connection. At a limit it closes the oldest unproven connection to make room:
// that of the same source at PerSource, that of the source with the most of them at Total and Burst.
// It returns nil if no unproven connection can be closed; raw then remains open.
func (l *Listener) admit(raw net.Conn) *Conn {
	c := &Conn{
		Conn: raw, listener: l, from: sourceOf(raw.RemoteAddr()), since: time.Now(), budget: l.limits.Free,
		grants: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	c.filled = c.since
	var leaving []*Conn
	l.mu.Lock()
	s := l.sources[c.from]
	if s == nil {
		s = &source{unproven: list.New()}
	}
	if s.total >= l.limits.PerSource {
		if s.unproven.Len() == 0 {
			l.mu.Unlock()
			return nil
		}
		leaving = append(leaving, l.takeOldest(s))
	}
	if l.total >= l.limits.Total || l.unproven >= l.limits.Burst {
		largest := l.largest(time.Now())
		if largest == nil {
			l.mu.Unlock()
			return nil
		}
		leaving = append(leaving, l.takeOldest(largest))
	}
	l.sources[c.from] = s // takeOldest may have removed it
	s.total++
	l.total++
	l.unproven++
	c.place = s.unproven.PushBack(c)
	l.mu.Unlock()
	l.end(displaced, leaving)
	return c
}

// largest returns the source with the most unproven connections among those whose oldest one was accepted by then;
// nil if there is none. The caller holds mu.
func (l *Listener) largest(then time.Time) *source {
	var most *source
	for _, s := range l.sources {
		if s.unproven.Len() > 0 && (most == nil || s.unproven.Len() > most.unproven.Len()) &&
			!s.oldest().since.After(then) {
			most = s
		}
	}
	return most
}

// oldest returns the oldest unproven connection; there must be one.
func (s *source) oldest() *Conn {
	return s.unproven.Front().Value.(*Conn) //nolint:forcetypeassert // it holds nothing else
}

// takeOldest removes the oldest unproven connection of a source from the table; the source must have one.
// The caller holds mu, and must close the connection after it has unlocked mu.
func (l *Listener) takeOldest(s *source) *Conn {
	c := s.oldest()
	l.remove(c)
	return c
}

// remove removes a connection from the table, unless that was done before. The caller holds mu.
func (l *Listener) remove(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	s := l.sources[c.from]
	if c.place != nil {
		s.unproven.Remove(c.place)
		c.place = nil
		l.unproven--
	}
	l.total--
	if s.total--; s.total == 0 {
		delete(l.sources, c.from)
	}
}

// end closes connections and counts them in the metric under a reason. The caller must not hold mu.
func (l *Listener) end(reason string, conns []*Conn) {
	for _, c := range conns {
		l.closed.WithLabelValues(reason).Inc()
		_ = c.Close()
	}
}

// sweepUntilClosed calls sweep, which closes unproven connections, every sweepPeriod until the listener is closed.
func (l *Listener) sweepUntilClosed() {
	tick := time.NewTicker(sweepPeriod)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case now := <-tick.C:
			l.sweep(now)
		}
	}
}

// sweep closes the unproven connections that have been idle for Limits.Idle at now. While there are more than
// Limits.Unproven, it also closes one that is older than Limits.Grace: the oldest one of the source with the most
// unproven connections among the sources that have one so old.
func (l *Listener) sweep(now time.Time) {
	var silent, many []*Conn
	l.mu.Lock()
	for _, s := range l.sources {
		for e := s.unproven.Front(); e != nil; {
			c := e.Value.(*Conn) //nolint:forcetypeassert // it holds nothing else
			e = e.Next()
			if c.idleFor(now) > l.limits.Idle {
				l.remove(c)
				silent = append(silent, c)
			}
		}
	}
	for l.unproven > l.limits.Unproven {
		s := l.largest(now.Add(-l.limits.Grace))
		if s == nil {
			break
		}
		many = append(many, l.takeOldest(s))
	}
	l.mu.Unlock()
	l.end(idle, silent)
	l.end(displaced, many)
}

// sourceOf returns what counts as one source: an IPv4 address, or a /64 network of IPv6, which one
// caller often has as a whole. All addresses that are not TCP addresses count as one source.
func sourceOf(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip
	}
	prefix, err := ip.Prefix(64)
	if err != nil {
		return ip
	}
	return prefix.Addr()
}
