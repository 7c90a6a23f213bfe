package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection that a Listener accepted. The server must report the calls that arrive over
// it, with Enter and Leave, and whether their credentials are valid, with Prove and Refuse. It is safe for
// concurrent use.
type Conn struct {
	net.Conn
	listener *Listener
	from     netip.Addr
	since    time.Time // when it was accepted
	proven   atomic.Bool

	// Guarded by the listener's mu.
	place *list.Element // among the unproven connections of its source; nil: proven or gone
	gone  bool          // it was removed from the listener's table

	mu       sync.Mutex
	budget   int64     // bytes that may be read
	filled   time.Time // when Rate was last added to budget
	granted  int64     // bytes of a body that may be read in addition
	indebted bool      // the budget was used up, and has not grown to readMin again
	calls    int       // in progress
	refusals int
	quiet    time.Time // when the last call ended
	deadline time.Time // of reads
	closed   bool
	grants   chan struct{} // capacity 1: has a value while there is a grant
	wake     chan struct{} // gets a value when a waiting Read must check again
}

// Addr is the remote address of a Conn. A gRPC server shows its interceptors the address of a
// connection and not the connection.
type Addr struct {
	net.Addr
	conn *Conn
}

// Of returns the Conn whose remote address is addr; nil if addr is not an Addr.
func Of(addr net.Addr) *Conn {
	if a, ok := addr.(Addr); ok {
		return a.conn
	}
	return nil
}

// RemoteAddr implements net.Conn. The address is an Addr.
func (c *Conn) RemoteAddr() net.Addr { return Addr{c.Conn.RemoteAddr(), c} }

// Source returns the address that identifies the connection's source: for IPv6 that of a /64 network (see sourceOf).
func (c *Conn) Source() netip.Addr { return c.from }

// Proven reports whether Prove was called.
func (c *Conn) Proven() bool { return c.proven.Load() }

// Prove records that the caller has shown a valid credential. After it, the bytes and the calls of the
// connection are not bounded.
func (c *Conn) Prove() {
	if c.proven.Load() || c.proven.Swap(true) {
		return
	}
	l := c.listener
	l.mu.Lock()
	if c.place != nil {
		l.sources[c.from].unproven.Remove(c.place)
		c.place = nil
		l.unproven--
	}
	l.mu.Unlock()
	c.signal()
}

// Enter records that a call has begun. The caller must call Leave when the call has ended.
func (c *Conn) Enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.budget -= CallCost
}

// Leave records that a call has ended.
func (c *Conn) Leave() {
	c.mu.Lock()
	c.calls--
	c.quiet = time.Now()
	c.mu.Unlock()
	c.signal()
}

// Charge subtracts n bytes from the budget of an unproven connection, for input that costs the server more than its
// size. It does not block; later reads block until the budget suffices again.
func (c *Conn) Charge(n int64) {
	c.mu.Lock()
	c.budget -= n
	c.mu.Unlock()
}

// Refuse records that a call was refused because of its credential. After Limits.Refusals refusals, reads of
// an unproven connection block, and it is closed after partingTime.
func (c *Conn) Refuse() {
	if c.proven.Load() {
		return
	}
	c.mu.Lock()
	c.refusals++
	last := c.refusals == c.listener.limits.Refusals
	c.mu.Unlock()
	if last {
		time.AfterFunc(partingTime, func() {
			if c.proven.Load() {
				return
			}
			c.listener.end(refused, []*Conn{c})
		})
	}
}

// Grant allows n bytes to be read in addition to the budget of an unproven connection, for a body
// that is read before its sender is known. A connection has one grant at a time, so that the memory for its
// bodies is bounded: Grant blocks until the previous one is released. If done is closed first, ok is
// false and release nil; otherwise the caller must call release, which ends the grant.
func (c *Conn) Grant(done <-chan struct{}, n int64) (release func(), ok bool) {
	select {
	case c.grants <- struct{}{}:
	case <-done:
		return nil, false
	}
	c.setGrant(n)
	return func() {
		c.setGrant(0)
		<-c.grants
	}, true
}

func (c *Conn) setGrant(n int64) {
	c.mu.Lock()
	c.granted = n
	c.mu.Unlock()
	c.signal()
}

// Read implements net.Conn. On an unproven connection it waits while the budget is used up and nothing is granted,
// and while too many calls are in progress or were refused. It then reads no more than the grant or the budget allows.
func (c *Conn) Read(p []byte) (int, error) {
	if c.proven.Load() || len(p) == 0 {
		return c.Conn.Read(p)
	}
	n, err := c.await(len(p))
	if err != nil {
		return 0, err
	}
	got, err := c.Conn.Read(p[:n])
	c.mu.Lock()
	if fromGrant := min(int64(got), c.granted); fromGrant > 0 {
		c.granted -= fromGrant
		c.budget -= int64(got) - fromGrant
	} else {
		c.budget -= int64(got)
	}
	c.mu.Unlock()
	return got, err
}

// await waits until at least one byte may be read, and returns how many of want bytes may be. It returns
// net.ErrClosed if the connection is closed, and os.ErrDeadlineExceeded after the read deadline.
func (c *Conn) await(want int) (int, error) {
	for {
		c.mu.Lock()
		n, pause := c.allowed(want, time.Now())
		closed, deadline := c.closed, c.deadline
		c.mu.Unlock()
		switch {
		case closed:
			return 0, net.ErrClosed
		case n > 0:
			return n, nil
		}
		if !deadline.IsZero() {
			left := time.Until(deadline)
			if left <= 0 {
				return 0, os.ErrDeadlineExceeded
			}
			pause = min(pause, left)
		}
		timer := time.NewTimer(pause)
		select {
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// allowed returns how many of want bytes may be read at now. If none may, it returns the time after
// which to check again. The caller holds mu.
func (c *Conn) allowed(want int, now time.Time) (n int, pause time.Duration) {
	if c.proven.Load() {
		return want, 0
	}
	limits := &c.listener.limits
	if c.calls >= limits.Calls || c.refusals >= limits.Refusals {
		return 0, time.Minute // Leave, Prove and Close wake it
	}
	if c.granted > 0 {
		return int(min(int64(want), c.granted)), 0
	}
	if more := int64(now.Sub(c.filled).Seconds() * float64(limits.Rate)); more > 0 {
		c.budget, c.filled = min(c.budget+more, limits.Free), now
	}
	least := min(readMin, limits.Free)
	if c.budget >= least || c.budget > 0 && !c.indebted {
		c.indebted = false
		return int(min(int64(want), c.budget, readMax)), 0
	}
	c.indebted = true
	return 0, time.Duration(float64(least-c.budget)/float64(limits.Rate)*float64(time.Second)) + time.Millisecond
}

// idleFor returns for how long the connection has had no call.
func (c *Conn) idleFor(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.calls > 0:
		return 0
	case c.quiet.After(c.since):
		return now.Sub(c.quiet)
	}
	return now.Sub(c.since)
}

// SetReadDeadline implements net.Conn. The deadline also ends a Read that waits.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	c.signal()
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline implements net.Conn. Its deadline also ends a Read that waits.
func (c *Conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	c.signal()
	return c.Conn.SetDeadline(t)
}

// CloseWrite closes the writing side, if the connection can do that, as TCP can. net/http calls it
// before it closes a connection from which it has not read everything, because the caller would
// otherwise lose the response.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn. It removes the connection from the listener's table, and ends a Read that waits.
func (c *Conn) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.signal()
	return c.Conn.Close()
}

// signal makes a waiting Read check again whether it may read.
func (c *Conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
