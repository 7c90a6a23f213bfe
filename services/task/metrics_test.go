package task

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Callers choose the names of pools, so that not all of them have series. Those that have one
// do not depend on the order in which they were counted.
func TestPoolsAreBounded(t *testing.T) {
	p := pools{}
	for i := range maxPools {
		p.add(fmt.Sprintf("pool%02d", i), 1)
	}
	require.Equal(t, p, p.bounded())
	p.add("z", 2)
	p.add("x", 3)
	p.add("pool00", 1)
	b := p.bounded()
	require.Len(t, b, maxPools+1)
	require.Equal(t, 5, b[otherPools])
	require.Equal(t, 2, b["pool00"])
	require.Equal(t, 1, b["pool31"])
	p.add("a", 4)
	b = p.bounded()
	require.Equal(t, 4, b["a"])
	require.NotContains(t, b, "pool31")
	require.Equal(t, 6, b[otherPools])
}
