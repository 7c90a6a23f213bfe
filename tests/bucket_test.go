package tests

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/clock"
	"quartet/pkg/journal/archive"
	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	"quartet/tests/bucket"
	"quartet/tests/proc"
)

// inBucket returns the catalog of the journal of work in a bucket.
func (d *damageable) inBucket(b *archives.Bucket) *archive.Catalog {
	d.t.Helper()
	return must.Value(archive.Read(d.ctx, b.Store("work", 0), "work/0"))(d.t)
}

// TestR12_ArchiveInABucket: a server archives into a bucket, whose server is killed meanwhile and comes back. What lies
// in the bucket is read as what lies in the log: histories, repeated requests, and the whole journal where there is no
// snapshot. It is backed up, verified, repaired and restored.
func TestR12_ArchiveInABucket(t *testing.T) {
	s3 := bucket.Start(t)
	credentials := bucket.Credentials(t, bucket.AccessKey, bucket.SecretKey)
	t.Setenv("QUARTET_ARCHIVE", s3.URL("prod"))
	t.Setenv("QUARTET_ARCHIVE_CREDENTIALS_FILE", credentials)
	location := must.Value(archives.ParseLocation(s3.URL("prod")))(t)
	b, err := archives.OpenBucket(archives.BucketConfig{
		Location: location, CredentialsFile: credentials, Now: clock.System().Now,
	})
	require.NoError(t, err)

	d := newDamageable(t, "--segment-mib", "1", "--snapshot-mib", "1", "--log-level", "debug")
	all := d.callers(2)
	for round := 0; round < 40 && len(d.inBucket(b).Segments) < 1; round++ {
		all.work(40)
	}
	had := len(d.inBucket(b).Segments)
	require.NoError(t, s3.Kill())
	all.work(150) // calls do not wait for the bucket
	out, _ := d.quartet("status", "--address", d.srv.GRPC)
	require.Regexp(t, `the archive of [a-z]+/0 cannot be read: .* connection refused\n +fix: see whether `+s3.Addr+
		` works`, out)
	require.Equal(t, 1, strings.Count(out, "cannot be read: "), "once for all journals: %s", out)
	s3.Run(t)
	// what may be archived follows from snapshots, which are taken of what is written
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for round := 0; len(d.inBucket(b).Segments) < max(had+1, 4); round++ {
		require.Less(t, round, 1000, "nothing is archived")
		all.work(4)
		<-tick.C
	}
	all.check(31)
	entries := must.Value(os.ReadDir(datadir.Archive(d.srv.DataDir)))(t)
	require.Len(t, entries, 1, "it names the bucket; no archive is there")
	out, _ = d.quartet("doctor", "--address", d.srv.GRPC)
	require.Regexp(t, `archive +s3://journals/prod of 127\.0\.0\.1:\d+ can be written and read`, out)
	require.NotContains(t, out, "cannot be used")

	items := d.itemsNow()
	backup := filepath.Join(t.TempDir(), "quartet.backup")
	out, code := d.quartet("backup", backup, "--address", d.srv.GRPC)
	require.Zero(t, code, out)
	d.quiet()
	require.NoError(t, d.srv.Kill())
	d.verified()
	out, _ = d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Regexp(t, `work/0 .* archived: \d+ frames, \d+ segments?`, out)

	d.readsAllInBucket(t, s3, all)
	requireSame(t, items, d.itemsNow()[:len(items)], "from the bucket")
	require.NoError(t, d.srv.Kill())
	d.mendsBucket(t, s3, backup, all)
	d.restoresIntoBucket(t, s3, backup)
	d.refusesAnotherPlace(t)
}

// readsAllInBucket starts the server without snapshots, so that it reads its journal from the beginning, while the
// bucket cannot be reached: it says so, and is ready when the bucket is back.
func (d *damageable) readsAllInBucket(t *testing.T, s3 *bucket.Server, all callers) {
	require.NoError(t, s3.Kill())
	require.NoError(t, os.RemoveAll(snapshotStream(d.srv.DataDir)))
	require.NoError(t, os.WriteFile(d.srv.Log, nil, 0o600))
	d.srv.Ready = func(context.Context) bool {
		said, err := os.ReadFile(d.srv.Log)
		return err == nil && strings.Contains(string(said), "the bucket of the archive cannot be used") &&
			strings.Contains(string(said), "journal: loading continues")
	}
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	require.NoError(t, d.srv.Start(ctx))
	require.False(t, proc.OK(d.ctx, "http://"+d.srv.HTTP+"/readyz"))
	s3.Run(t)
	require.Eventually(t, func() bool { return proc.OK(d.ctx, "http://"+d.srv.HTTP+"/readyz") }, time.Minute,
		50*time.Millisecond)
	require.Zero(t, d.lastLoad().Snapshot)
	require.Greater(t, d.lastLoad().Frames, 200, "the whole journal is read")
	all.check(31)
}

