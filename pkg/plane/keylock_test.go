package plane

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneAtATimeForEachName(t *testing.T) {
	var locks KeyLocks[string]
	counts := map[string]*int{"a": new(int), "b": new(int)}
	var all sync.WaitGroup
	for range 50 {
		for name, n := range counts {
			all.Go(func() {
				unlock := locks.Lock(name)
				defer unlock()
				*n++ // the race detector sees two at once
			})
		}
	}
	all.Wait()
	require.Equal(t, 50, *counts["a"])
	require.Equal(t, 50, *counts["b"])
	require.Empty(t, locks.locks, "a name that nobody holds takes no memory")

	unlock := locks.Lock("a")
	locks.Lock("b")() // another name does not wait
	unlock()
}
