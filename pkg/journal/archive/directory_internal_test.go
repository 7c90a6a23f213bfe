package archive

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

// TestDirectory_ReplacedMeanwhile: a writer that was delayed after it found its catalog to be the newest does not
// replace newer ones, although the one with the next version was removed by then.
func TestDirectory_ReplacedMeanwhile(t *testing.T) {
	s := NewDirectory(t.TempDir(), "work", 0)
	for version := range uint64(4) {
		require.NoError(t, s.ReplaceCatalog(t.Context(), version, []byte{byte(version + 1)}))
	}
	root := must.Value(s.open())(t)
	defer root.Close()
	require.ErrorIs(t, s.create(root, 2, []byte("late")), ErrReplaced)
	require.ErrorIs(t, s.create(root, 4, []byte("late")), ErrReplaced)
	content, version, err := s.Catalog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, version)
	require.Equal(t, []byte{4}, content)
	require.Len(t, must.Value(os.ReadDir(s.Dir()))(t), keptCatalogs, "nothing is left of what was late")
}
