package datadir_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
	"quartet/services/storage/datadir"
	"quartet/services/storage/storagetest"
	"quartet/services/storage/verify"
)

// archived is a data directory whose server is stopped, with three segments that are archived and two behind them.
type archived struct{ *storagetest.Journal }

func newArchived(t *testing.T) archived {
	j := archived{storagetest.New(t, nil)}
	j.Archived(t)
	j.Drop(t)
	j.Roll(t)
	j.Write(t, 3, 10)
	j.Stop()
	return j
}

// stream returns the name of the stream of a segment.
func stream(segment uint64) string {
	return jetlog.Place{Plane: storagetest.Plane, Segment: segment}.Stream()
}

// block returns the block of a segment, and its content.
func (j archived) block(t *testing.T, segment uint64) (string, []byte) {
	t.Helper()
	files := must.Value(blockfile.Files(blockfile.Messages(datadir.Store(j.DataDir), "$G", stream(segment))))(t)
	require.Len(t, files, 1)
	return files[0].Path, must.Value(os.ReadFile(files[0].Path))(t)
}

func (j archived) check(t *testing.T) {
	t.Helper()
	require.NoError(t, datadir.CheckBlocks(j.DataDir, "$G", []string{storagetest.Plane}, j.Archives(), zap.NewNop()))
}

// copied returns how many blocks of a segment were copied aside.
func (j archived) copied(t *testing.T, segment uint64) int {
	t.Helper()
	return len(must.Value(salvage.Copies(datadir.Salvage(j.DataDir), stream(segment)))(t))
}

// damage returns what verify finds.
func (j archived) damage(t *testing.T) []error {
	t.Helper()
	all := must.Value(verify.Run(t.Context(), verify.Config{
		DataDir: j.DataDir, WitnessDir: datadir.Witness(j.DataDir), Planes: []string{storagetest.Plane},
		Lock: datadir.Lock,
	}))(t)
	require.Len(t, all.Journals, 1)
	return all.Journals[0].Damage
}

// TestCheckBlocks_Archived checks a journal whose log begins behind its archive: one in order is not touched, and what
// is lost of the log is noticed.
func TestCheckBlocks_Archived(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	t.Run("intact", func(t *testing.T) {
		j := newArchived(t)
		_, closed := j.block(t, 3)
		_, last := j.block(t, 4)
		j.check(t)
		_, now := j.block(t, 3)
		require.Equal(t, closed, now)
		_, now = j.block(t, 4)
		require.Equal(t, last, now)
		require.NoDirExists(t, datadir.Salvage(j.DataDir))
		require.Empty(t, j.damage(t))
	})
	t.Run("a closed segment is cut", func(t *testing.T) {
		j := newArchived(t)
		path, b := j.block(t, 3)
		require.NoError(t, os.Truncate(path, int64(len(b)-20)))
		j.check(t)
		require.Equal(t, 1, j.copied(t, 3))
		require.NotEmpty(t, j.damage(t))
	})
	t.Run("the end is cut", func(t *testing.T) {
		j := newArchived(t)
		path, b := j.block(t, 4)
		require.NoError(t, os.Truncate(path, int64(len(b)/2)))
		j.check(t)
		require.Equal(t, 1, j.copied(t, 4))
		damage := j.damage(t)
		require.Len(t, damage, 1)
		require.ErrorContains(t, damage[0], "missing between frames")
	})
	t.Run("a closed segment is gone", func(t *testing.T) {
		j := newArchived(t)
		require.NoError(t, os.RemoveAll(blockfile.Stream(datadir.Store(j.DataDir), "$G", stream(3))))
		j.check(t)
		damage := j.damage(t)
		require.Len(t, damage, 1)
		require.ErrorContains(t, damage[0], "segment 3 is neither in the log nor in the catalog of its archive")
	})
	t.Run("the last segment is gone", func(t *testing.T) {
		j := newArchived(t)
		require.NoError(t, os.RemoveAll(blockfile.Stream(datadir.Store(j.DataDir), "$G", stream(4))))
		j.check(t)
		damage := j.damage(t)
		require.Len(t, damage, 1)
		require.ErrorContains(t, damage[0], "missing between frames")
	})
}

// TestCheckBlocks_RemovalInterrupted leaves the streams of segments as a server does that is killed while it removes
// them.
func TestCheckBlocks_RemovalInterrupted(t *testing.T) {
	j := archived{storagetest.New(t, nil)}
	j.Archived(t)
	j.Stop()
	for segment, left := range map[uint64]bool{2: false, 3: true} { // 2 is archived
		dir := blockfile.Stream(datadir.Store(j.DataDir), "$G", stream(segment))
		require.NoError(t, os.Rename(filepath.Join(dir, "meta.inf"), filepath.Join(dir, "meta.away")))
		j.check(t)
		_, err := os.Stat(dir)
		require.Equal(t, left, err == nil, segment)
		if left {
			require.NoError(t, os.Rename(filepath.Join(dir, "meta.away"), filepath.Join(dir, "meta.inf")))
		}
	}
	require.Empty(t, j.damage(t))
}
