package verify_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/services/storage/storagetest"
	"quartet/services/storage/verify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run verifies the journal in a data directory.
func run(t *testing.T, dir string) verify.Journal {
	t.Helper()
	all := must.Value(verify.Run(t.Context(), verify.Config{
		DataDir: dir, WitnessDir: datadir.Witness(dir), Planes: []string{storagetest.Plane}, Lock: datadir.Lock,
	}))(t)
	require.Len(t, all.Journals, 1)
	return all.Journals[0]
}

// blocks returns the blocks of a segment.
func blocks(t *testing.T, dir string, segment uint64) []string {
	t.Helper()
	files := must.Value(blockfile.Files(blockfile.Messages(datadir.Store(dir), "$G", jetlog.Place{
		Plane:   storagetest.Plane,
		Segment: segment,
	}.Stream())))(t)
	var all []string
	for _, f := range files {
		all = append(all, f.Path)
	}
	return all
}

// TestACopyThatWasLeftIsRemoved has the copy of a run that was killed in the data directory.
func TestACopyThatWasLeftIsRemoved(t *testing.T) {
	j := storagetest.New(t, nil)
	j.Stop()
	left := filepath.Join(j.DataDir, ".verify-123", "jetstream")
	require.NoError(t, os.MkdirAll(left, 0o700))
	require.Empty(t, run(t, j.DataDir).Damage)
	require.NoDirExists(t, filepath.Dir(left))
}

// TestVerifyCountsErasedEvents erases a line of an archived segment: nothing is damaged by that.
func TestVerifyCountsErasedEvents(t *testing.T) {
	j := storagetest.New(t, nil)
	j.Archived(t)
	j.Stop()
	require.Zero(t, run(t, j.DataDir).Erased)
	c := must.Value(archive.Read(t.Context(), j.Store, storagetest.Partition))(t)
	_, erased, err := c.Erase(t.Context(), j.Store, 0,
		archive.Erasing{Line: func(line []byte) bool { return bytes.HasPrefix(line, []byte(`{"wal_seq":2,`)) }})
	require.NoError(t, err)
	require.EqualValues(t, 1, erased)
	v := run(t, j.DataDir)
	require.Empty(t, v.Damage)
	require.Equal(t, j.End, v.End)
	require.Equal(t, j.End.WalSeq, v.Events)
	require.EqualValues(t, 1, v.Erased)
}

// TestR10_VerifyReadsTheArchive damages the archive of a journal in each way.
func TestR10_VerifyReadsTheArchive(t *testing.T) {
	j := storagetest.New(t, nil)
	damages := j.Archived(t)
	j.Stop()
	intact := func(t *testing.T) {
		t.Helper()
		v := run(t, j.DataDir)
		require.Empty(t, v.Damage)
		require.Equal(t, j.End, v.End)
		require.EqualValues(t, len(j.Ends), v.Frames)
		require.Equal(t, j.End.WalSeq, v.Events)
		require.Equal(t, 3, v.Segments)
		require.EqualValues(t, len(j.Ends)-3, v.ArchivedFrames)
	}
	intact(t)

	// What is archived and still in the log only waits to be removed.
	left := blocks(t, j.DataDir, 2)
	require.Len(t, left, 1)
	storagetest.Flip(t, left[0], 400_000)
	intact(t)
	require.NoError(t, os.RemoveAll(filepath.Dir(filepath.Dir(left[0]))))
	for _, d := range damages {
		t.Run(d.Name, func(t *testing.T) {
			undo := d.Do(t)
			v := run(t, j.DataDir)
			undo()
			if d.Named == "" {
				require.Empty(t, v.Damage)
				return
			}
			require.Len(t, v.Damage, 1)
			require.Regexp(t, "^the journal of test/0 is damaged: "+d.Named, v.Damage[0].Error())
			require.Equal(t, j.End, v.End, "it goes on behind the damage")
		})
	}
	intact(t)
}

// TestR10_VerifyMissesWhatIsBehindTheArchive removes what is behind the archive, also with its witness.
func TestR10_VerifyMissesWhatIsBehindTheArchive(t *testing.T) {
	j := storagetest.New(t, nil)
	j.Archived(t)
	j.Stop()
	live := blocks(t, j.DataDir, 3)
	require.Len(t, live, 1)
	back := storagetest.Flip(t, live[0], -20)
	v := run(t, j.DataDir)
	require.NotEmpty(t, v.Damage)
	require.ErrorContains(t, v.Damage[len(v.Damage)-1], "missing between frames")
	back()
	require.NoError(t, os.RemoveAll(filepath.Join(datadir.Store(j.DataDir), "jetstream")))
	const gone = "the journal of test/0 is damaged: its log has nothing behind its archive, which ends at frame"
	v = run(t, j.DataDir)
	require.Len(t, v.Damage, 2)
	require.ErrorContains(t, v.Damage[0], gone)
	require.NoError(t, os.RemoveAll(datadir.Witness(j.DataDir)))
	v = run(t, j.DataDir)
	require.Len(t, v.Damage, 1)
	require.ErrorContains(t, v.Damage[0], gone)
	require.ErrorContains(t, v.Damage[0], "segment 3 is gone")
}

