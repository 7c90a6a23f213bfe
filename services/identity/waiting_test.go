package identity

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestI12_GuessesOfKeysWaitBySource: a source that guesses keys leaves others their places in the queue
// for the journal, in which a key that was created a moment ago waits.
func TestI12_GuessesOfKeysWaitBySource(t *testing.T) {
	k := NewKeys(KeysConfig{})
	guesser, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for range catchUpShare {
		require.True(t, k.enqueue(guesser))
	}
	require.False(t, k.enqueue(guesser))
	require.True(t, k.enqueue(other))
	k.dequeue(guesser)
	require.True(t, k.enqueue(guesser))
	for range catchUpShare {
		k.dequeue(guesser)
	}
	k.dequeue(other)
	require.Empty(t, k.waiting)
	require.Zero(t, k.waiters)
}
