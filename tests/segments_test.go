package tests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/storage/datadir"
	"quartet/tests/proc"
)

// segments returns the segments of the journal of work that have frames.
func (d *damageable) segments() (all []datadir.Segment) {
	d.t.Helper()
	found := must.Value(datadir.Segments(datadir.Store(d.srv.DataDir), "$G", "work"))(d.t)
	for _, s := range found {
		if s.Frames {
			all = append(all, s)
		}
	}
	return all
}

// segmentCount returns how many segments the journal of work has, also while the server runs.
func (d *damageable) segmentCount() int64 {
	found, _ := filepath.Glob(filepath.Join(d.srv.DataDir, "nats", "jetstream", "$G", "streams", "quartet-journal-work-0-*"))
	return int64(len(found))
}

// revisions returns how many revisions the history of an item has.
func (d *damageable) revisions(item string) (n int) {
	d.t.Helper()
	req := &workv1.ListWorkItemHistoryRequest{AgentId: "keeper", WorkItemId: item, PageSize: 500}
	for {
		page := must.Value(d.work.ListWorkItemHistory(d.ctx, req))(d.t)
		n += len(page.GetMutations())
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return n
		}
	}
}

// TestR6_SegmentsOfARunningServer: a journal of many segments is read back,
// followed, verified, backed up and restored as one of a single segment; damage in a segment that is closed is named,
// and repaired from a backup.
func TestR6_SegmentsOfARunningServer(t *testing.T) {
	t.Parallel() // most of it is waiting
	d := newDamageable(t, "--segment-mib", "1")
	all := d.callers(4)
	all.work(240)
	all.check(50)
	require.GreaterOrEqual(t, len(d.segments()), 6)
	d.completed("which waiting reads in the newest segment")
	backup := filepath.Join(t.TempDir(), "quartet.backup")
	out, code := d.quartet("backup", backup, "--address", d.srv.GRPC)
	require.Zero(t, code, out)
	backedUp := all.copy()
	all.work(1)
	d.quiet()
	require.NoError(t, d.srv.Kill())
	out, code = d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Zero(t, code, out)

	closed := func() (string, []byte) { // the block of a segment that is closed
		blocks := must.Value(filepath.Glob(filepath.Join(d.segments()[2].Dir, "msgs", "*.blk")))(t)
		require.Len(t, blocks, 1)
		return blocks[0], must.Value(os.ReadFile(blocks[0]))(t)
	}
	for name, damage := range map[string]func(b []byte) []byte{
		"a bit":             func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
		"its closing frame": func(b []byte) []byte { return b[:len(b)-20] },
		"most of it":        func(b []byte) []byte { return b[:len(b)/5] },
	} {
		path, b := closed()
		require.NoError(t, os.WriteFile(path, damage(b), 0o600), name)
		named := d.start()
		require.Len(t, named, 1, name)
		require.Contains(t, named[0], "work/0", name)
		require.NoError(t, d.srv.Kill())
		r, code := d.repair("--from-backup", backup, "--apply")
		require.Zero(t, code, name)
		require.Equal(t, "repairable", r.of("work").Status, name)
		require.Empty(t, d.start(), name)
		all.check(50)
		d.quiet()
		require.NoError(t, d.srv.Kill())
	}

	// Without a copy of a closed segment, everything behind it is given up, and the journal goes on.
	path, b := closed()
	require.NoError(t, os.Truncate(path, int64(len(b)/5)))
	require.NoError(t, os.RemoveAll(datadir.Salvage(d.srv.DataDir)))
	r, code := d.repair("--accept-loss", "work/0", "--apply")
	require.Zero(t, code)
	require.Equal(t, "accepted", r.of("work").Status)
	require.Len(t, d.segments(), 4, "three, of which the last was cut, and the one in which it goes on")
	out, code = d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Zero(t, code, out)
	_, kept := closed()
	require.Empty(t, d.start())
	_, b = closed()
	require.Equal(t, kept, b, "no frame is missed in the segment that was cut")
	all.work(150)
	require.Greater(t, len(d.segments()), 5)
	d.quiet()
	require.NoError(t, d.srv.Kill())

	// The backup has what there was before.
	d.restored(backup)
	require.Empty(t, d.start())
	backedUp.check(50)
	backedUp.work(100)
	backedUp.check(50)
	require.NoError(t, d.srv.Interrupt(d.ctx))
	out, code = d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Zero(t, code, out)
}

