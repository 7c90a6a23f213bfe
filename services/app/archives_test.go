package app

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	segments "quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
	"quartet/services/backup"
	"quartet/services/storage/datadir"
	"quartet/services/storage/repair"
)

// archivedDir is a data directory whose journals of work have archived segments, a backup of it, and the frames that
// they have.
type archivedDir struct {
	cfg    Config
	backup string
	frames map[int][]segments.Frame // by partition
}

// open runs a server over a data directory.
func open(t *testing.T, dir string, fn func(nc *nats.Conn)) {
	t.Helper()
	srv := must.Value(natsd.Start(natsd.Config{StoreDir: datadir.Store(dir), Port: natsd.InProcess}))(t)
	defer srv.Stop()
	nc := must.Value(srv.Connect("test"))(t)
	defer nc.Close()
	fn(nc)
}

// logOf returns the log of a partition of work with its archive.
func logOf(t *testing.T, nc *nats.Conn, dir string, partition int) *segments.Log {
	t.Helper()
	live := must.Value(jetlog.New(nc, "work", partition))(t)
	return segments.NewLog(live, segments.NewDirectory(datadir.Archive(dir), "work", partition),
		framelog.PartitionName("work", partition))
}

// framesOf returns the frames of the partitions of work in a data directory.
func framesOf(t *testing.T, dir string) map[int][]segments.Frame {
	t.Helper()
	all := map[int][]segments.Frame{}
	open(t, dir, func(nc *nats.Conn) {
		for i := range 2 {
			all[i] = journaltest.ArchiveFrames(t, logOf(t, nc, dir, i), framelog.PartitionName("work", i))
		}
	})
	return all
}

// requireFrames requires that a journal begins with frames.
func requireFrames(t *testing.T, want, got []segments.Frame, more int) {
	t.Helper()
	require.Len(t, got, len(want)+more)
	for i := range want {
		require.True(t, reflect.DeepEqual(want[i], got[i]), "frame %d", want[i].Seq)
	}
}

// sent collects a backup in a file.
type sent struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // of one test
	f   *os.File
}

func (s sent) Context() context.Context { return s.ctx }

func (s sent) Send(r *backupv1.ExportBackupResponse) error { return must.Err(s.f.Write(r.GetChunk())) }

func newArchivedDir(t *testing.T) *archivedDir {
	t.Helper()
	d := &archivedDir{cfg: defaults(t), backup: filepath.Join(t.TempDir(), "backup")}
	require.NoError(t, d.cfg.Complete())
	ring := must.Value(keyfile.LoadOrCreate(d.cfg.KeyFile, time.Now()))(t)
	open(t, d.cfg.DataDir, func(nc *nats.Conn) {
		for _, plane := range planes {
			n := 1
			if plane == "work" {
				n = 2
			}
			must.Value(jetlog.Ensure(t.Context(), nc, plane, 1, n))(t)
		}
		for i := range 2 {
			live := must.Value(jetlog.New(nc, "work", i))(t)
			j := journaltest.NewArchivedJournal(live, segments.NewDirectory(datadir.Archive(d.cfg.DataDir), "work", i),
				framelog.PartitionName("work", i))
			for range 3 - 2*i {
				j.Write(t, 12, 120_000)
				j.Close(t)
			}
			j.Write(t, 5, 100)
			j.Archive(t)
		}
		f := must.Value(os.Create(d.backup))(t)
		defer f.Close()
		s, err := backup.New(backup.Config{Journals: journalStreams, Key: func() keyfile.Key { return ring.Active() }},
			backup.Deps{
				Conn: func() *nats.Conn { return nc }, Partitions: func() map[string]int {
					return map[string]int{"work": 2}
				}, Archive: d.cfg.places().Store,
			})
		require.NoError(t, err)
		require.NoError(t, s.ExportBackup(&backupv1.ExportBackupRequest{}, sent{ctx: t.Context(), f: f}))
	})
	d.frames = framesOf(t, d.cfg.DataDir)
	require.Len(t, d.frames[0], 3*13+5)
	require.Len(t, d.frames[1], 13+5)
	return d
}

// copy returns the settings of a copy of the data directory.
func (d *archivedDir) copy(t *testing.T) Config {
	t.Helper()
	cfg := defaults(t)
	require.NoError(t, os.CopyFS(cfg.DataDir, os.DirFS(d.cfg.DataDir)))
	require.NoError(t, cfg.Complete())
	return cfg
}

