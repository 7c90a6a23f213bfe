package archives_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"quartet/pkg/conf"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/services/storage/storagetest"
	"quartet/services/storage/verify"
	"quartet/tests/bucket"
)

// opened opens a prefix of a server's bucket.
func opened(t *testing.T, srv *bucket.Server, prefix string) *archives.Bucket {
	t.Helper()
	return must.Value(archives.Settings{URL: srv.URL(prefix), CredentialsFile: bucket.Credentials(t, bucket.AccessKey,
		bucket.SecretKey)}.Open())(t)
}

// one is an installation with one partition of work.
func one(string) int { return 1 }

func TestSettings(t *testing.T) {
	var s archives.Settings
	set := conf.New(pflag.NewFlagSet("test", pflag.ContinueOnError))
	s.Flags(set)
	require.Nil(t, must.Value(s.Open())(t))
	require.Empty(t, s.Dir())
	s.URL = "/var/archive/"
	require.Nil(t, must.Value(s.Open())(t))
	require.Equal(t, "/var/archive", s.Dir())
	for want, s := range map[string]archives.Settings{
		"need archive":                        {CredentialsFile: "x"},
		"need archive, the":                   {CAFile: "x"},
		"need archive, the bucket":            {URL: "/var/archive", CAFile: "x"},
		"or the absolute path of a directory": {URL: "var/archive"},
		"name a file that this user can": {URL: "s3://b-1?region=x", CredentialsFile: filepath.Join(t.TempDir(),
			"none")},
		"archive-ca-file: open": {URL: "s3://b-1?region=x", CAFile: filepath.Join(t.TempDir(), "none")},
	} {
		must.Fail(s.Open())(t, want)
	}
}

// TestBegin_Elsewhere: an installation does not begin other archives than it has.
func TestBegin_Elsewhere(t *testing.T) {
	srv := bucket.Start(t)
	in := archives.Installation{Planes: []string{"work"}, Partitions: one}
	named := t.TempDir()
	for name, c := range map[string]struct {
		where string
		set   func(*archives.Places)
	}{
		"bucket":    {"s3://journals/bucket", func(p *archives.Places) { p.Bucket = opened(t, srv, "bucket") }},
		"directory": {named, func(p *archives.Places) { p.Dir = named }},
	} {
		t.Run(name, func(t *testing.T) {
			p := archives.Places{DataDir: t.TempDir()}
			require.NoError(t, p.Begin(t.Context(), in), "nothing is archived")
			set := p
			c.set(&set)
			require.NoError(t, set.Begin(t.Context(), in))
			require.NoError(t, set.Begin(t.Context(), in), "again")
			require.ErrorContains(t, p.Begin(t.Context(), in), "the archives of this installation are in "+c.where)

			other := archives.Places{DataDir: t.TempDir()}
			store := must.Value(other.Store("work", 0))(t)
			require.NoError(t, store.ReplaceCatalog(t.Context(), 0, []byte("c")))
			require.NoError(t, other.Begin(t.Context(), in))
			c.set(&other)
			err := other.Begin(t.Context(), in)
			require.ErrorContains(t, err, "the archive of work/0 is not in "+c.where)
			require.ErrorContains(t, err, "archive/work-0")
		})
	}

	p := archives.Places{DataDir: t.TempDir(), Dir: named}
	require.NoError(t, p.Begin(t.Context(), in))
	p.Dir, p.Bucket = "", opened(t, srv, "other")
	require.ErrorContains(t, p.Begin(t.Context(), in), "the archives of this installation are in "+named)
}

// TestBegin_Unreachable: a bucket that does not answer does not keep a server from starting, and another installation's
// does.
func TestBegin_Unreachable(t *testing.T) {
	srv := bucket.Start(t)
	in := archives.Installation{Planes: []string{"work"}, Partitions: one}
	p := archives.Places{DataDir: t.TempDir(), Bucket: opened(t, srv, "p")}
	p.Bucket.Own(func() []string { return []string{"a"} })
	require.NoError(t, srv.Kill())
	require.NoError(t, p.Begin(t.Context(), in))
	srv.Run(t)
	require.NoError(t, p.Begin(t.Context(), in))
	p.Bucket = opened(t, srv, "p")
	p.Bucket.Own(func() []string { return []string{"b"} })
	require.ErrorIs(t, p.Begin(t.Context(), in), archives.ErrForeign)
}

func TestPlaces(t *testing.T) {
	p := archives.Places{DataDir: t.TempDir()}
	store := must.Value(p.Store("work", 0))(t)
	require.IsType(t, &archive.Directory{}, store)
	require.True(t, p.Kept())
	require.Equal(t, archives.Place{Dir: datadir.Archive(p.DataDir)}, p.Archived())
	p.Remote = true
	require.False(t, p.Kept())
	require.Equal(t, archives.Place{Remote: true}, p.Archived())
	_, version, err := must.Value(p.Store("work", 0))(t).Catalog(t.Context())
	require.NoError(t, err)
	require.Zero(t, version)
	p.Dir = "/srv/archive"
	require.True(t, p.Kept())
	require.Equal(t, archives.Place{Dir: "/srv/archive", Remote: true}, p.Archived())
}

