package archive_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	journaltest.RunArchiveStore(t, func(*testing.T) archive.Store {
		return archive.NewDirectory(filepath.Join(dir, "archive"), "work", 3)
	})
	left := filepath.Join(dir, "archive", "work-3", "segment-9-0.frames.tmp")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	d := must.Value(archive.NewDirectory(filepath.Join(dir, "archive"), "work", 3).Begin(t.Context(), 9))(t)
	d.Close()
	require.NoFileExists(t, left)
	entries := must.Value(os.ReadDir(filepath.Join(dir, "archive", "work-3")))(t)
	require.Len(t, entries, 1+2, "one segment and two catalogs; no file of a writer that gave up; %v", entries)
}

// TestDirectory_Paths tests that a name does not lead out of the directory.
func TestDirectory_Paths(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600))
	s := archive.NewDirectory(dir, "work", 0)
	require.NoError(t, s.ReplaceCatalog(t.Context(), 0, nil))
	require.Error(t, must.Err(s.Get(t.Context(), "../secret", 0, 6)))
	require.Error(t, s.Remove(t.Context(), "../secret"))
	require.FileExists(t, filepath.Join(dir, "secret"))
}