// files returns the files of the archive of work/0.
func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	all := must.Value(filepath.Glob(filepath.Join(datadir.Archive(dir), "work-0", pattern)))(t)
	require.NotEmpty(t, all)
	return all
}

// TestArchivedSegmentsAreRestored: a backup restores the frames that were archived, into streams.
func TestArchivedSegmentsAreRestored(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	d := newArchivedDir(t)
	cfg := defaults(t)
	require.NoError(t, cfg.Complete())
	require.NoError(t, os.WriteFile(cfg.KeyFile, must.Value(os.ReadFile(d.cfg.KeyFile))(t), 0o600))
	leftover := filepath.Join(datadir.Archive(cfg.DataDir), "work-0")
	require.NoError(t, os.MkdirAll(leftover, 0o700))
	_, err := Restore(t.Context(), cfg, Backup{File: d.backup})
	require.ErrorContains(t, err, "contains an installation already")
	require.ErrorContains(t, err, datadir.Archive(cfg.DataDir))
	require.NoError(t, os.Remove(leftover))
	must.Value(Restore(t.Context(), cfg, Backup{File: d.backup}))(t)
	require.NoDirExists(t, leftover)
	got := framesOf(t, cfg.DataDir)
	for i, want := range d.frames {
		requireFrames(t, want, got[i], 1) // the restore began an incarnation
	}
	open(t, cfg.DataDir, func(nc *nats.Conn) {
		require.Len(t, must.Value(logOf(t, nc, cfg.DataDir, 0).Segments(t.Context()))(t), 4)
		// What is archived again is the same.
		archivedAgain(t, logOf(t, nc, cfg.DataDir, 0), 3)
	})
	requireFrames(t, d.frames[0], framesOf(t, cfg.DataDir)[0], 1)
	require.NotEmpty(t, files(t, cfg.DataDir, "segment-2-*"))
}

// archivedAgain archives the segments of a log below one.
func archivedAgain(t *testing.T, l *segments.Log, below uint64) {
	t.Helper()
	a := segments.Start(l, time.Now, zap.NewNop(), nil)
	defer a.Stop()
	a.Below(framelog.End{Segment: below})
	require.NoError(t, a.Settle(t.Context()))
}

// TestR10_ArchivesAreRepaired damages an archive in all ways, and repairs it.
func TestR10_ArchivesAreRepaired(t *testing.T) {
	d := newArchivedDir(t)
	remove := func(pattern string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, f := range files(t, dir, pattern) {
				require.NoError(t, os.Remove(f))
			}
		}
	}
	flip := func(pattern string, at int) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, f := range files(t, dir, pattern) {
				b := must.Value(os.ReadFile(f))(t)
				b[(at+len(b))%len(b)] ^= 1
				require.NoError(t, os.WriteFile(f, b, 0o600))
			}
		}
	}
	both := func(all ...func(t *testing.T, dir string)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, f := range all {
				f(t, dir)
			}
		}
	}
	frames := d.frames[0]
	whole := repair.Range{First: frames[12].Seq + 1, Last: frames[25].Seq, FirstWalSeq: 13, LastWalSeq: 24}
	tried := 0
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		lost   *repair.Range // without another copy; nil: the archive itself has all
		copies int           // frames that come from elsewhere
	}{
		"the catalog":                {damage: flip("catalog-*", 40)},
		"the catalogs are gone":      {damage: remove("catalog-*")},
		"the newest catalog is gone": {damage: remove("catalog-3")},
		"an object": {flip("segment-1-*", 100), &repair.Range{
			First: frames[12].Seq + 1, Last: frames[16].Seq, FirstWalSeq: 13, LastWalSeq: 16,
		}, 4},
		"an index":                   {flip("segment-1-*", -20), &whole, 13},
		"a segment is gone":          {remove("segment-1-*"), &whole, 13},
		"a segment and the catalogs": {both(remove("segment-1-*"), remove("catalog-*")), &whole, 13},
		"an object and the catalogs": {
			both(flip("segment-1-*", 100), remove("catalog-*")),
			&repair.Range{First: frames[12].Seq + 1, Last: frames[16].Seq, FirstWalSeq: 13, LastWalSeq: 16}, 4,
		},
		"the last segment and the catalogs": {
			both(remove("segment-2-*"), remove("catalog-*")),
			&repair.Range{First: frames[25].Seq + 1, Last: frames[39].Seq - 1, FirstWalSeq: 25, LastWalSeq: 36}, 13,
		},
		"the first segment and the catalogs": {
			both(remove("segment-0-*"), flip("catalog-*", 3)),
			&repair.Range{First: 1, Last: frames[12].Seq, FirstWalSeq: 1, LastWalSeq: 12}, 13,
		},
	} {
		if tried++; testing.Short() && tried > 2 {
			break // go test -short tries any two; make test tries all
		}
		t.Run(name, func(t *testing.T) {
			cfg := d.copy(t)
			c.damage(t, cfg.DataDir)
			run := func(from Backup, stores []string, apply bool) *repair.Archive {
				t.Helper()
				r := must.Value(Repair(t.Context(), cfg, from, stores, nil, apply))(t)
				for _, j := range r.Journals {
					require.Equal(t, repair.Intact, j.Status, "%s: %v", j.Partition, j.Damage)
					if j.Partition != "work/0" {
						require.Nil(t, j.Archive)
					}
				}
				for _, j := range r.Journals {
					if j.Partition == "work/0" {
						return j.Archive
					}
				}
				return nil
			}
			for _, apply := range []bool{false, true, false} { // what is not repaired stays known
				a := run(Backup{}, nil, apply)
				if c.lost == nil {
					continue
				}
				require.NotNil(t, a)
				require.NotEmpty(t, a.Damage)
				require.Equal(t, repair.Lost, a.Status)
				require.Equal(t, []repair.Range{*c.lost}, a.Lost)
			}
			if c.lost == nil {
				require.Nil(t, run(Backup{}, nil, false), "it is repaired")
				requireFrames(t, d.frames[0], framesOf(t, cfg.DataDir)[0], 0)
				return
			}
			a := run(Backup{File: d.backup}, nil, false)
			require.Equal(t, repair.Repairable, a.Status)
			require.Equal(t, map[string]int{"the backup": c.copies}, a.Copies)
			require.NotNil(t, run(Backup{}, []string{d.cfg.DataDir}, false))
			a = run(Backup{}, []string{d.cfg.DataDir}, false)
			require.Equal(t, map[string]int{"another store": c.copies}, a.Copies)
			require.Equal(t, repair.Repairable, run(Backup{File: d.backup}, nil, true).Status)
			require.Nil(t, run(Backup{}, nil, false))
			got := framesOf(t, cfg.DataDir)
			requireFrames(t, d.frames[0], got[0], 0)
			requireFrames(t, d.frames[1], got[1], 0)
		})
	}
}

