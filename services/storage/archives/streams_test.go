package archives_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/services/storage/storagetest"
	"quartet/services/storage/verify"
)

// streamArchive is an archive as earlier versions stored it in a stream, of partition 0 of storagetest.Plane.
type streamArchive struct {
	js   jetstream.JetStream
	last int // of the drafts
}

const (
	streamOfTest   = "quartet-archive-test-0"
	subjectsOfTest = "quartet.archive.test.0."
)

func newStreamArchive(t *testing.T, nc *nats.Conn) *streamArchive {
	js := must.Value(jetstream.New(nc))(t)
	must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: streamOfTest, Subjects: []string{subjectsOfTest + ">"}, Discard: jetstream.DiscardNew,
	}))(t)
	return &streamArchive{js: js}
}

func (s *streamArchive) get(ctx context.Context, get func(jetstream.Stream) (*jetstream.RawStreamMsg, error)) (
	[]byte, uint64, error,
) {
	stream, err := s.js.Stream(ctx, streamOfTest)
	if err != nil {
		return nil, 0, err
	}
	m, err := get(stream)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", archive.ErrNoObject, err)
	}
	return m.Data, m.Sequence, nil
}

func (s *streamArchive) put(ctx context.Context, subject string, b []byte, opts ...jetstream.PublishOpt) (uint64, error) {
	ack, err := s.js.Publish(ctx, subjectsOfTest+subject, b, opts...)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

type streamDraft struct {
	*streamArchive
	name string
}

func (s *streamArchive) Begin(_ context.Context, segment uint64) (archive.Draft, error) {
	s.last++
	return streamDraft{s, fmt.Sprintf("%d-%016x", segment, s.last)}, nil
}

func (d streamDraft) Add(ctx context.Context, b []byte) (uint64, error) {
	return d.put(ctx, "frames."+d.name, b)
}

func (d streamDraft) Commit(ctx context.Context) (string, error) {
	_, err := d.put(ctx, "complete."+d.name, nil)
	return d.name, err
}

func (d streamDraft) Close() {}

func (s *streamArchive) Get(ctx context.Context, _ string, at uint64, _ int64) ([]byte, error) {
	b, _, err := s.get(ctx, func(stream jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return stream.GetMsg(ctx, at)
	})
	return b, err
}

func (s *streamArchive) Last(ctx context.Context, name string) ([]byte, uint64, error) {
	return s.get(ctx, func(stream jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return stream.GetLastMsgForSubject(ctx, subjectsOfTest+"frames."+name)
	})
}

func (s *streamArchive) Names(ctx context.Context) (map[string]uint64, error) {
	stream, err := s.js.Stream(ctx, streamOfTest)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjectsOfTest+"complete.*"))
	names := map[string]uint64{}
	for subject := range info.State.Subjects {
		name := strings.TrimPrefix(subject, subjectsOfTest+"complete.")
		number, _, _ := strings.Cut(name, "-")
		names[name], err = strconv.ParseUint(number, 10, 64)
	}
	return names, err
}

func (s *streamArchive) Remove(ctx context.Context, name string) error {
	stream, err := s.js.Stream(ctx, streamOfTest)
	for _, kind := range []string{"frames.", "complete."} {
		if err == nil {
			err = stream.Purge(ctx, jetstream.WithPurgeSubject(subjectsOfTest+kind+name))
		}
	}
	return err
}

func (s *streamArchive) Catalog(ctx context.Context) ([]byte, uint64, error) {
	b, version, err := s.get(ctx, func(stream jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return stream.GetLastMsgForSubject(ctx, subjectsOfTest+"catalog")
	})
	if errors.Is(err, archive.ErrNoObject) {
		err = nil
	}
	return b, version, err
}

func (s *streamArchive) ReplaceCatalog(ctx context.Context, version uint64, content []byte) error {
	_, err := s.put(ctx, "catalog", content, jetstream.WithExpectLastSequencePerSubject(version))
	return err
}

