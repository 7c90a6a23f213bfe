package leasetable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/clock"
)

const term = 30 * time.Second

// harness is a table over a fake clock, with a journal whose stall the test sets.
type harness struct {
	*Table[string, string]
	clk     *clock.Fake
	expired chan string
	stall   time.Duration
	stalled bool
}

func newHarness(t *testing.T) *harness {
	h := &harness{clk: clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), expired: make(chan string, 100)}
	h.Table = New(Config[string, string]{
		Clock: h.clk, Term: term,
		Expired: func(leases []Lease[string, string]) {
			for _, l := range leases {
				h.expired <- l.Key
			}
		},
	})
	h.Start(func(string) (time.Duration, bool) { return h.stall, h.stalled })
	t.Cleanup(h.Stop)
	return h
}

func (h *harness) advance(d time.Duration) {
	h.clk.Advance(d)
	h.Settle()
}

func TestALeaseExpiresAfterItsTermAndNotBefore(t *testing.T) {
	h := newHarness(t)
	h.Arm("a", "value")
	h.advance(term - time.Millisecond)
	require.Empty(t, h.expired)
	require.False(t, h.AnyDue())
	h.advance(time.Millisecond)
	require.Equal(t, "a", <-h.expired)
	require.True(t, h.AnyDue())
	expired, limit := h.Expired("a")
	require.True(t, expired)
	require.False(t, limit)
	require.Len(t, h.ListExpired(func(v string) bool { return v == "value" }), 1)
	require.Empty(t, h.ListExpired(func(v string) bool { return v == "another" }))
}

func TestARenewalBeginsAFullTerm(t *testing.T) {
	h := newHarness(t)
	h.Arm("a", "")
	h.advance(term / 2)
	expires, ok := h.Renew("a")
	require.True(t, ok)
	require.Equal(t, h.clk.Now().Add(term), expires)
	h.advance(term - time.Millisecond)
	require.Empty(t, h.expired)
	h.advance(time.Millisecond)
	require.Equal(t, "a", <-h.expired)
	_, ok = h.Renew("unknown")
	require.False(t, ok)
}

func TestAnExpiredLeaseIsReportedAgainUntilItIsDropped(t *testing.T) {
	h := newHarness(t)
	h.Arm("a", "")
	h.advance(term)
	require.Equal(t, "a", <-h.expired)
	h.advance(time.Second)
	require.Equal(t, "a", <-h.expired)
	h.Drop("a")
	require.Empty(t, h.ListExpired(func(string) bool { return true }))
	require.False(t, h.AnyDue())
	h.advance(time.Hour)
	require.Empty(t, h.expired)
}

func TestALimitEndsALeaseThatIsRenewed(t *testing.T) {
	h := newHarness(t)
	end := h.clk.Now().Add(term + term/2)
	require.Equal(t, h.clk.Now().Add(term), h.ArmUntil("a", "", end))
	h.advance(term - time.Second)
	expires, ok := h.Renew("a")
	require.True(t, ok)
	require.Equal(t, end, expires)
	expires, ok = h.Expires("a")
	require.True(t, ok)
	require.Equal(t, end, expires)
	h.advance(term/2 + time.Second)
	require.Equal(t, "a", <-h.expired)
	_, limit := h.Expired("a")
	require.True(t, limit)
}

func TestNothingExpiresWhileTheJournalCannotBeWritten(t *testing.T) {
	h := newHarness(t)
	h.Arm("a", "")
	h.stalled = true
	h.advance(term + 5*time.Second)
	require.Empty(t, h.expired)
	h.stall, h.stalled = 10*time.Second, false
	h.advance(time.Second)
	require.Empty(t, h.expired, "the time of the stall is added to the term")
	h.advance(4 * time.Second)
	require.Equal(t, "a", <-h.expired)
}

func TestALeaseInUseDoesNotExpire(t *testing.T) {
	h := newHarness(t)
	h.Arm("a", "")
	release := h.Keep("a")
	h.advance(2 * term)
	require.Empty(t, h.expired)
	release()
	h.advance(term)
	require.Equal(t, "a", <-h.expired)
}

func TestEnsureKeepsTheValueOfTheSameLease(t *testing.T) {
	h := newHarness(t)
	same := func(want string) func(string) bool { return func(v string) bool { return v[0] == want[0] } }
	got, _ := h.Ensure("a", "1 first", same("1"))
	require.Equal(t, "1 first", got)
	h.advance(term / 2)
	got, expires := h.Ensure("a", "1 second", same("1"))
	require.Equal(t, "1 first", got)
	require.Equal(t, h.clk.Now().Add(term), expires)
	got, _ = h.Ensure("a", "2 third", same("2"))
	require.Equal(t, "2 third", got)
}

func TestADropThatDependsOnTheValue(t *testing.T) {
	h := newHarness(t)
	h.Arm("a", "keep")
	h.DropIf("a", func(v string) bool { return v == "drop" })
	_, ok := h.Get("a")
	require.True(t, ok)
	h.DropIf("a", func(v string) bool { return v == "keep" })
	_, ok = h.Get("a")
	require.False(t, ok)
	h.DropIf("a", func(string) bool { return true })
}

func TestReadingALease(t *testing.T) {
	h := newHarness(t)
	expires := h.Arm("a", "value")
	value, ok := h.Get("a")
	require.True(t, ok)
	require.Equal(t, "value", value)
	until, ok := h.Expires("a")
	require.True(t, ok)
	require.Equal(t, expires, until)
	n := 0
	h.Each(func(string, string) { n++ })
	require.Equal(t, 1, n)
	h.Drop("a")
	_, ok = h.Get("a")
	require.False(t, ok)
	_, ok = h.Expires("a")
	require.False(t, ok)
	h.Keep("a")()
}

func TestLeasesAreDroppedByTheirValues(t *testing.T) {
	h := newHarness(t)
	h.Arm("a", "one")
	h.Arm("b", "two")
	h.Arm("c", "one")
	require.ElementsMatch(t, []string{"a", "c"}, h.DropAll(func(v string) bool { return v == "one" }))
	require.Empty(t, h.DropAll(func(v string) bool { return v == "one" }))
	h.advance(term)
	require.Equal(t, "b", <-h.expired)
	require.Empty(t, h.expired)
}