// lastLoad returns what the log says of the load of the journal of work.
func (d *damageable) lastLoad() (l loaded) {
	d.t.Helper()
	said := must.Value(os.ReadFile(d.srv.Log))(d.t)
	for line := range strings.Lines(string(said)) {
		var entry struct {
			Msg, Plane string
			Snapshot   uint64
			Frames     int
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Plane == "work" && entry.Msg == "journal: loaded" {
			l.Snapshot, l.Frames = entry.Snapshot, entry.Frames
		}
	}
	return l
}

// mendsBucket changes an archived segment on the server's disk. It is found, named and repaired from a backup.
func (d *damageable) mendsBucket(t *testing.T, s3 *bucket.Server, backup string, all callers) {
	files := must.Value(filepath.Glob(s3.Object("prod/work-0/segment-2-*")))(t)
	require.Len(t, files, 1)
	changed := slices.Clone(must.Value(os.ReadFile(files[0]))(t))
	changed[len(changed)/3] ^= 1
	require.NoError(t, os.WriteFile(files[0], changed, 0o600))
	out, code := d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Equal(t, 1, code, out)
	require.Regexp(t,
		`damaged +work/0 .*\n +the journal of work/0 is damaged: frames behind \d+ up to \d+ .* in segment 2, segment-2-[0-9a-f]+\.frames of s3://journals/prod/work-0`, out)
	r, code := d.repair("--from-backup", backup, "--apply")
	require.Zero(t, code, r)
	require.NotEmpty(t, r.Replaced)
	d.verified()
	aside := must.Value(filepath.Glob(filepath.Join(r.Replaced, "archive", "work-0", filepath.Base(files[0]))))(t)
	require.Len(t, aside, 1)
	require.Equal(t, changed, must.Value(os.ReadFile(aside[0]))(t))
	require.NoFileExists(t, files[0])
	require.Empty(t, d.start())
	all.check(31)
	d.quiet()
	require.NoError(t, d.srv.Kill())
}

// restoresIntoBucket restores a backup with a prefix of its own, and not with one where there is an archive.
func (d *damageable) restoresIntoBucket(t *testing.T, s3 *bucket.Server, backup string) {
	key := must.Value(os.ReadFile(filepath.Join(d.srv.DataDir, "key")))(t)
	dir := filepath.Join(t.TempDir(), "restored")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "key"), key, 0o600))
	out, code := d.quartet("restore", backup, "--data-dir", dir)
	require.Equal(t, 1, code)
	require.Contains(t, out, "has segments already")
	out, code = d.quartet("restore", backup, "--data-dir", dir, "--archive", s3.URL("restored"))
	require.Zero(t, code, out)
	out, code = d.quartet("verify", "--data-dir", dir, "--archive", s3.URL("restored"))
	require.Zero(t, code, out)
}

// refusesAnotherPlace starts servers whose settings do not fit the bucket.
func (d *damageable) refusesAnotherPlace(t *testing.T) {
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	other := must.Value(proc.NewQuartet(d.srv.Binary, filepath.Join(t.TempDir(), "data"), ""))(t)
	require.ErrorContains(t, other.Start(ctx), "another installation has its archive there")
	t.Setenv("QUARTET_ARCHIVE", "")
	t.Setenv("QUARTET_ARCHIVE_CREDENTIALS_FILE", "")
	require.ErrorContains(t, d.srv.Start(ctx), "the archives of this installation are in s3://journals/prod")
}

// archived returns the catalog of the journal of work.
func (d *damageable) archived() *archive.Catalog {
	d.t.Helper()
	c := must.Value(archive.Read(d.ctx, archive.NewDirectory(datadir.Archive(d.srv.DataDir), "work", 0), "work/0"))(d.t)
	return c
}

// archivedBytes returns how large the files of the archive of work are.
func (d *damageable) archivedBytes() (n int64) {
	files, _ := filepath.Glob(filepath.Join(datadir.Archive(d.srv.DataDir), "work-0", "*"))
	for _, file := range files {
		if fi, err := os.Stat(file); err == nil {
			n += fi.Size()
		}
	}
	return n
}