// TestR10_ALostSegment: the stream of a segment is gone, the first one, one in the middle or the newest. What is
// missing is named, what is left is served, and a backup has it. What was written after the backup is lost with the
// newest segment only, once that is accepted.
func TestR10_ALostSegment(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	d := newDamageable(t, "--segment-mib", "1")
	callers := d.callers(4)
	item := callers[0].item
	callers.work(200)
	require.GreaterOrEqual(t, len(d.segments()), 4)
	backup := filepath.Join(t.TempDir(), "quartet.backup")
	out, code := d.quartet("backup", backup, "--address", d.srv.GRPC)
	require.Zero(t, code, out)
	const had = 1 + 200
	require.Equal(t, had, d.revisions(item))
	d.quiet()
	require.NoError(t, d.srv.Kill())

	lose := func(name string, which func(all []datadir.Segment) datadir.Segment) {
		require.NoError(t, os.RemoveAll(which(d.segments()).Dir), name)
		named := d.start()
		require.Len(t, named, 1, name)
		require.Contains(t, named[0], "the journal of work/0 is damaged", name)
		t.Log(name, named)
		_, err := d.work.UpdateWorkItem(d.ctx, &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: item, Objective: new("of a journal with a hole"),
		})
		refused(t, true, err)
		must.Value(d.agents.EnqueueMessage(d.ctx, &agentv1.EnqueueMessageRequest{
			AgentId: "keeper", Text: "served without work",
		}))(t, name)
		require.NoError(t, d.srv.Kill())
		out, code := d.quartet("verify", "--data-dir", d.srv.DataDir)
		require.Equal(t, 1, code, "%s: %s", name, out)
	}
	mended := func(name string, args ...string) repaired {
		r, code := d.repair(append(args, "--apply")...)
		require.Zero(t, code, name)
		require.Empty(t, d.start(), name)
		return r
	}
	there := func(name string) {
		require.Equal(t, had, d.revisions(item), name)
		require.NoError(t, d.srv.Kill())
		out, code := d.quartet("verify", "--data-dir", d.srv.DataDir)
		require.Zero(t, code, "%s: %s", name, out)
	}
	newest := func(all []datadir.Segment) datadir.Segment { return all[len(all)-1] }
	for name, which := range map[string]func(all []datadir.Segment) datadir.Segment{
		"the first":  func(all []datadir.Segment) datadir.Segment { return all[0] },
		"one inside": func(all []datadir.Segment) datadir.Segment { return all[2] },
	} {
		lose(name, which)
		require.Equal(t, "repairable", mended(name, "--from-backup", backup).of("work").Status, name)
		there(name)
	}

	// The newest one has frames of what was consumed since the backup.
	lose("the newest", newest)
	r, code := d.repair("--from-backup", backup, "--apply")
	require.Equal(t, 1, code)
	require.Equal(t, "lost", r.of("work").Status)
	require.Equal(t, "accepted", mended("the newest", "--from-backup", backup, "--accept-loss", "work/0").of("work").
		Status)
	there("the newest")

	require.Empty(t, d.start())
	callers.work(20)
	d.quiet()
	require.NoError(t, d.srv.Kill())
	lose("the newest, without a copy", newest)
	require.Equal(t, "accepted", mended("without a copy", "--accept-loss", "work/0").of("work").Status)
	left := d.revisions(item)
	require.Less(t, left, had+20)
	require.Greater(t, left, had/2)
	callers.work(50)
	require.Equal(t, left+50, d.revisions(item))
}
