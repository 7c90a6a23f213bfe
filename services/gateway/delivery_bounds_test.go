package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

// TestG9_ATokenIsCheckedBeforeTheBody: what is refused is refused although its body never comes.
func TestG9_ATokenIsCheckedBeforeTheBody(t *testing.T) {
	r := newRig(t)
	for token, want := range map[string]string{"wrong": "404", "revoked": "403", "busy": "429"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.gateway.Addr())
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "POST %s%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\nx", triggerPath,
			token, maxDelivery)
		require.NoError(t, err)
		line := make([]byte, len("HTTP/1.1 404"))
		_, err = io.ReadFull(conn, line)
		require.NoError(t, err)
		require.Equal(t, "HTTP/1.1 "+want, string(line))
		require.NoError(t, conn.Close())
	}
	require.Empty(t, r.waiting.delivered)
	require.Equal(t, "3", r.do(http.MethodPost, triggerPath+"busy", "x").header.Get("Retry-After"))
	require.Equal(t, 200, r.do(http.MethodPost, triggerPath+goodToken, "four").status)
	require.Equal(t, []int64{4}, r.waiting.checked, "the plane knows the size before the body is read")
}

// TestG9_WrongTokensRefuseNobody: the answer to wrong tokens and signatures of an address changes when they
// are too many, and says when to come again; right ones of the same address are accepted meanwhile.
func TestG9_WrongTokensRefuseNobody(t *testing.T) {
	r := newRig(t)
	for i := range wrongBurst {
		if i%2 == 0 {
			require.Equal(t, 404, r.do(http.MethodPost, triggerPath+"guess"+strconv.Itoa(i), "").status)
		} else {
			require.Equal(t, 403, r.do(http.MethodPost, triggerPath+goodToken+"unsigned.trg_2", "").status)
		}
	}
	refused := 0
	for i := range wrongBurst {
		a := r.do(http.MethodPost, triggerPath+"guess"+strconv.Itoa(i), "")
		if a.status == 429 {
			refused++
			require.Equal(t, "RATE_LIMITED", a.fault.Reason)
			require.NotEmpty(t, a.header.Get("Retry-After"))
		}
		require.Equal(t, 200, r.do(http.MethodPost, triggerPath+goodToken, "x").status)
	}
	require.Positive(t, refused)
}

// TestG9_BytesInProgress: at the limit of a trigger, a namespace, an address and the process a delivery is
// accepted, above it refused until another one ends.
func TestG9_BytesInProgress(t *testing.T) {
	d := newDeliveryBounds(Config{}, prometheus.NewRegistry())
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	fill := func(what string, limit int, at func(i int) (netip.Addr, string, string)) {
		var ends []func()
		for i := range limit / maxDelivery {
			source, namespace, trigger := at(i)
			done, err := d.admit(source, namespace, trigger, maxDelivery)
			require.NoError(t, err, "%s %d", what, i)
			ends = append(ends, done)
		}
		source, namespace, trigger := at(len(ends))
		_, err := d.admit(source, namespace, trigger, 1)
		require.ErrorIs(t, err, fault.Overloaded, what)
		require.Equal(t, what, fault.From(err).Metadata()["bound"])
		require.Positive(t, fault.From(err).RetryAfter())
		if what != "process" {
			done, err := d.admit(address(200), "other", "other", maxDelivery)
			require.NoError(t, err, "others are not concerned")
			done()
		}
		ends[0]()
		done, err := d.admit(source, namespace, trigger, maxDelivery)
		require.NoError(t, err)
		done()
		for _, end := range ends {
			end()
		}
	}
	name := strconv.Itoa
	fill("trigger", deliveriesHeldBy, func(i int) (netip.Addr, string, string) {
		return address(i), "n" + name(i),
			"t"
	})
	fill("namespace", deliveriesHeldBy, func(i int) (netip.Addr, string, string) {
		return address(i), "n",
			"t" + name(i)
	})
	fill("source", deliveriesHeldBy, func(i int) (netip.Addr, string, string) {
		return address(0), "n" + name(i),
			"t" + name(i)
	})
	fill("process", deliveriesHeld, func(i int) (netip.Addr, string, string) {
		return address(i), "n" + name(i),
			"t" + name(i)
	})
	require.Zero(t, d.held.All())
}

// TestG9_DeliveriesInProgressOverHTTP: bodies that arrive slowly hold their share, and no more than that.
func TestG9_DeliveriesInProgressOverHTTP(t *testing.T) {
	r := newRig(t)
	var conns []net.Conn
	for i := range deliveriesHeldBy / maxDelivery {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.gateway.Addr())
		require.NoError(t, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "POST %s%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n", triggerPath,
			goodToken+"acme.trg_1", maxDelivery)
		require.NoError(t, err)
		conns = append(conns, conn)
		require.Eventually(t,
			func() bool { r.waiting.mu.Lock(); defer r.waiting.mu.Unlock(); return len(r.waiting.checked) > i },
			time.Minute, 5*time.Millisecond)
	}
	var a answer
	require.Eventually(t, func() bool { // the last one is counted a moment after it was checked
		a = r.do(http.MethodPost, triggerPath+goodToken+"acme.trg_1", "x")
		return a.status == 429
	}, time.Minute, 5*time.Millisecond)
	require.Equal(t, "OVERLOADED", a.fault.Reason)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.NoError(t, conns[0].Close())
	require.Eventually(t, func() bool {
		return r.do(http.MethodPost, triggerPath+goodToken+"acme.trg_1", "x").
			status == 200
	}, time.Minute, 5*time.Millisecond)
}

// TestG9_RatesOfASource: an address has its rate of deliveries and of bytes, others have theirs.
func TestG9_RatesOfASource(t *testing.T) {
	d := newDeliveryBounds(Config{SourceDeliveries: 1, SourceDeliveryKiB: 100}, prometheus.NewRegistry())
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	admit := func(from netip.Addr, size int64) error {
		done, err := d.admit(from, "n", "t", size)
		if err == nil {
			done()
		}
		return err
	}
	for range 4 {
		require.NoError(t, admit(one, 250<<10))
	}
	err := admit(one, 250<<10)
	require.ErrorIs(t, err, fault.RateLimited)
	require.Equal(t, "source_kib", fault.From(err).Metadata()["bound"])
	require.Positive(t, fault.From(err).RetryAfter())
	for range 6 {
		require.NoError(t, admit(one, 0), "what was refused has used nothing")
	}
	err = admit(one, 0)
	require.ErrorIs(t, err, fault.RateLimited)
	require.Equal(t, "source_rate", fault.From(err).Metadata()["bound"])
	require.NoError(t, admit(other, 250<<10))
	require.Zero(t, d.held.All())
}
