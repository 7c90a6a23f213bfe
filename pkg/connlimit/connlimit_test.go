package connlimit

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = time.Minute

// door is a Listener of loopback and the connections that it has accepted.
type door struct {
	*Listener
	t        *testing.T
	metrics  *prometheus.Registry
	accepted chan *Conn
}

func newDoor(t *testing.T, limits Limits) *door {
	var lc net.ListenConfig
	raw := must.Value(lc.Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	d := &door{t: t, metrics: prometheus.NewRegistry(), accepted: make(chan *Conn, 1000)}
	d.Listener = Listen(raw, "test", limits, d.metrics)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := d.Accept()
			if err != nil {
				return
			}
			d.accepted <- c.(*Conn) //nolint:forcetypeassert // it accepts no others
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		<-done
		close(d.accepted)
		for c := range d.accepted {
			_ = c.Close()
		}
	})
	return d
}

// dial connects from an address of loopback.
func (d *door) dial(from string) net.Conn {
	d.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := must.Value(dialer.DialContext(d.t.Context(), "tcp", d.Addr().String()))(d.t)
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

// enter connects and returns both ends.
func (d *door) enter(from string) (client net.Conn, server *Conn) {
	d.t.Helper()
	client = d.dial(from)
	select {
	case server = <-d.accepted:
	case <-time.After(soon):
		d.t.Fatal("the connection was not accepted")
	}
	require.Equal(d.t, from, server.Source().String())
	return client, server
}

// closed waits until the server has closed a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(soon)))
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// open asserts that data still comes through a connection.
func open(t *testing.T, client net.Conn, server *Conn) {
	t.Helper()
	must.Value(server.Write([]byte("x")))(t)
	require.NoError(t, client.SetReadDeadline(time.Now().Add(soon)))
	must.Value(io.ReadFull(client, make([]byte, 1)))(t)
}

// count returns how many connections were closed for a reason.
func (d *door) count(reason string) int {
	d.t.Helper()
	families := must.Value(d.metrics.Gather())(d.t)
	for _, m := range families[0].GetMetric() { // there is no other
		for _, l := range m.GetLabel() {
			if l.GetName() == "reason" && l.GetValue() == reason {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

// TestG8_TheOldestOfTheLargestSourceMakesRoom: a flood from one source closes its own connections,
// and those whose callers have shown a credential stay.
func TestG8_TheOldestOfTheLargestSourceMakesRoom(t *testing.T) {
	d := newDoor(t, Limits{Total: 100, Burst: 4})
	known, provenConn := d.enter("127.0.0.2")
	provenConn.Prove()
	provenConn.Prove()
	other, otherConn := d.enter("127.0.0.3")
	var flood []net.Conn
	var floodConns []*Conn
	for range 3 { // with the other one: at the limit
		c, s := d.enter("127.0.0.2")
		flood, floodConns = append(flood, c), append(floodConns, s)
	}
	_, _ = d.enter("127.0.0.2") // above it
	closed(t, flood[0])
	require.Equal(t, 1, d.count(displaced))
	_, _ = d.enter("127.0.0.3")
	closed(t, flood[1])
	open(t, flood[2], floodConns[2])
	open(t, other, otherConn)
	open(t, known, provenConn)
}

// TestG8_AgedConnectionsWithoutACredential: beyond Unproven, those older than Grace are closed.
func TestG8_AgedConnectionsWithoutACredential(t *testing.T) {
	d := newDoor(t, Limits{Unproven: 2, Grace: time.Millisecond})
	first, _ := d.enter("127.0.0.1")
	second, a := d.enter("127.0.0.1")
	third, b := d.enter("127.0.0.1")
	closed(t, first)
	open(t, second, a)
	open(t, third, b)
}

// TestG8_AgedConnectionsOfManySources: also when the source with the most connections has none that is old.
func TestG8_AgedConnectionsOfManySources(t *testing.T) {
	d := newDoor(t, Limits{Unproven: 3, Grace: 10 * time.Minute, Idle: 2 * time.Hour})
	var aged []net.Conn
	for i := range 3 {
		c, s := d.enter(fmt.Sprintf("127.0.0.%d", i+2))
		aged = append(aged, c)
		s.listener.mu.Lock()
		s.since = s.since.Add(-time.Duration(60-i) * time.Minute)
		s.listener.mu.Unlock()
	}
	one, a := d.enter("127.0.0.9")
	two, b := d.enter("127.0.0.9")
	d.sweep(time.Now())
	open(t, one, a)
	open(t, two, b)
	require.Equal(t, 2, d.count(displaced), "three are left")
	d.mu.Lock()
	left := d.unproven
	d.mu.Unlock()
	require.Equal(t, 3, left)
	for _, c := range aged {
		_ = c.Close()
	}
}

// TestG8_ConnectionsOfASourceAndInAll are refused at the limit if no unproven connection can be closed.
func TestG8_ConnectionsOfASourceAndInAll(t *testing.T) {
	d := newDoor(t, Limits{Total: 3, PerSource: 2})
	var conns []*Conn
	for range 2 {
		_, c := d.enter("127.0.0.2")
		c.Prove()
		conns = append(conns, c)
	}
	closed(t, d.dial("127.0.0.2")) // the source's limit
	require.Equal(t, 1, d.count(full))
	waiting, _ := d.enter("127.0.0.3") // another source, at the limit of all
	_, last := d.enter("127.0.0.4")
	closed(t, waiting) // it made room
	last.Prove()
	closed(t, d.dial("127.0.0.5"))
	require.Equal(t, 2, d.count(full))
	require.NoError(t, conns[0].Close())
	require.NoError(t, last.Close())
	_, _ = d.enter("127.0.0.2")
	_, _ = d.enter("127.0.0.5")
}

// TestG8_IdleConnectionsWithoutACredential are closed, but not during a call.
func TestG8_IdleConnectionsWithoutACredential(t *testing.T) {
	d := newDoor(t, Limits{Idle: time.Millisecond})
	busy := d.dial("127.0.0.1")
	conn := <-d.accepted
	conn.Enter()
	silent, _ := d.enter("127.0.0.1")
	closed(t, silent)
	open(t, busy, conn)
	conn.Leave()
	closed(t, busy)
	require.Equal(t, 2, d.count(idle))
}

// TestG8_BytesBeforeACredential: Free bytes are read, then Rate per second; a credential ends that.
func TestG8_BytesBeforeACredential(t *testing.T) {
	d := newDoor(t, Limits{Free: 8 << 10, Rate: 1})
	client, server := d.enter("127.0.0.1")
	go func() { _, _ = client.Write(make([]byte, 64<<10)) }()
	must.Value(io.ReadFull(server, make([]byte, 8<<10)))(t)
	require.NoError(t, server.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	must.Refuse(server.Read(make([]byte, 1<<10)))(t, os.ErrDeadlineExceeded)
	require.NoError(t, server.SetDeadline(time.Time{}))

	got := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(server, make([]byte, 16<<10))
		got <- err
	}()
	server.Prove()
	require.NoError(t, <-got)
}

// TestG8_AGrantIsForOneBody: bytes of a body may be read in addition, of one body at a time.
func TestG8_AGrantIsForOneBody(t *testing.T) {
	d := newDoor(t, Limits{Free: 1, Rate: 1})
	client, server := d.enter("127.0.0.1")
	go func() { _, _ = client.Write(make([]byte, 64<<10)) }()
	release, ok := server.Grant(t.Context().Done(), 32<<10)
	require.True(t, ok)
	must.Value(io.ReadFull(server, make([]byte, 32<<10)))(t)
	left := make(chan struct{})
	close(left)
	_, ok = server.Grant(left, 1)
	require.False(t, ok)
	release()
	release, ok = server.Grant(t.Context().Done(), 1<<10)
	require.True(t, ok)
	must.Value(io.ReadFull(server, make([]byte, 1<<10)))(t)
	release()
}

// TestG8_CallsBeforeACredential: with Calls in progress nothing more is read.
func TestG8_CallsBeforeACredential(t *testing.T) {
	d := newDoor(t, Limits{Calls: 2})
	client, server := d.enter("127.0.0.1")
	must.Value(client.Write([]byte("ab")))(t)
	server.Enter()
	must.Value(io.ReadFull(server, make([]byte, 1)))(t)
	server.Enter()
	require.NoError(t, server.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	must.Refuse(server.Read(make([]byte, 1)))(t, os.ErrDeadlineExceeded)
	require.NoError(t, server.SetReadDeadline(time.Time{}))
	server.Leave()
	must.Value(io.ReadFull(server, make([]byte, 1)))(t)
}

// TestG8_Refusals: after so many refusals the connection is closed, unless one credential was valid.
func TestG8_Refusals(t *testing.T) {
	d := newDoor(t, Limits{Refusals: 2})
	guessing, a := d.enter("127.0.0.1")
	known, b := d.enter("127.0.0.1")
	below, c := d.enter("127.0.0.1")
	b.Prove()
	for range 2 {
		a.Refuse()
		b.Refuse()
	}
	c.Refuse()
	closed(t, guessing)
	open(t, known, b)
	open(t, below, c)
	require.Equal(t, 1, d.count(refused))
}

// TestG8_RefusalsEndReading: nothing is read after the last refusal, unless a credential that was read before is valid.
func TestG8_RefusalsEndReading(t *testing.T) {
	d := newDoor(t, Limits{Refusals: 3})
	client, server := d.enter("127.0.0.1")
	_, err := client.Write([]byte("abcd"))
	require.NoError(t, err)
	one := make([]byte, 1)
	for range 2 {
		server.Refuse()
		must.Value(server.Read(one))(t, "below the limit")
	}
	server.Refuse()
	require.NoError(t, server.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	must.Refuse(server.Read(one))(t, os.ErrDeadlineExceeded, "at the limit")
	require.NoError(t, server.SetReadDeadline(time.Time{}))
	server.Prove()
	server.Refuse() // above it
	must.Value(io.ReadFull(server, make([]byte, 2)))(t)
}

// TestG8_ADebtIsPaid: while the budget lasts, all of it may be read; once it was used up, nothing is until there are
// readMin bytes.
func TestG8_ADebtIsPaid(t *testing.T) {
	start := time.Now()
	c := &Conn{
		listener: &Listener{limits: Limits{Free: 8 << 10, Rate: 1 << 10}.complete()}, budget: 8 << 10, filled: start,
	}
	allowed := func(after time.Duration) int {
		n, pause := c.allowed(16<<10, start.Add(after))
		require.Equal(t, n == 0, pause > 0)
		return n
	}
	require.Equal(t, readMax, allowed(0))
	c.Charge(8<<10 - 1)
	require.Equal(t, 1, allowed(0), "below the limit")
	c.Charge(1)
	require.Zero(t, allowed(0), "at it")
	require.Zero(t, allowed(readMin/1024*time.Second-time.Second))
	require.Equal(t, readMax, allowed(readMin/1024*time.Second))
	c.Charge(readMin - 1)
	require.Equal(t, 1, allowed(readMin/1024*time.Second), "no longer in debt")
	c.Charge(2)
	require.Zero(t, allowed(readMin/1024*time.Second), "above it")
	c.Charge(-1 << 20)
	require.Equal(t, readMax, allowed(readMin/1024*time.Second+time.Second))
	require.EqualValues(t, 8<<10, c.budget, "no more than Free is saved")
	// A call that is expected to be small is not held back for as much.
	c.listener.limits.Free, c.budget = 100, 0
	require.Zero(t, allowed(readMin/1024*time.Second+time.Second))
	c.budget = 100
	require.Equal(t, 100, allowed(readMin/1024*time.Second+time.Second), "Free is less than readMin")
}

// TestG8_SourcesAreNetworks: one caller often has a /64 network of IPv6.
func TestG8_SourcesAreNetworks(t *testing.T) {
	of := func(s string) string {
		return sourceOf(net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(s), 1))).String()
	}
	require.Equal(t, "192.0.2.1", of("192.0.2.1"))
	require.Equal(t, "192.0.2.1", of("::ffff:192.0.2.1"))
	require.Equal(t, "2001:db8:0:1::", of("2001:db8:0:1:2:3:4:5"))
	require.Equal(t, "fe80::", of("fe80::1%eth0"))
	require.Equal(t, netip.Addr{}, sourceOf(&net.UnixAddr{}))
	require.Nil(t, Of(&net.TCPAddr{}))
}
