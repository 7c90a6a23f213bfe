// Package storagetest makes journals whose beginning is in an archive, for tests.
package storagetest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/services/storage/datadir"
)

// Plane is the plane of the journals, which have one partition, and Partition is the name of that.
const (
	Plane     = "test"
	Partition = "test/0"
)

// Journal is a journal in a data directory, with the embedded server that has it.
type Journal struct {
	DataDir   string
	URL       string // of the server
	Conn      *nats.Conn
	Log       *jetlog.Log
	Store     archive.Store
	End       framelog.End
	Ends      []framelog.End // behind each frame
	Witnesses *witness.Files

	stop   func()
	writer *framelog.Writer
}

// New returns an empty journal, whose archive is in its data directory unless store returns another one. It ends with
// the test.
func New(t *testing.T, store func(*nats.Conn) archive.Store) *Journal {
	t.Helper()
	j := &Journal{DataDir: t.TempDir()}
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: datadir.Store(j.DataDir)}))(t)
	j.URL = srv.URL()
	j.Conn = must.Value(srv.Connect("test"))(t)
	must.Value(jetlog.Ensure(t.Context(), j.Conn, Plane, 1, 1))(t)
	j.Log = must.Value(jetlog.New(j.Conn, Plane, 0))(t)
	j.Witnesses = must.Value(witness.Open(datadir.Witness(j.DataDir), zap.NewNop()))(t)
	j.stop = func() {
		require.NoError(t, j.Witnesses.Close())
		j.Conn.Close()
		srv.Stop()
		j.stop = func() {}
	}
	t.Cleanup(func() { j.stop() })
	if j.Store = archive.NewDirectory(datadir.Archive(j.DataDir), Plane, 0); store != nil {
		j.Store = store(j.Conn)
	}
	n := 0
	j.writer = &framelog.Writer{
		Log: j.Log, Partition: Partition, Timeout: 5 * time.Second, Logger: zap.NewNop(),
		NewID: func(string) string {
			n++
			return fmt.Sprintf("f%d", n)
		},
	}
	return j
}

// Archives returns the archives of the partitions of the data directory.
func (j *Journal) Archives() func(plane string, partition int) (archive.Store, error) {
	return func(plane string, partition int) (archive.Store, error) {
		return archive.NewDirectory(datadir.Archive(j.DataDir), plane, partition), nil
	}
}

// Stop stops the server.
func (j *Journal) Stop() { j.stop() }

// Write writes frames with one event of some bytes each.
func (j *Journal) Write(t *testing.T, frames, bytes int) {
	t.Helper()
	for range frames {
		f := framelog.Frame{
			ID: j.writer.NewID(""), Generation: 1,
			Body: fmt.Appendf(nil, "{\"wal_seq\":%d,\"event_type\":\"written\",\"payload\":\"%0*d\"}\n", j.End.WalSeq+1,
				bytes, 0),
		}
		c := framelog.NewContent(j.writer.Salt(f.ID))
		c.Add(f.Body)
		j.stored(t, j.writer.Write(t.Context(), j.End, f, c))
	}
}

// Roll closes the segment.
func (j *Journal) Roll(t *testing.T) {
	t.Helper()
	first := must.Value(j.Log.Prepare(t.Context(), j.End.Segment))(t)
	j.stored(t, j.writer.CloseSegment(t.Context(), j.End, 1, first))
}

func (j *Journal) stored(t *testing.T, v framelog.Result) {
	t.Helper()
	require.Equal(t, framelog.Stored, v.Outcome, v.Err)
	j.End = v.End
	j.Ends = append(j.Ends, v.End)
	j.Witnesses.Of(Plane, 0).Record(v.End)
}

// Segments writes closed segments with some frames each, the last of which is empty and closes it.
func (j *Journal) Segments(t *testing.T, n, frames, bytes int) {
	t.Helper()
	for range n {
		j.Write(t, frames, bytes)
		j.Roll(t)
	}
}

// Archive puts the next closed segment into the archive.
func (j *Journal) Archive(t *testing.T) {
	t.Helper()
	c := must.Value(archive.Read(t.Context(), j.Store, Partition))(t)
	all := must.Value(j.Log.Segments(t.Context()))(t)
	for _, s := range all {
		if s.Number == c.End().Segment {
			must.Value(c.Add(t.Context(), j.Store, j.Log, s, time.Unix(1, 0)))(t)
			return
		}
	}
	require.Fail(t, "there is no segment to archive")
}

// Drop removes the first segment of the log.
func (j *Journal) Drop(t *testing.T) {
	t.Helper()
	all := must.Value(j.Log.Segments(t.Context()))(t)
	require.NoError(t, j.Log.Drop(t.Context(), all[0].Number))
}

// Files returns the files of the archive of the partition whose names match a pattern, in their order.
func (j *Journal) Files(t *testing.T, pattern string) []string {
	t.Helper()
	all := must.Value(filepath.Glob(filepath.Join(datadir.Archive(j.DataDir), Plane+"-0", pattern)))(t)
	require.NotEmpty(t, all)
	return all
}

// Flip changes a bit of a file at an offset, from its end if that is negative. It returns what changes it back.
func Flip(t *testing.T, path string, at int) (back func()) {
	t.Helper()
	intact := must.Value(os.ReadFile(path))(t)
	changed := append([]byte(nil), intact...)
	if at < 0 {
		at += len(changed)
	}
	changed[at] ^= 4
	require.NoError(t, os.WriteFile(path, changed, 0o600))
	return func() { require.NoError(t, os.WriteFile(path, intact, 0o600)) }
}