// TestR10_VerifyWithADamagedCatalog has a catalog that cannot be read, and a log from its beginning.
func TestR10_VerifyWithADamagedCatalog(t *testing.T) {
	j := storagetest.New(t, nil)
	j.Segments(t, 1, 3, 10)
	j.Write(t, 2, 10)
	j.Archive(t)
	j.Stop()
	back := storagetest.Flip(t, j.Files(t, "catalog-*")[0], -1)
	v := run(t, j.DataDir)
	require.Len(t, v.Damage, 1)
	require.ErrorContains(t, v.Damage[0], "the catalog of its archive")
	require.EqualValues(t, len(j.Ends), v.Frames)
	back()
	require.Empty(t, run(t, j.DataDir).Damage)
}

// TestR10_VerifyReadsTheArchiveOfServers verifies a journal and its archive on a server that runs.
func TestR10_VerifyReadsTheArchiveOfServers(t *testing.T) {
	j := storagetest.New(t, nil)
	j.Segments(t, 3, 3, 200_000)
	j.Write(t, 2, 10)
	for range 2 {
		j.Archive(t)
		j.Drop(t)
	}
	run := func() verify.Journal {
		all := must.Value(verify.Run(t.Context(), verify.Config{
			DataDir: t.TempDir(), WitnessDir: datadir.Witness(j.DataDir), Planes: []string{storagetest.Plane},
			Remote: &natsd.Remote{URL: j.URL}, Archives: archives.Place{Dir: datadir.Archive(j.DataDir), Remote: true},
		}))(t)
		require.Len(t, all.Journals, 1)
		return all.Journals[0]
	}
	v := run()
	require.Empty(t, v.Damage)
	require.Equal(t, j.End, v.End)
	require.EqualValues(t, len(j.Ends), v.Frames)
	require.Equal(t, 2, v.Segments)

	c := must.Value(archive.Read(t.Context(), j.Store, storagetest.Partition))(t)
	require.NoError(t, os.Remove(j.Files(t, c.Segments[1].GetName())[0]))
	v = run()
	require.Len(t, v.Damage, 1)
	require.ErrorContains(t, v.Damage[0], "are not as they were archived, in segment 1, "+
		filepath.Join(datadir.Archive(j.DataDir), "test-0", c.Segments[1].GetName())+": its index")
	require.Equal(t, j.End, v.End)
	for _, file := range j.Files(t, "catalog-*") {
		require.NoError(t, os.Remove(file))
	}
	v = run()
	require.Len(t, v.Damage, 1)
	require.ErrorContains(t, v.Damage[0], "segments 0 to 1 are neither in the log nor in the catalog of its archive")
	require.NotContains(t, v.Damage[0].Error(), "quartet repair", "it does not mend journals of servers")
}

// TestR10_VerifyWhileSegmentsAreArchived verifies a journal while its segments are archived.
func TestR10_VerifyWhileSegmentsAreArchived(t *testing.T) {
	j := storagetest.New(t, nil)
	const segments = 8
	j.Segments(t, segments, 20, 10)
	j.Write(t, 20, 10)
	cfg := verify.Config{
		DataDir: t.TempDir(), WitnessDir: datadir.Witness(j.DataDir),
		Planes: []string{storagetest.Plane}, Remote: &natsd.Remote{URL: j.URL},
		Archives: archives.Place{Dir: datadir.Archive(j.DataDir), Remote: true},
	}
	type found struct {
		verify.Result
		err error
	}
	for range segments / 2 {
		done := make(chan found, 1)
		go func() {
			all, err := verify.Run(t.Context(), cfg)
			done <- found{all, err}
		}()
		for range 2 {
			j.Archive(t)
			j.Drop(t)
		}
		v := <-done
		require.NoError(t, v.err)
		require.Len(t, v.Journals, 1)
		require.Empty(t, v.Journals[0].Damage)
		require.Equal(t, j.End, v.Journals[0].End)
		require.EqualValues(t, len(j.Ends), v.Journals[0].Frames)
	}
}
