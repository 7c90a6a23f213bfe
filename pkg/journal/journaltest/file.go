package journaltest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/snapshot"
	"quartet/pkg/resident"
)

// NewFile returns a file for what a state evicts. It is closed when the test ends, if it is not by then.
func NewFile(t testing.TB) *resident.File {
	t.Helper()
	f, err := resident.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// EvictAll evicts all owners of a state that can be evicted.
func EvictAll(t require.TestingT, s snapshot.Resident) {
	_, more, err := s.Evict(math.MaxInt, false)
	require.NoError(t, err)
	require.False(t, more)
}

// EncodedPages returns all pages of a state.
func EncodedPages(t require.TestingT, s snapshot.State) map[snapshot.Owner][]byte {
	all := map[snapshot.Owner][]byte{}
	s.AllOwners(func(o snapshot.Owner) {
		b, err := snapshot.EncodePage(s.Page(o))
		require.NoError(t, err)
		all[o] = b
	})
	return all
}
