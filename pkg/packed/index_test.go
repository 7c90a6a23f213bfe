package packed

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An index has all records of a group or none, and no two with one hash.
func TestIndex(t *testing.T) {
	x := Index[string]{}
	require.True(t, x.Add([]uint64{1, 2, 3}, "first"))
	require.False(t, x.Add([]uint64{4, 5, 2}, "second"))
	require.Equal(t, Index[string]{1: "first", 2: "first", 3: "first"}, x)
	require.False(t, x.Add([]uint64{7, 7}, "one hash twice"))
	require.Len(t, x, 3)
	x.Remove([]uint64{1, 2})
	require.True(t, x.Add([]uint64{2}, "third"))
	require.Equal(t, Index[string]{2: "third", 3: "first"}, x)
	require.NotEqual(t, Hash("a", "b"), Hash("", "ab"))
	require.EqualValues(t, 0x7171d0573be234a7, Hash("", "tsk_1"), "what pages have")
}