// TestR12_ArchiveOfARunningServer: what lies in the archive is
// read as what lies in the log: histories, repeated requests, events from the beginning, and the whole journal where
// there is no snapshot.
func TestR12_ArchiveOfARunningServer(t *testing.T) {
	t.Parallel() // most of it is waiting
	d := newDamageable(t, "--segment-mib", "1", "--snapshot-mib", "1", "--log-level", "debug")
	all := d.callers(4)
	for round := 0; round < 40 && len(d.archived().Segments) < 4; round++ {
		all.work(40)
	}
	all.work(20)
	archived := d.archived()
	require.GreaterOrEqual(t, len(archived.Segments), 4)
	all.check(7)
	d.toldOfArchive()
	items := d.itemsNow()
	d.completed("which waiting reads in the newest segment")

	d.quiet()
	require.NoError(t, d.srv.Kill())
	require.NoError(t, os.RemoveAll(snapshotStream(d.srv.DataDir)))
	l := d.startLoaded()
	require.Zero(t, l.Snapshot)
	require.Greater(t, l.Frames, 400, "the whole journal is read")
	requireSame(t, items, d.itemsNow()[:len(items)], "from the archive alone")
	all.check(31)

	require.NoError(t, d.srv.Kill())
	require.NoError(t, os.RemoveAll(snapshotStream(d.srv.DataDir)))
	files := must.Value(filepath.Glob(filepath.Join(datadir.Archive(d.srv.DataDir), "work-0", "segment-2-*")))(t)
	require.Len(t, files, 1)
	intact := must.Value(os.ReadFile(files[0]))(t)
	changed := slices.Clone(intact)
	changed[len(changed)/3] ^= 1
	d.verified()
	require.NoError(t, os.WriteFile(files[0], changed, 0o600))
	out, code := d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Equal(t, 1, code, out)
	require.Regexp(t,
		`damaged +work/0 .* archived: \d+ frames, \d+ segments?\n +the journal of work/0 is damaged: frames behind \d+ up to \d+ .* in segment 2, .*/archive/work-0/segment-2-`, out)
	require.Contains(t, out, "damaged: 1; other streams: 2, damaged: 0")
	_, damaged := d.startAnyhow()
	require.Len(t, damaged, 1)
	require.Contains(t, damaged[0], "work/0")
	require.NoError(t, d.srv.Kill())
	require.NoError(t, os.WriteFile(files[0], intact, 0o600))
	require.Zero(t, d.startLoaded().Snapshot)
	all.check(31)
	d.goesOn()
}

// toldOfArchive looks whether an operator is told what the journal of work takes: by `quartet status`, `quartet doctor`
// and metrics.
func (d *damageable) toldOfArchive() {
	d.t.Helper()
	told, code := d.quartet("status", "--address", d.srv.GRPC, "-o", "json")
	require.Zero(d.t, code, told)
	var resp identityv1.ListProcessesResponse
	require.NoError(d.t, protojson.Unmarshal([]byte(told), &resp))
	i := slices.IndexFunc(resp.GetJournals(), func(u *identityv1.JournalUsage) bool { return u.GetPlane() == "work" })
	u := resp.GetJournals()[i]
	require.GreaterOrEqual(d.t, u.GetArchivedSegments(), int32(4))
	require.Greater(d.t, u.GetArchivedFrameBytes(), 4*u.GetArchivedBytes())
	require.Positive(d.t, u.GetArchivedBytes())
	require.Positive(d.t, u.GetSegments())
	require.Positive(d.t, u.GetBytes())
	require.Positive(d.t, u.GetSnapshotBytes())
	require.WithinDuration(d.t, time.Now(), u.GetSnapshotAt().AsTime(), 30*time.Minute)
	told, _ = d.quartet("status", "--address", d.srv.GRPC)
	require.Regexp(d.t,
		`(?m)^work/0 +\d+ +\d+\.\d MiB +\d+ (seconds?|minutes?) ago +\d+ segments?, \d+\.\d MiB +\d+\.\d MiB$`, told)
	require.Regexp(d.t, `(?m)^identity/0 +1 +0\.0 MiB +none *$`, told)
	told, _ = d.quartet("doctor", "--address", d.srv.GRPC)
	require.Regexp(d.t, `segments +7 journals have \d+ segments? with \d+\.\d MiB, and \d+ archived with \d+\.\d MiB`,
		told)
	resp2 := must.Value(http.Get("http://" + d.srv.HTTP + "/metrics"))(d.t)
	defer resp2.Body.Close()
	text := must.Value(io.ReadAll(resp2.Body))(d.t)
	require.Regexp(d.t, `(?m)^quartet_journal_segments\{partition="work/0"\} [1-9]`, string(text))
	require.Regexp(d.t, `(?m)^quartet_store_full_seconds \+Inf$`, string(text))
}
