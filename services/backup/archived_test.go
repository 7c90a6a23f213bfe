package backup

import (
	"bytes"
	"context"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/archive"
	segments "quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
)

// archiving is a journal that is backed up, and archived meanwhile.
type archiving struct {
	*journaltest.ArchivedJournal
	nc       *nats.Conn
	dir      string
	listed   func(n int) // is called when the streams were listed for the nth time
	received func()      // is called at the first chunk of the backup
}

func newArchiving(t *testing.T) *archiving {
	a := &archiving{nc: natsdtest.Connect(t), dir: t.TempDir()}
	must.Value(jetlog.Ensure(t.Context(), a.nc, "work", 1, 1))(t)
	live := must.Value(jetlog.New(a.nc, "work", 0))(t)
	a.ArchivedJournal = journaltest.NewArchivedJournal(live, segments.NewDirectory(a.dir, "work", 0), "work/0")
	return a
}

// export makes a backup and returns the frames in it.
func (a *archiving) export(t *testing.T) (all []segments.Frame, failure error) {
	t.Helper()
	listed := 0
	s := must.Value(New(Config{
		Key: func() keyfile.Key { return ring.Active() },
		Journals: func(ctx context.Context, js jetstream.JetStream) (names []string, err error) {
			places, err := jetlog.Places(ctx, js, "work")
			for _, p := range places {
				names = append(names, p.Stream())
			}
			if listed++; a.listed != nil {
				a.listed(listed)
			}
			return names, err
		},
	}, Deps{
		Conn: func() *nats.Conn { return a.nc },
		Archive: func(plane string, partition int) (segments.Store, error) {
			return segments.NewDirectory(a.dir, plane, partition), nil
		},
	}))(t)
	received := false
	out := &download{context: t.Context, onChunk: func() error {
		if !received && a.received != nil {
			a.received()
		}
		received = true
		return nil
	}}
	if err := s.ExportBackup(&backupv1.ExportBackupRequest{}, out); err != nil {
		return nil, err
	}
	require.IsNonDecreasing(t, out.done)
	require.Greater(t, out.done[len(out.done)-1], 0.9, "what was archived meanwhile is a part of it")
	c := unpack(t, &out.all)
	last := map[string]uint64{}
	end := framelog.End{}
	for _, name := range c.manifest.Streams {
		for _, m := range c.messages[name] {
			h := nats.Header(m.Header)
			f := jetlog.Decode(h, m.Data)
			require.Equal(t, jetlog.Header(name, last[name], f), h, "as the server had it")
			last[name] = m.Seq
			next, intact, err := end.Next(a.Partition, m.Seq, f)
			require.NoError(t, err)
			require.True(t, intact)
			if end = next; len(f.Body) == 0 {
				f.Body = nil
			}
			all = append(all, segments.Frame{Seq: m.Seq, Frame: f})
		}
	}
	return all, nil
}

// TestABackupHasArchivedSegments: a segment is in a backup as one whose stream there is, also if it is archived at any
// moment while the backup is made.
func TestABackupHasArchivedSegments(t *testing.T) {
	more := func(t *testing.T, a *archiving) {
		a.Write(t, 3, 100)
		a.Close(t)
		a.Write(t, 3, 100)
		a.Close(t)
		a.Write(t, 1, 100)
		a.Archive(t)
	}
	for name, during := range map[string]func(t *testing.T, a *archiving){
		"before":               func(t *testing.T, a *archiving) { a.Archive(t) },
		"partly":               func(t *testing.T, a *archiving) { a.Archive(t); a.Close(t); a.Write(t, 2, 10) },
		"before the moment":    func(t *testing.T, a *archiving) { a.listed = func(n int) { archiveAt(t, a, n, 1) } },
		"behind the moment":    func(t *testing.T, a *archiving) { a.listed = func(n int) { archiveAt(t, a, n, 2) } },
		"while it is received": func(t *testing.T, a *archiving) { a.received = func() { a.Archive(t) } },
		"and goes on": func(t *testing.T, a *archiving) {
			a.received = func() { more(t, a) }
		},
		"and goes on in a segment that there is": func(t *testing.T, a *archiving) {
			must.Value(a.Log.Prepare(t.Context(), a.End.Segment))(t)
			a.received = func() { more(t, a) }
		},
		"and went on": func(t *testing.T, a *archiving) {
			a.listed = func(n int) {
				if n == 2 {
					more(t, a)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArchiving(t)
			for range 3 {
				a.Write(t, 20, 60_000)
				a.Close(t)
			}
			a.Write(t, 5, 100)
			during(t, a)
			want := journaltest.ArchiveFrames(t, a.Log, a.Partition)
			got := must.Value(a.export(t))(t)
			if name == "and went on" { // new segments were listed, so another moment was chosen
				want = journaltest.ArchiveFrames(t, a.Log, a.Partition)
			}
			requireFrames(t, want, got)
			require.Less(t, len(must.Value(a.Log.Segments(t.Context()))(t)), 4, "it was archived")
		})
	}
}

func requireFrames(t *testing.T, want, got []segments.Frame) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].Seq, got[i].Seq)
		require.True(t, reflect.DeepEqual(want[i], got[i]), "frame %d", want[i].Seq)
	}
}

func archiveAt(t *testing.T, a *archiving, n, at int) {
	if n == at {
		a.Archive(t)
	}
}