// streamed is a journal of which an earlier version archived three of its five segments in a stream. Some lines of them
// are erased, and others removed.
func streamed(t *testing.T) (*storagetest.Journal, map[uint64]string) {
	j := storagetest.New(t, func(nc *nats.Conn) archive.Store { return newStreamArchive(t, nc) })
	j.Segments(t, 4, 3, 200_000)
	j.Write(t, 2, 10)
	for range 3 {
		j.Archive(t)
		j.Drop(t)
	}
	c := must.Value(archive.Read(t.Context(), j.Store, storagetest.Partition))(t)
	for segment, what := range []archive.Erasing{
		{Line: func(line []byte) bool { return strings.Contains(string(line), `"wal_seq":2,`) }},
		{Line: func([]byte) bool { return true }, Old: true},
	} {
		next, lines, err := c.Erase(t.Context(), j.Store, uint64(segment), what)
		require.NoError(t, err)
		require.Positive(t, lines)
		c = next
	}
	return j, frames(t, j, j.Store)
}

// frames describes the frames of a journal with an archive, by their sequence numbers.
func frames(t *testing.T, j *storagetest.Journal, store archive.Store) map[uint64]string {
	t.Helper()
	found := map[uint64]string{}
	require.NoError(t, archive.NewLog(j.Log, store, storagetest.Partition).Scan(t.Context(), 1,
		func(seq uint64, f framelog.Frame) error {
			found[seq] = fmt.Sprintf("%s %x %x, %d erased, removed to %s", f.ID, f.Link.Hash, sha256.Sum256(f.Body),
				f.Erased(), f.Removed)
			return nil
		}))
	return found
}

// verified verifies a journal on NATS servers.
func verified(t *testing.T, j *storagetest.Journal, p archives.Places) (verify.Result, error) {
	t.Helper()
	return verify.Run(t.Context(), verify.Config{
		DataDir: t.TempDir(), WitnessDir: datadir.Witness(j.DataDir), Planes: []string{storagetest.Plane},
		Remote: &natsd.Remote{URL: j.URL}, Archives: p.Archived(),
	})
}

// shared returns a process of an installation with NATS servers and an archive in a directory; without one if that is
// empty.
func shared(t *testing.T, dir string) archives.Places {
	return archives.Places{DataDir: t.TempDir(), Remote: true, Dir: dir}
}

func installationOf(j *storagetest.Journal, keys ...string) archives.Installation {
	return archives.Installation{
		Conn: j.Conn, Planes: []string{storagetest.Plane}, Partitions: one,
		Keys: func() []string { return keys }, Logger: zap.NewNop(),
	}
}

// TestBegin_MovesStreams: what an earlier version archived in NATS is moved once to the place that the setting archive
// names, also by several processes at the same time, and without one the start is refused before it changes anything.
func TestBegin_MovesStreams(t *testing.T) {
	j, before := streamed(t)
	js := must.Value(jetstream.New(j.Conn))(t)

	err := shared(t, "").Begin(t.Context(), installationOf(j, "a"))
	require.ErrorContains(t, err, "in "+streamOfTest+", where archives are not kept any more")
	require.ErrorContains(t, err, "start them with the setting archive, a directory that they share")
	must.Fail(verified(t, j, shared(t, "")))(t, streamOfTest)
	require.False(t, must.Value(js.Stream(t.Context(), streamOfTest))(t).CachedInfo().Config.Sealed)
	require.Equal(t, before, frames(t, j, j.Store))

	dir := t.TempDir()
	var processes errgroup.Group
	for range 4 {
		p := shared(t, dir)
		processes.Go(func() error { return p.Begin(t.Context(), installationOf(j, "a")) })
	}
	require.NoError(t, processes.Wait())
	require.ErrorIs(t, must.Err(js.Stream(t.Context(), streamOfTest)), jetstream.ErrStreamNotFound)
	p := shared(t, dir)
	store := must.Value(p.Store(storagetest.Plane, 0))(t)
	require.Equal(t, before, frames(t, j, store))
	c := must.Value(archive.Read(t.Context(), store, storagetest.Partition))(t)
	require.NoError(t, c.Clean(t.Context(), store), "as each archiver begins")
	require.Len(t, must.Value(store.Names(t.Context()))(t), 3, "what processes copied too late is removed")

	found := must.Value(verified(t, j, p))(t).Journals[0]
	require.Empty(t, found.Damage)
	require.Equal(t, j.End, found.End)
	require.Equal(t, 3, found.Segments)
	require.EqualValues(t, 1, found.Erased)

	// It goes on there.
	j.Store = store
	j.Archive(t)
	j.Drop(t)
	require.NoError(t, p.Begin(t.Context(), installationOf(j, "a")))
	require.Equal(t, before, frames(t, j, store))
}

