package archives

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/authority"
	"quartet/pkg/clock"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/tests/bucket"
	"quartet/tests/proc"
)

// opened opens a prefix of a server's bucket.
func opened(t *testing.T, srv *bucket.Server, prefix string, change ...func(*BucketConfig)) *Bucket {
	t.Helper()
	location := must.Value(ParseLocation(srv.URL(prefix)))(t)
	cfg := BucketConfig{
		Location: location, CredentialsFile: bucket.Credentials(t, bucket.AccessKey, bucket.SecretKey),
		CAFile: srv.CA, Now: clock.System().Now,
	}
	for _, c := range change {
		c(&cfg)
	}
	return must.Value(OpenBucket(cfg))(t)
}

// objects returns the files of the objects below a prefix.
func objects(t *testing.T, srv *bucket.Server, pattern string) []string {
	t.Helper()
	return must.Value(filepath.Glob(srv.Object(pattern)))(t)
}

func TestStore(t *testing.T) {
	srv := bucket.Start(t)
	for name, prefix := range map[string]string{"prefix": "a/b", "no prefix": ""} {
		t.Run(name, func(t *testing.T) {
			journaltest.RunArchiveStore(t, func(t *testing.T) archive.Store {
				return opened(t, srv, prefix).Store("work", 3)
			})
			require.Len(t, objects(t, srv, filepath.Join(prefix, "work-3", "*")), 1+keptCatalogs,
				"one segment; nothing of a writer that gave up")
			b := opened(t, srv, prefix)
			n := must.Value(b.Partitions(t.Context(), "work"))(t)
			require.Equal(t, 4, n)
			n = must.Value(b.Partitions(t.Context(), "task"))(t)
			require.Zero(t, n)
			require.NoError(t, b.Check(t.Context()))
			require.Empty(t, objects(t, srv, filepath.Join(prefix, "check-*")))
		})
	}
}

// noise returns bytes that do not repeat.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b) // it never fails
	return b
}

// TestStore_Large tests a segment of several parts, of which an object lies in two.
func TestStore_Large(t *testing.T) {
	srv := bucket.Start(t)
	s := opened(t, srv, "large").Store("work", 0)
	put := func(sizes ...int) (string, []uint64) {
		d := must.Value(s.Begin(t.Context(), 1))(t)
		defer d.Close()
		var all []uint64
		for _, n := range sizes {
			all = append(all, must.Value(d.Add(t.Context(), noise(n)))(t))
		}
		return must.Value(d.Commit(t.Context()))(t), all
	}
	for _, sizes := range [][]int{
		{partBytes - 5, 100, 3*partBytes + 7, 12},
		{partBytes}, // its end is the last part
		{partBytes - 8},
	} {
		name, at := put(sizes...)
		for i, n := range sizes {
			require.True(t, bytes.Equal(noise(n), must.Value(s.Get(t.Context(), name, at[i], int64(n)))(t)), n)
		}
		last, where, err := s.Last(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, at[len(at)-1], where)
		require.True(t, bytes.Equal(noise(sizes[len(sizes)-1]), last))
	}
}

// uploads returns how many uploads a store has that are not complete.
func uploads(t *testing.T, s *BucketStore) int {
	t.Helper()
	all, err := s.bucket.client.ListMultipartUploads(t.Context(), s.bucket.location.Bucket, s.dir, "", "", "", 100)
	require.NoError(t, err)
	return len(all.Uploads)
}

// TestStore_GivenUp: an upload that is given up is removed, and that of a process that ended when it is old.
func TestStore_GivenUp(t *testing.T) {
	srv := bucket.Start(t)
	now := clock.System().Now
	b := opened(t, srv, "left", func(cfg *BucketConfig) { cfg.Now = func() time.Time { return now() } })
	s := b.Store("work", 0)
	d := must.Value(s.Begin(t.Context(), 1))(t)
	must.Value(d.Add(t.Context(), noise(partBytes)))(t)
	require.Equal(t, 1, uploads(t, s))
	d.Close()
	require.Zero(t, uploads(t, s))

	left := must.Value(s.Begin(t.Context(), 2))(t)
	must.Value(left.Add(t.Context(), noise(partBytes)))(t)
	d = must.Value(s.Begin(t.Context(), 2))(t)
	d.Close()
	require.Equal(t, 1, uploads(t, s), "its process may still work on it")
	now = func() time.Time { return clock.System().Now().Add(abandoned + time.Minute) }
	d = must.Value(s.Begin(t.Context(), 2))(t)
	d.Close()
	require.Zero(t, uploads(t, s))
	must.Fail(left.Commit(t.Context()))(t, "NoSuchUpload")
	require.Empty(t, must.Value(s.Names(t.Context()))(t))
}

