package resident

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A key has one number, and a number one key; those that were given back are used again.
func TestNumbers(t *testing.T) {
	var n Numbers[string]
	for i, k := range []string{"a", "b", "c"} {
		require.EqualValues(t, i, n.Take(k))
		require.Equal(t, k, n.Key(uint32(i)))
	}
	require.Equal(t, 3, n.Len())
	n.Give(1)
	require.Equal(t, 2, n.Len())
	require.Empty(t, n.Key(1))
	require.EqualValues(t, 1, n.Take("d"))
	require.Equal(t, "d", n.Key(1))
	require.Equal(t, "a", n.Key(0))
	require.EqualValues(t, 3, n.Take("e"))
}
