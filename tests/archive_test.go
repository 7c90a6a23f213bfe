package tests

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/journal/archive"
	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/storage/datadir"
)

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