// TestStore_TwoWriters: of those who replace the same catalog, one succeeds.
func TestStore_TwoWriters(t *testing.T) {
	srv := bucket.Start(t)
	var stores []*BucketStore
	for range 4 {
		stores = append(stores, opened(t, srv, "two").Store("work", 0))
	}
	const rounds = 10
	for version := range uint64(rounds) {
		results := make([]error, len(stores))
		var all sync.WaitGroup
		for i, s := range stores {
			all.Go(func() {
				results[i] = s.ReplaceCatalog(t.Context(), version, fmt.Appendf(nil, "%d of %d", version, i))
			})
		}
		all.Wait()
		won := -1
		for i, err := range results {
			if err == nil {
				require.Equal(t, -1, won, "two succeeded")
				won = i
				continue
			}
			require.ErrorIs(t, err, archive.ErrReplaced)
		}
		require.GreaterOrEqual(t, won, 0)
		content, got, err := stores[0].Catalog(t.Context())
		require.NoError(t, err)
		require.Equal(t, version+1, got)
		require.Equal(t, fmt.Sprintf("%d of %d", version, won), string(content))
	}
	require.Len(t, objects(t, srv, "two/work-0/catalog-*"), keptCatalogs)
}

// TestStore_Late: a writer that was away while others replaced the catalog several times does not create one where an
// older one was.
func TestStore_Late(t *testing.T) {
	srv := bucket.Start(t)
	late, other := opened(t, srv, "late").Store("work", 0), opened(t, srv, "late").Store("work", 0)
	require.NoError(t, other.ReplaceCatalog(t.Context(), 0, []byte{0}))
	at := beforeRequest(late.bucket, "PUT catalog-", func() {
		for v := range uint64(4) {
			require.NoError(t, other.ReplaceCatalog(t.Context(), v+1, []byte{byte(v + 1)}))
		}
		require.NoFileExists(t, srv.Object(late.catalogKey(2)))
	})
	require.ErrorIs(t, late.ReplaceCatalog(t.Context(), 1, []byte("late")), archive.ErrReplaced)
	require.True(t, at.reached())
	require.FileExists(t, srv.Object(late.catalogKey(2)))
	content, version, err := late.Catalog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 5, version)
	require.Equal(t, []byte{4}, content)
}

// TestStore_AnswerLost: a catalog that is there already as it should be written was written before the server's answer
// was lost.
func TestStore_AnswerLost(t *testing.T) {
	srv := bucket.Start(t)
	s := opened(t, srv, "lost").Store("work", 0)
	require.NoError(t, s.ReplaceCatalog(t.Context(), 0, []byte("c1")))
	lost := &answerLost{Bucket: s.bucket, key: s.catalogKey(2)}
	lost.install()
	require.NoError(t, s.ReplaceCatalog(t.Context(), 1, []byte("c2")))
	require.Equal(t, 1, lost.answers())
	_, version, err := s.Catalog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, version)
}

// journal is a journal in memory, of partition work/0, with its archive in a store.
func journal(store archive.Store) *journaltest.ArchivedJournal {
	return journaltest.NewArchivedJournal(journaltest.NewMemLog(), store, "work/0")
}

// write writes some segments and archives them.
func write(t *testing.T, j *journaltest.ArchivedJournal, segments int) {
	t.Helper()
	for range segments {
		j.Write(t, 20, 60_000)
		j.Close(t)
	}
	j.Write(t, 3, 100)
}

// TestStore_Damage: an object that was changed on the server's disk is found, and named.
func TestStore_Damage(t *testing.T) {
	srv := bucket.Start(t)
	s := opened(t, srv, "damage").Store("work", 0)
	j := journal(s)
	write(t, j, 3)
	j.Archive(t)
	require.Len(t, journaltest.ArchiveFrames(t, j.Log, "work/0"), 66)
	files := objects(t, srv, "damage/work-0/segment-2-*")
	require.Len(t, files, 1)
	intact := must.Value(os.ReadFile(files[0]))(t)
	scan := func() error {
		return journalOf(j, s).Scan(t.Context(), 0, func(uint64, framelog.Frame) error { return nil })
	}
	for _, at := range []int{len(intact) / 3, len(intact) - 9} {
		changed := bytes.Clone(intact)
		changed[at] ^= 1
		require.NoError(t, os.WriteFile(files[0], changed, 0o600))
		var broken *framelog.Broken
		require.ErrorAs(t, scan(), &broken)
		require.ErrorContains(t, broken, filepath.Base(files[0]))
	}
	require.NoError(t, os.Truncate(files[0], int64(len(intact)/2)))
	var broken *framelog.Broken
	require.ErrorAs(t, scan(), &broken)
	require.ErrorContains(t, broken, "damage/work-0/"+filepath.Base(files[0]))
	require.NoError(t, os.Remove(files[0]))
	require.ErrorAs(t, scan(), &broken)
	require.ErrorContains(t, broken, "s3://journals/damage/work-0/"+filepath.Base(files[0]))
}