// TestBegin_ADamagedStreamStays: a stream that cannot be moved as a whole is not deleted, and takes nothing more of a
// process of an earlier version that still runs.
func TestBegin_ADamagedStreamStays(t *testing.T) {
	j, _ := streamed(t)
	js := must.Value(jetstream.New(j.Conn))(t)
	c := must.Value(archive.Read(t.Context(), j.Store, storagetest.Partition))(t)
	stream := must.Value(js.Stream(t.Context(), streamOfTest))(t)
	require.NoError(t, stream.DeleteMsg(t.Context(), c.Segments[2].GetIndex().GetAt()))

	dir := t.TempDir()
	for range 2 {
		err := shared(t, dir).Begin(t.Context(), installationOf(j, "a"))
		require.ErrorContains(t, err, "the archive in the stream "+streamOfTest+" was not moved")
		require.ErrorIs(t, err, archive.ErrNoObject)
	}
	must.Value(js.Stream(t.Context(), streamOfTest))(t)
	content, version, err := j.Store.Catalog(t.Context())
	require.NoError(t, err)
	require.Error(t, j.Store.ReplaceCatalog(t.Context(), version, content))
}

// TestBegin_AnArchiveIsMissing: a process that is told nothing of the archive that a journal has, or another directory,
// or one whose volume is not mounted, does not start.
func TestBegin_AnArchiveIsMissing(t *testing.T) {
	dir := t.TempDir()
	j := storagetest.New(t, func(*nats.Conn) archive.Store {
		return archive.NewSharedDirectory(dir, storagetest.Plane, 0)
	})
	in := installationOf(j, "a")
	p := shared(t, dir)
	require.NoError(t, p.Begin(t.Context(), in))
	require.NoError(t, shared(t, "").Begin(t.Context(), in), "nothing is archived")
	j.Segments(t, 2, 3, 10)
	j.Write(t, 2, 10)
	j.Archive(t)
	j.Drop(t)

	require.NoError(t, p.Begin(t.Context(), in))
	require.NoError(t, shared(t, dir).Begin(t.Context(), in))
	require.ErrorContains(t, shared(t, "").Begin(t.Context(), in),
		"the journal of test/0 begins with segment 1, and no archive is named: give the setting archive")
	require.ErrorContains(t, shared(t, t.TempDir()).Begin(t.Context(), in), "has no archive of it: see whether the "+
		"volume is mounted")
	require.ErrorContains(t, shared(t, filepath.Join(dir, "none")).Begin(t.Context(), in), "create the directory")
	found := must.Value(verified(t, j, shared(t, "")))(t).Journals[0]
	require.Len(t, found.Damage, 1)
	require.ErrorContains(t, found.Damage[0], "give the setting archive that the servers have")

	// The process that has used the directory knows that it has.
	without := p
	without.Dir = ""
	require.ErrorContains(t, without.Begin(t.Context(), in), "the archives of this installation are in "+dir)
	require.NoError(t, os.Rename(dir, dir+"-elsewhere"))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.ErrorContains(t, p.Begin(t.Context(), in), "see whether the volume is mounted")
}

// TestBegin_AnothersDirectory: a directory belongs to the installation whose keys it names.
func TestBegin_AnothersDirectory(t *testing.T) {
	dir := t.TempDir()
	begin := func(keys ...string) error {
		p := archives.Places{DataDir: t.TempDir(), Dir: dir}
		return p.Begin(t.Context(), archives.Installation{
			Planes: []string{"work"}, Partitions: one, Keys: func() []string { return keys }, Logger: zap.NewNop(),
		})
	}
	var processes errgroup.Group
	for range 8 {
		processes.Go(func() error { return begin("a") })
	}
	require.NoError(t, processes.Wait())
	require.ErrorIs(t, begin("b"), archives.ErrForeign)
	require.NoError(t, begin("a", "b"), "a key is added")
	require.NoError(t, begin("b"))
	require.Len(t, must.Value(os.ReadDir(dir))(t), 1, "the mark only")
}