// Remove removes a file. It returns what puts it back.
func Remove(t *testing.T, path string) (back func()) {
	t.Helper()
	intact := must.Value(os.ReadFile(path))(t)
	require.NoError(t, os.Remove(path))
	return func() { require.NoError(t, os.WriteFile(path, intact, 0o600)) }
}

// Damage is something that happens to an archive.
type Damage struct {
	Name string
	// Do does it, and returns what undoes it.
	Do func(t *testing.T) (undo func())
	// Named is the regular expression of what is said about it; empty: it is no damage.
	Named string
}

// Archived writes three segments of which all frames are archived, two of which the log does not have any more, and
// frames behind them. It returns what may happen to the archive once the log does not have the third either.
func (j *Journal) Archived(t *testing.T) []Damage {
	t.Helper()
	j.Segments(t, 3, 4, 200_000)
	j.Write(t, 3, 10)
	for range 3 {
		j.Archive(t)
	}
	j.Drop(t)
	j.Drop(t)
	c := must.Value(archive.Read(t.Context(), j.Store, Partition))(t)
	x := must.Value(c.Segments[1].Index(t.Context(), j.Store))(t)
	require.Greater(t, len(x.GetObjects()), 1)
	file := func(segment int) string { return j.Files(t, fmt.Sprintf("segment-%d-*", segment))[0] }
	flip := func(path string, at int) func(t *testing.T) func() {
		return func(t *testing.T) func() { return Flip(t, path, at) }
	}
	end := func(segment int) framelog.End { return c.Segments[segment].End }
	catalogs := j.Files(t, "catalog-*")
	slices.Sort(catalogs)
	newest := catalogs[len(catalogs)-1]
	return []Damage{
		{Name: "nothing", Do: func(*testing.T) func() { return func() {} }},
		{Name: "files that the catalog does not name", Do: func(t *testing.T) func() {
			for _, name := range []string{
				"segment-1-other.frames", "segment-9-other.frames",
				"segment-2-other.frames.tmp", "catalog-9-other.tmp", "notes",
			} {
				require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(newest), name), []byte("other"), 0o600))
			}
			return func() {}
		}},
		{
			Name: "a bit of the first object", Do: flip(file(1), 20),
			Named: fmt.Sprintf(
				`frames behind %d up to \d+ \(wal_seq %d to %d\) are not as they were archived, in segment 1, %s: `,
				end(0).Seq, end(0).WalSeq+1, end(0).WalSeq+2, regexp.QuoteMeta(file(1))),
		},
		{
			Name: "a bit of the last object", Do: flip(file(1), int(x.GetObjects()[len(x.GetObjects())-1].GetAt())),
			Named: fmt.Sprintf(
				`frames behind \d+ up to %d \(wal_seq \d+ to %d\) are not as they were archived, in segment 1, %s: `,
				end(1).Seq, end(1).WalSeq, regexp.QuoteMeta(file(1))),
		},
		{
			Name: "a bit of the index", Do: flip(file(1), int(c.Segments[1].GetIndex().GetAt())+3),
			Named: fmt.Sprintf(
				`frames behind %d up to %d \(wal_seq %d to %d\) are not as they were archived, in segment 1, %s: its index: `, end(0).Seq, end(1).Seq, end(0).WalSeq+1, end(1).WalSeq, regexp.QuoteMeta(file(1))),
		},
		{
			Name: "the file of a segment", Do: func(t *testing.T) func() { return Remove(t, file(0)) },
			Named: fmt.Sprintf(
				`frames behind 0 up to %d \(wal_seq 1 to %d\) are not as they were archived, in segment 0, %s: its index: archive: .*missing or changed`, end(0).Seq, end(0).WalSeq, regexp.QuoteMeta(file(0))),
		},
		{
			Name: "a bit of the catalog", Do: flip(newest, 50),
			Named: fmt.Sprintf("the catalog of its archive %s cannot be read: archive: the catalog is damaged: "+
				".*`quartet repair` makes it anew", regexp.QuoteMeta(filepath.Dir(newest))),
		},
		{
			Name: "the catalog is cut", Do: func(t *testing.T) func() {
				undo := Flip(t, newest, 0)
				require.NoError(t, os.Truncate(newest, 0))
				return undo
			},
			Named: "the catalog of its archive .* cannot be read: .* it has 0 bytes",
		},
		{
			Name: "the newest catalog", Do: func(t *testing.T) func() { return Remove(t, newest) },
			Named: fmt.Sprintf("segment 2 is neither in the log nor in the catalog of its archive, with wal_seq %d "+
				"to %d; `quartet repair`", end(1).WalSeq+1, end(2).WalSeq),
		},
		{
			Name: "all catalogs", Do: func(t *testing.T) func() {
				var undo []func()
				for _, path := range catalogs {
					undo = append(undo, Remove(t, path))
				}
				return func() {
					for _, f := range undo {
						f()
					}
				}
			},
			Named: fmt.Sprintf("segments 0 to 2 are neither in the log nor in the catalog of its archive, with "+
				"wal_seq 1 to %d; `quartet repair`", end(2).WalSeq),
		},
		{
			Name: "the archive", Do: func(t *testing.T) func() {
				dir := filepath.Dir(newest)
				require.NoError(t, os.Rename(dir, dir+".away"))
				return func() { require.NoError(t, os.Rename(dir+".away", dir)) }
			},
			Named: "segments 0 to 2 are neither in the log nor in the catalog",
		},
	}
}