// journalOf returns the log of a journal with its archive, of which nothing was read yet.
func journalOf(j *journaltest.ArchivedJournal, s archive.Store) *archive.Log {
	return archive.NewLog(j.Log.Live, s, "work/0")
}

// TestStore_ReadsParts: whoever reads a frame does not read the segment that it is in.
func TestStore_ReadsParts(t *testing.T) {
	srv := bucket.Start(t)
	b := opened(t, srv, "parts")
	j := journal(b.Store("work", 0))
	write(t, j, 1)
	j.Archive(t)
	files := objects(t, srv, "parts/work-0/segment-0-*")
	require.Len(t, files, 1)
	info := must.Value(os.Stat(files[0]))(t)
	read := opened(t, srv, "parts")
	counted := counting(read)
	found := errors.New("found")
	err := journalOf(j, read.Store("work", 0)).Scan(t.Context(), 10,
		func(uint64, framelog.Frame) error { return found })
	require.ErrorIs(t, err, found)
	require.Less(t, counted.bytes.Load(), info.Size()*3/4, "with the catalog and the index")
}

// TestStore_ServerKilled: the server is killed in the middle of archiving, and what is not archived stays in the log
// until it is back.
func TestStore_ServerKilled(t *testing.T) {
	srv := bucket.Start(t)
	b := opened(t, srv, "killed")
	s := b.Store("work", 0)
	j := journal(s)
	write(t, j, 2)
	want := journaltest.ArchiveFrames(t, j.Log, "work/0")
	for _, dies := range []string{"PUT segment-0", "GET segment-0", "PUT catalog-", "PUT segment-1", "GET catalog-"} {
		at := beforeRequest(b, dies, func() { require.NoError(t, srv.Kill()) })
		c, err := archive.Read(t.Context(), s, "work/0")
		if err == nil {
			segments, listErr := j.Log.Segments(t.Context())
			require.NoError(t, listErr)
			_, err = c.Add(t.Context(), s, j.Log.Live, segments[len(c.Segments)], clock.System().Now())
		}
		require.ErrorContains(t, err, "s3://journals/killed of "+srv.Addr, dies)
		require.ErrorContains(t, err, "can be reached", dies)
		require.True(t, at.reached(), dies)
		at.remove()
		require.Equal(t, want, journaltest.ArchiveFrames(t, j.Log.Live, "work/0"), "the log has all")
		srv.Run(t)
		if dies == "PUT catalog-" {
			c = must.Value(archive.Read(t.Context(), s, "work/0"))(t)
			segments := must.Value(j.Log.Segments(t.Context()))(t)
			must.Value(c.Add(t.Context(), s, j.Log.Live, segments[0], clock.System().Now()))(t)
		}
	}
	j.Archive(t)
	require.Equal(t, want, journaltest.ArchiveFrames(t, journalOf(j, s), "work/0"))
	require.Len(t, must.Value(s.Names(t.Context()))(t), 2, "what was left is removed")
}

// TestBucket_Refusals tests that errors say what is wrong and what may be done.
func TestBucket_Refusals(t *testing.T) {
	srv := bucket.Start(t)
	for name, c := range map[string]struct {
		change func(*BucketConfig)
		want   []string
	}{
		"wrong secret": {
			func(c *BucketConfig) { c.CredentialsFile = bucket.Credentials(t, bucket.AccessKey, "another secret") },
			[]string{"SignatureDoesNotMatch", "correct the access key and its secret in ", "archive-credentials-file"},
		},
		"unknown key": {
			func(c *BucketConfig) { c.CredentialsFile = bucket.Credentials(t, "somebody", bucket.SecretKey) },
			[]string{"access key", "correct the access key"},
		},
		"no such bucket": {
			func(c *BucketConfig) { c.Location.Bucket = "no-such-bucket" },
			[]string{"s3://no-such-bucket/refused", "NoSuchBucket", "create the bucket"},
		},
		"another region": {func(c *BucketConfig) { c.Location.Region = "eu-north-7" }, []string{"correct the region"}},
		"TLS is expected": {
			func(c *BucketConfig) { c.Location.Plain = false },
			[]string{"s3://journals/refused", "HTTP response to HTTPS"},
		},
		"nobody listens": {
			func(c *BucketConfig) { c.Location.Endpoint = closedPort(t) },
			[]string{"connection refused", "can be reached", "stays in the journal"},
		},
		"file that is gone": {func(c *BucketConfig) {
			path := bucket.Credentials(t, bucket.AccessKey, bucket.SecretKey)
			c.CredentialsFile = path
			t.Cleanup(func() { _ = os.Remove(path) })
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := opened(t, srv, "refused", c.change)
			if name == "file that is gone" {
				require.NoError(t, os.Remove(b.cfg.CredentialsFile))
				c.want = []string{"no such file", "correct the file of archive-credentials-file"}
			}
			s := b.Store("work", 0)
			_, _, catalogErr := s.Catalog(t.Context())
			_, namesErr := s.Names(t.Context())
			_, getErr := s.Get(t.Context(), "segment-1-0.frames", 0, 1)
			_, partitionsErr := b.Partitions(t.Context(), "work")
			for _, err := range []error{
				catalogErr, namesErr, getErr, partitionsErr,
				s.ReplaceCatalog(t.Context(), 0, []byte("c")), b.Check(t.Context()),
			} {
				for _, want := range c.want {
					require.ErrorContains(t, err, want)
				}
				require.NotErrorIs(t, err, archive.ErrNoObject)
				require.NotContains(t, err.Error(), bucket.SecretKey)
			}
		})
	}
}