// TestABackupHasErasedLines: lines of an archived segment are not in a backup if they were erased, before it is made or
// meanwhile, and its frames continue each other.
func TestABackupHasErasedLines(t *testing.T) {
	for _, before := range []bool{true, false} {
		a := newArchiving(t)
		for range 3 {
			a.Write(t, 20, 60_000)
			a.Close(t)
		}
		a.Write(t, 5, 100)
		a.Archive(t)
		whole := journaltest.ArchiveFrames(t, a.Log, a.Partition)
		erase := func() {
			store := segments.NewDirectory(a.dir, "work", 0)
			c, err := segments.Read(t.Context(), store, a.Partition)
			require.NoError(t, err)
			for i := range c.Segments {
				var n int64
				c, n, err = c.Erase(t.Context(), store, c.Segments[i].GetNumber(),
					segments.Erasing{
						Line: func(line []byte) bool { return bytes.Contains(line, []byte("7,\"event_type\"")) },
					})
				require.NoError(t, err)
				require.EqualValues(t, 2, n)
			}
		}
		if before {
			erase()
		} else {
			a.received = erase
		}
		got := must.Value(a.export(t))(t)
		want := journaltest.ArchiveFrames(t, a.Log, a.Partition)
		if before {
			requireFrames(t, want, got)
			require.NotEqual(t, want, whole)
			continue
		}
		require.Len(t, got, len(whole))
		erased := 0
		for i := range got {
			if erased += got[i].Erased(); got[i].Rests == nil {
				requireFrames(t, whole[i:i+1], got[i:i+1])
			}
		}
		require.Positive(t, erased)
	}
}

// TestABackupOfALargeSegment: the stream of a segment that the server did not send as a whole yet is removed.
func TestABackupOfALargeSegment(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	a := newArchiving(t)
	a.Write(t, 40, 1<<20)
	a.Close(t)
	a.Write(t, 1, 10)
	want := journaltest.ArchiveFrames(t, a.Log, a.Partition)
	a.received = func() { a.Archive(t) }
	got := must.Value(a.export(t))(t)
	requireFrames(t, want, got)
}

// TestABackupWhileAJournalIsArchived makes backups while a journal is written, closed and archived: each has the
// beginning of it.
func TestABackupWhileAJournalIsArchived(t *testing.T) {
	a := newArchiving(t)
	a.Write(t, 1, 10)
	rounds, done := make(chan bool, 3), make(chan struct{})
	go func() {
		defer close(done)
		for archives := range rounds {
			a.Write(t, 1+rand.IntN(30), 1000)
			a.Close(t)
			a.Write(t, 1, 10)
			if archives {
				a.Archive(t)
			}
		}
	}()
	var all [][]segments.Frame
	for range 10 {
		for i := range 3 {
			rounds <- i > 0
		}
		all = append(all, must.Value(a.export(t))(t))
	}
	close(rounds)
	<-done
	want := journaltest.ArchiveFrames(t, a.Log, a.Partition)
	before := 0
	for _, got := range all {
		requireFrames(t, want[:len(got)], got)
		require.GreaterOrEqual(t, len(got), before)
		before = len(got)
	}
}

// TestABackupOfADamagedArchive fails, and names what is damaged.
func TestABackupOfADamagedArchive(t *testing.T) {
	a := newArchiving(t)
	for range 2 {
		a.Write(t, 3, 100)
		a.Close(t)
	}
	a.Write(t, 1, 10)
	a.Archive(t)
	files := must.Value(filepath.Glob(filepath.Join(a.dir, "work-0", "segment-1-*")))(t)
	require.Len(t, files, 1)
	require.NoError(t, segments.NewDirectory(a.dir, "work", 0).Remove(t.Context(), filepath.Base(files[0])))
	must.Fail(a.export(t))(t, "segment 1 of work/0 in its archive")
}

// TestASharedStreamOfArchives: the stream in which several partitions began is put together from their archives.
func TestASharedStreamOfArchives(t *testing.T) {
	nc := natsdtest.Connect(t)
	require.NoError(t, jetlog.Create(t.Context(), nc, jetlog.Place{Plane: "work", Shared: true}, 1, 2, 1))
	dir := t.TempDir()
	store := func(plane string, partition int) (segments.Store, error) {
		return segments.NewDirectory(dir, plane, partition), nil
	}
	var journals []*journaltest.ArchivedJournal
	for i := range 2 {
		live := must.Value(jetlog.New(nc, "work", i))(t)
		journals = append(journals, journaltest.NewArchivedJournal(live, segments.NewDirectory(dir, "work", i),
			framelog.PartitionName("work", i)))
	}
	for range 5 {
		journals[0].Write(t, 1, 10)
		journals[1].Write(t, 2, 10)
	}
	for _, j := range journals {
		j.Close(t)
		j.Write(t, 1, 10)
	}
	js := must.Value(jetstream.New(nc))(t)
	read := func(s *Service) (all []archive.Message) {
		c := &copying{
			Service: s, js: js, ends: map[string]framelog.End{}, seen: map[string]bool{},
			write: func(m archive.Message) error {
				if len(m.Data) == 0 {
					m.Data = nil
				}
				all = append(all, m)
				return nil
			},
		}
		archives, err := s.archives(t.Context(), []string{"quartet-journal-work-0-1", "quartet-journal-work-1-1"})
		require.NoError(t, err)
		if len(archives) == 0 {
			c.moment = must.Value(chooseCut(t.Context(), js, []string{"quartet-journal-work"}))(t)
		}
		require.NoError(t, c.stream(t.Context(), "quartet-journal-work", archives))
		return all
	}
	s := &Service{deps: Deps{Archive: store}}
	want := read(s)
	require.Len(t, want, 17)
	for _, j := range journals {
		j.Archive(t)
	}
	require.Equal(t, want, read(s))
}
