package archive_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	journaltest.RunArchiveStore(t, func(*testing.T) archive.Store {
		return archive.NewDirectory(filepath.Join(dir, "archive"), "work", 3)
	})
	shared := sharedDir(t)
	journaltest.RunArchiveStore(t, func(*testing.T) archive.Store {
		return archive.NewSharedDirectory(shared, "work", 3)
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

// TestDirectory_Shared: two processes that hold a partition at the same time, because one does not know yet that it
// lost its lease, store segments and replace catalogs in one directory. No draft of one is removed by the other, and
// of those who replace the same catalog one succeeds.
func TestDirectory_Shared(t *testing.T) {
	dir := sharedDir(t)
	processes := []archive.Store{
		archive.NewSharedDirectory(dir, "work", 0), archive.NewSharedDirectory(dir, "work", 0),
	}
	const rounds = 50
	var all errgroup.Group
	added := make([]int, len(processes))
	for i, s := range processes {
		all.Go(func() error {
			for range rounds {
				d, err := s.Begin(t.Context(), 1)
				if err != nil {
					return err
				}
				_, err = d.Add(t.Context(), []byte("frames"))
				if err == nil {
					_, err = d.Commit(t.Context())
				}
				d.Close()
				if err != nil {
					return err
				}
				content, version, err := s.Catalog(t.Context())
				if err != nil {
					return err
				}
				count, _ := strconv.Atoi(string(content))
				err = s.ReplaceCatalog(t.Context(), version, []byte(strconv.Itoa(count+1)))
				if err == nil {
					added[i]++
				} else if !errors.Is(err, archive.ErrReplaced) {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	content, version, err := processes[0].Catalog(t.Context())
	require.NoError(t, err)
	require.Equal(t, strconv.FormatUint(version, 10), string(content), "each catalog was made of the one before it")
	require.GreaterOrEqual(t, int(version), added[0]+added[1])
	require.Len(t, must.Value(processes[0].Names(t.Context()))(t), 2*rounds)
	entries := must.Value(os.ReadDir(filepath.Join(dir, "work-0")))(t)
	require.LessOrEqual(t, len(entries), 2*rounds+3, "segments and the newest catalogs; nothing unfinished")
}

// TestDirectory_SharedUnfinished: what a killed process was writing is removed after a while.
func TestDirectory_SharedUnfinished(t *testing.T) {
	dir := sharedDir(t)
	s := archive.NewSharedDirectory(dir, "work", 0)
	first := must.Value(s.Begin(t.Context(), 1))(t)
	defer first.Close()
	unfinished := func() int {
		return len(must.Value(filepath.Glob(filepath.Join(dir, "work-0", "segment-*.tmp")))(t))
	}
	begin := func() { must.Value(s.Begin(t.Context(), 1))(t).Close() }
	begin()
	require.Equal(t, 1, unfinished(), "another process may be writing it")
	old := time.Now().Add(-time.Hour)
	for _, f := range must.Value(filepath.Glob(filepath.Join(dir, "work-0", "segment-*.tmp")))(t) {
		require.NoError(t, os.Chtimes(f, old, old))
	}
	begin()
	require.Zero(t, unfinished())
	_, err := first.Commit(t.Context())
	require.Error(t, err, "if it writes nevertheless, it begins again")
}

// TestDirectory_NotMounted: when the volume is gone, nothing is stored at its mount point.
func TestDirectory_NotMounted(t *testing.T) {
	dir := sharedDir(t)
	s := archive.NewSharedDirectory(dir, "work", 0)
	require.NoError(t, s.ReplaceCatalog(t.Context(), 0, []byte("c")))
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.Mkdir(dir, 0o700))
	must.Fail(s.Begin(t.Context(), 0))(t, "see whether the volume is mounted")
	require.ErrorContains(t, s.ReplaceCatalog(t.Context(), 0, []byte("c")), "see whether the volume is mounted")
	require.Empty(t, must.Value(os.ReadDir(dir))(t))
}

// sharedDir returns a directory that belongs to an installation.
func sharedDir(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, archive.MarkFile), []byte("a\n"), 0o600))
	return dir
}