// closedPort returns an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	return must.Value(proc.FreeAddr())(t)
}

// TestBucket_TimeLimit: a server that does not answer is not waited for without end.
func TestBucket_TimeLimit(t *testing.T) {
	srv := bucket.Start(t)
	s := opened(t, srv, "frozen").Store("work", 0)
	require.NoError(t, srv.Freeze())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, _, err := s.Catalog(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "can be reached")
	require.NoError(t, srv.Thaw())
	_, _, err = s.Catalog(t.Context())
	require.NoError(t, err)
}

func TestBucket_TLS(t *testing.T) {
	dir := t.TempDir()
	a := must.Value(authority.Open(authority.Config{Dir: dir, Owner: -1, Group: -1}))(t)
	must.Value(a.Issue("s3", []string{"127.0.0.1"}))(t)
	srv := bucket.StartTLS(t, filepath.Join(dir, "ca.pem"), filepath.Join(dir, "s3", "tls.pem"),
		filepath.Join(dir, "s3", "tls.key"))
	require.NoError(t, opened(t, srv, "tls").Check(t.Context()))
	s := opened(t, srv, "tls").Store("work", 0)
	d := must.Value(s.Begin(t.Context(), 1))(t)
	defer d.Close()
	must.Value(d.Add(t.Context(), noise(partBytes+1)))(t)
	must.Value(d.Commit(t.Context()))(t)
	err := opened(t, srv, "tls", func(c *BucketConfig) { c.CAFile = "" }).Check(t.Context())
	require.ErrorContains(t, err, "archive-ca-file")
	must.Fail(OpenBucket(BucketConfig{
		CAFile: filepath.Join(dir, "s3", "tls.key"), CredentialsFile: bucket.Credentials(t, "a", "b"),
	}))(t, "archive-ca-file")
}

// TestBucket_Own: a prefix belongs to one installation.
func TestBucket_Own(t *testing.T) {
	srv := bucket.Start(t)
	keys := []string{"b", "a"}
	first := opened(t, srv, "own")
	first.Own(func() []string { return keys })
	s := first.Store("work", 0)
	require.NoError(t, s.ReplaceCatalog(t.Context(), 0, []byte("c")))
	other := opened(t, srv, "own")
	other.Own(func() []string { return []string{"x"} })
	for name, use := range map[string]func(*BucketStore) error{
		"Catalog":        func(s *BucketStore) error { _, _, err := s.Catalog(t.Context()); return err },
		"Names":          func(s *BucketStore) error { _, err := s.Names(t.Context()); return err },
		"Begin":          func(s *BucketStore) error { _, err := s.Begin(t.Context(), 1); return err },
		"ReplaceCatalog": func(s *BucketStore) error { return s.ReplaceCatalog(t.Context(), 1, nil) },
		"Check":          func(s *BucketStore) error { return s.bucket.Check(t.Context()) },
	} {
		err := use(other.Store("work", 0))
		require.ErrorIs(t, err, ErrForeign, name)
		require.ErrorContains(t, err, "give each installation a prefix of its own")
	}
	keys = []string{"c", "b"}
	_, _, err := s.Catalog(t.Context())
	require.NoError(t, err, "keys change")
	keys = []string{"c"}
	restarted := opened(t, srv, "own")
	restarted.Own(func() []string { return keys })
	_, version, err := restarted.Store("work", 0).Catalog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, version)
}