// TestR10_ALossBehindAnArchive: a journal whose newest frames are given up goes on behind what is archived, and is
// archived on.
func TestR10_ALossBehindAnArchive(t *testing.T) {
	d := newArchivedDir(t)
	damaged := func(t *testing.T) Config {
		cfg := d.copy(t)
		blocks := must.Value(filepath.Glob(
			filepath.Join(blockfile.Messages(datadir.Store(cfg.DataDir), account,
				jetlog.Place{Plane: "work", Segment: 3}.Stream()), "*.blk")))(t)
		require.Len(t, blocks, 1)
		b := must.Value(os.ReadFile(blocks[0]))(t)
		b[len(b)/2], b[len(b)/2+40] = b[len(b)/2]^7, b[len(b)/2+40]^7
		require.NoError(t, os.WriteFile(blocks[0], b, 0o600))
		return cfg
	}
	cfg := damaged(t)
	r := must.Value(Repair(t.Context(), cfg, Backup{File: d.backup}, nil, nil, true))(t)
	require.NotEmpty(t, r.Replaced)
	requireFrames(t, d.frames[0], framesOf(t, cfg.DataDir)[0], 0)

	cfg = damaged(t)
	r = must.Value(Repair(t.Context(), cfg, Backup{}, nil, []string{"work/0"}, true))(t)
	for _, j := range r.Journals {
		require.Nil(t, j.Archive)
		if j.Partition == "work/0" {
			require.Equal(t, repair.Accepted, j.Status, "%v %v", j.Damage, j.Copies)
		} else {
			require.Equal(t, repair.Intact, j.Status)
		}
	}
	got := framesOf(t, cfg.DataDir)
	require.Greater(t, len(got[0]), 40)
	kept := got[0][:len(got[0])-1]
	requireFrames(t, d.frames[0][:len(kept)], kept, 0)
	requireFrames(t, d.frames[1], got[1], 0)
	open(t, cfg.DataDir, func(nc *nats.Conn) {
		l := logOf(t, nc, cfg.DataDir, 0)
		archivedAgain(t, l, 4)
		require.Len(t, must.Value(l.Catalog(t.Context()))(t).Segments, 4, "the segment that was cut, too")
	})
	requireFrames(t, got[0], framesOf(t, cfg.DataDir)[0], 0)
}
