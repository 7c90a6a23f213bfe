package proctree

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func pids(entries []entry) (out []int) {
	for _, e := range entries {
		out = append(out, e.pid)
	}
	return out
}

// T6: without marks a tree is found by parents and process groups, in whatever order
// the table lists them.
func TestT6_ATreeByAncestry(t *testing.T) {
	a := newAncestry(entry{10, 1, 10, 100})
	require.Equal(t, []int{11, 12}, pids(a.observe([]entry{
		{12, 11, 12, 102}, // a grandchild that leads a group of its own, listed before its parent
		{11, 10, 10, 101},
		{10, 1, 10, 100},
		{20, 1, 20, 50}, // a stranger
	})))

	t.Run("a child whose parent has ended is found by its group", func(t *testing.T) {
		require.Equal(t, []int{13}, pids(a.observe([]entry{{10, 1, 10, 100}, {12, 1, 12, 102}, {13, 1, 12, 103}})))
		require.Equal(t, map[int]int64{10: 100, 12: 102, 13: 103}, a.members)
	})
	t.Run("a pid that was reused is no member, nor are its children", func(t *testing.T) {
		require.Empty(t, a.observe([]entry{{10, 1, 10, 100}, {12, 1, 30, 999}, {14, 12, 30, 1000}}))
		require.Equal(t, map[int]int64{10: 100}, a.members)
	})
	t.Run("a tree whose processes have all ended stays empty", func(t *testing.T) {
		require.Empty(t, a.observe([]entry{{20, 1, 20, 50}}))
		require.Empty(t, a.observe([]entry{{10, 1, 10, 500}}))
		require.Empty(t, a.members)
	})
}
