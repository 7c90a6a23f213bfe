package admission

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// TestG9_RatesAtBelowAndAbove: a key has its burst and then its rate; what is refused says when to come
// again, and comes again then. Another key has all of its own.
func TestG9_RatesAtBelowAndAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRates[string](10, 100)
		require.Zero(t, r.Take("a", 99))
		require.Zero(t, r.Wait("a", 1))
		require.Zero(t, r.Take("a", 1)) // at the limit
		wait := r.Take("a", 5)
		require.Equal(t, 500*time.Millisecond, wait)
		require.Equal(t, wait, r.Wait("a", 5), "what is refused uses nothing")
		require.Zero(t, r.Take("b", 100))
		<-time.After(wait)
		require.Zero(t, r.Take("a", 5))
		<-time.After(time.Minute)
		require.Zero(t, r.Take("a", 1000), "more than the burst counts as the burst")
		require.Positive(t, r.Take("a", 1))
	})
	var none *Rates[string]
	require.Zero(t, none.Take("a", 1<<30))
	require.Zero(t, none.Wait("a", 1<<30))
}

// TestG9_RatesRememberAFewKeys: the memory of a Rates is bounded; a key that is remembered keeps its limit.
func TestG9_RatesRememberAFewKeys(t *testing.T) {
	r := NewRates[string](1e-3, 2)
	require.Zero(t, r.Take("old", 1))
	for i := range 2 * maxKeys {
		r.Take(strconv.Itoa(i), 2)
	}
	require.LessOrEqual(t, len(r.keys), maxKeys+1)
	require.Zero(t, r.Take("old", 1))
	require.Positive(t, r.Take("new", 1), "those beyond share one limit")
}

// TestG9_HeldAtBelowAndAbove: neither one nor all together hold more than their limits.
func TestG9_HeldAtBelowAndAbove(t *testing.T) {
	h := NewHeld(10)
	namespace := func(name string) Use { return Use{"namespace", name, 6} }
	src := Use{"source", "1", 8}
	first, _, ok := h.Take(5, namespace("a"), src)
	require.True(t, ok)
	second, _, ok := h.Take(1, namespace("a"), src) // at the limit
	require.True(t, ok)
	_, above, ok := h.Take(1, namespace("a"), src)
	require.False(t, ok)
	require.Equal(t, namespace("a"), *above)
	_, above, ok = h.Take(3, namespace("b"), src)
	require.False(t, ok)
	require.Equal(t, src, *above)
	third, _, ok := h.Take(4, namespace("b"))
	require.True(t, ok)
	_, above, ok = h.Take(1, namespace("c"))
	require.False(t, ok)
	require.Nil(t, above, "all together")
	first()
	first() // once is enough
	require.EqualValues(t, 5, h.All())
	second()
	third()
	require.Zero(t, h.All())
	require.Empty(t, h.keys)
}

// TestG9_WaitingForWhatIsHeld: a waiter continues when there is room, or returns when its context ends.
func TestG9_WaitingForWhatIsHeld(t *testing.T) {
	h := NewHeld(2)
	one := must.Value(h.Wait(t.Context(), 1))(t)
	two := must.Value(h.Wait(t.Context(), 1))(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	must.Refuse(h.Wait(ended, 1))(t, context.Canceled)
	got := make(chan func(), 8)
	for range 8 {
		go func() {
			release, err := h.Wait(t.Context(), 1)
			if err == nil {
				release()
			}
			got <- release
		}()
	}
	one()
	for range 8 {
		require.NotNil(t, <-got)
	}
	two()
	require.Zero(t, h.All())
}