// TestWatch: it says once that a bucket cannot be used, and once that it can again.
func TestWatch(t *testing.T) {
	srv := bucket.Start(t)
	core, logs := observer.New(zap.InfoLevel)
	w := archives.NewWatch(opened(t, srv, "watch"), zap.New(core))
	w.Do(t.Context())
	require.NoError(t, w.Err())
	require.NoError(t, srv.Kill())
	w.Do(t.Context())
	require.NoError(t, w.Err(), "it is not asked again at once")

	w = archives.NewWatch(opened(t, srv, "watch"), zap.New(core))
	require.NoError(t, w.Err())
	w.Do(t.Context())
	w.Do(t.Context())
	require.ErrorContains(t, w.Err(), "can be reached")
	require.Equal(t, 1, logs.FilterMessageSnippet("cannot be used").Len())
	srv.Run(t)
	w.Do(t.Context())
	require.NoError(t, w.Err())
	require.Equal(t, 1, logs.FilterMessageSnippet("can be used again").Len())
}

// asked is a store that counts how often its catalog is read.
type asked struct {
	journaltest.MemArchive
	n   int
	err error
}

func (a *asked) Catalog(ctx context.Context) ([]byte, uint64, error) {
	if a.n++; a.err != nil {
		return nil, 0, a.err
	}
	return a.MemArchive.Catalog(ctx)
}

func TestOverview(t *testing.T) {
	a := &asked{}
	o := archives.NewOverview(func(plane string, partition int) (archive.Store, error) {
		if plane == "none" {
			return nil, errors.New("no such plane")
		}
		return a, nil
	})
	require.Error(t, must.Err(o.Store("none", 0)))
	for range 3 {
		s := must.Value(o.Store("work", 0))(t)
		_, _, err := s.Catalog(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, 1, a.n)
	a.err = errors.New("refused")
	for range 3 {
		s := must.Value(o.Store("work", 1))(t)
		_, _, err := s.Catalog(t.Context())
		require.ErrorIs(t, err, a.err, "errors are remembered, too")
	}
	require.Equal(t, 2, a.n)
}

// TestVerify_Bucket verifies a journal of NATS servers whose archive is in a bucket.
func TestVerify_Bucket(t *testing.T) {
	srv := bucket.Start(t)
	b := opened(t, srv, "verified")
	j := storagetest.New(t, func(*nats.Conn) archive.Store { return b.Store(storagetest.Plane, 0) })
	j.Segments(t, 3, 3, 200_000)
	j.Write(t, 2, 10)
	for range 2 {
		j.Archive(t)
		j.Drop(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := func() (verify.Journal, error) {
		all, err := verify.Run(ctx, verify.Config{
			DataDir: t.TempDir(), WitnessDir: datadir.Witness(j.DataDir), Planes: []string{storagetest.Plane},
			Remote: &natsd.Remote{URL: j.URL}, Archives: archives.Places{Remote: true, Bucket: b}.Archived(),
		})
		if err != nil {
			return verify.Journal{}, err
		}
		require.Len(t, all.Journals, 1)
		return all.Journals[0], nil
	}
	v := must.Value(run())(t)
	require.Empty(t, v.Damage)
	require.Equal(t, j.End, v.End)
	require.EqualValues(t, len(j.Ends), v.Frames)
	require.Equal(t, 2, v.Segments)

	require.NoError(t, srv.Kill())
	must.Fail(run())(t, "can be reached", "that says nothing about damage")
	srv.Run(t)
	files := must.Value(filepath.Glob(srv.Object("verified/test-0/segment-1-*")))(t)
	require.Len(t, files, 1)
	require.NoError(t, os.Remove(files[0]))
	v = must.Value(run())(t)
	require.Len(t, v.Damage, 1)
	require.ErrorContains(t, v.Damage[0], "are not as they were archived, in segment 1, "+filepath.Base(files[0])+
		" of s3://journals/verified/test-0: its index")
	require.Equal(t, j.End, v.End)
	catalogs := must.Value(filepath.Glob(srv.Object("verified/test-0/catalog-*")))(t)
	require.NotEmpty(t, catalogs)
	for _, c := range catalogs {
		require.NoError(t, os.Remove(c))
	}
	v = must.Value(run())(t)
	require.ErrorContains(t, v.Damage[0], "segments 0 to 1 are neither in the log nor in the catalog of its archive")
}

// TestSegmentNames: a segment of which lines were removed has another name, and the others keep theirs.
func TestSegmentNames(t *testing.T) {
	j := storagetest.New(t, nil)
	j.Segments(t, 2, 4, 100)
	j.Archive(t)
	j.Archive(t)
	names := func() map[uint64]string {
		return must.Value(archives.SegmentNames(func(plane string, partition int) (archive.Store, error) {
			require.Equal(t, storagetest.Partition, framelog.PartitionName(plane, partition))
			return j.Store, nil
		})(t.Context(), storagetest.Plane, 0))(t)
	}
	before := names()
	require.Len(t, before, 2)
	c := must.Value(archive.Read(t.Context(), j.Store, storagetest.Partition))(t)
	first, second := c.Segments[0].GetNumber(), c.Segments[1].GetNumber()
	_, n, err := c.Erase(t.Context(), j.Store, first,
		archive.Erasing{Old: true, Line: func([]byte) bool { return true }})
	require.NoError(t, err)
	require.Positive(t, n)
	require.NotEqual(t, before[first], names()[first])
	require.Equal(t, before[second], names()[second])
}
