package task

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Callers choose the names of pools, so that not all of them have series.
func TestPoolsAreBounded(t *testing.T) {
	p := pools{}
	for i := range maxPools {
		p.add(fmt.Sprint("pool", i), 1)
	}
	require.Len(t, p, maxPools)
	require.NotContains(t, p, otherPools)
	p.add("one-more", 2)
	p.add("another", 3)
	p.add("pool0", 1)
	require.Len(t, p, maxPools+1)
	require.Equal(t, 5, p[otherPools])
	require.Equal(t, 2, p["pool0"])
}
