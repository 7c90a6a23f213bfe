package gateway

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestG10_HeldAtBelowAndAbove: streams of a namespace hold so many bytes at a time, and those of another one as many.
func TestG10_HeldAtBelowAndAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pendingBytes
		s, closed := p.Open("a")
		again, closedAgain := p.Open("a")
		require.Same(t, s, again)
		first, ok := s.Try(t.Context(), nil, maxPending-1)
		require.True(t, ok)
		second, ok := s.Try(t.Context(), nil, 1) // at the limit
		require.True(t, ok)
		_, ok = s.Try(t.Context(), nil, 1)
		require.False(t, ok)
		other, closedOther := p.Open("b")
		defer closedOther()
		ctx, cancel := context.WithCancel(t.Context())
		_, ok = other.Try(ctx, nil, 10*maxPending)
		require.True(t, ok, "more than the limit counts as the limit")
		cancel()
		synctest.Wait()
		_, ok = other.Try(t.Context(), nil, maxPending)
		require.True(t, ok, "what ends gives back")
		first()
		first() // once is enough
		second()
		_, ok = s.Try(t.Context(), nil, maxPending)
		require.True(t, ok)
		closed()
		closedAgain()
		require.Len(t, p.of, 1)
	})
}
