package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/storage/datadir"
	"quartet/tests/load"
)

// repeatable is a mutation with a request id, and its first answer.
type repeatable struct {
	call  func(context.Context) (proto.Message, error)
	first proto.Message
}

// caller does one mutation after another and keeps what it was answered.
type caller struct {
	d         *damageable
	item      string
	n         int // of mutations
	revisions int // of the item
	answers   []repeatable
}

// withoutFiles removes from an answer what is read from files, which have other times in a copy.
func withoutFiles(answer proto.Message) {
	if of, is := answer.(interface{ GetWorkItem() *workv1.WorkItem }); is {
		of.GetWorkItem().PlanArtifact = nil
	}
}

// ask runs a mutation until it is answered.
func (c *caller) ask(call func(context.Context) (proto.Message, error)) (proto.Message, error) {
	first, err := load.Again(c.d.ctx, call)
	if err == nil {
		withoutFiles(first)
		c.answers = append(c.answers, repeatable{call, first})
	}
	return first, err
}

// work updates the item n times, and now and then creates an item and completes it.
func (c *caller) work(n int) error {
	objective := strings.Repeat("𝕏", 1980)
	for range n {
		c.n++
		id := fmt.Sprintf("%s-%d", c.item, c.n)
		update := &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: c.item,
			Objective: new(fmt.Sprintf("%d %s", c.n, objective)), RequestId: id,
		}
		if _, err := c.ask(func(ctx context.Context) (proto.Message, error) {
			return c.d.work.UpdateWorkItem(ctx, update)
		}); err != nil {
			return err
		}
		c.revisions++
		if c.n%20 != 0 {
			continue
		}
		create := &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: "of " + id, RequestId: id + "-create"}
		made, err := c.ask(func(ctx context.Context) (proto.Message, error) {
			return c.d.work.CreateWorkItem(ctx, create)
		})
		if err != nil {
			return err
		}
		complete := &workv1.CompleteWorkItemRequest{
			AgentId: "keeper", WorkItemId: made.(*workv1.CreateWorkItemResponse).GetWorkItem().GetWorkItemId(),
			RequestId: id + "-complete",
		}
		if _, err := c.ask(func(ctx context.Context) (proto.Message, error) {
			return c.d.work.CompleteWorkItem(ctx, complete)
		}); err != nil {
			return err
		}
	}
	return nil
}

// callers are some callers at once.
type callers []*caller

// callers returns n callers, each of another item.
func (d *damageable) callers(n int) (all callers) {
	d.t.Helper()
	for _, item := range d.items()[:n] {
		all = append(all, &caller{d: d, item: item, revisions: 1})
	}
	return all
}

// work makes each of them work.
func (all callers) work(n int) {
	t := all[0].d.t
	t.Helper()
	errs := make(chan error, len(all))
	for _, c := range all {
		go func() { errs <- c.work(n) }()
	}
	for range all {
		require.NoError(t, <-errs)
	}
}

// check requires that each item has the revisions that were answered, and that every n-th mutation, repeated, has its
// first answer.
func (all callers) check(n int) {
	t := all[0].d.t
	t.Helper()
	for _, c := range all {
		for i := range c.answers {
			if i%n != 0 && i != len(c.answers)-1 {
				continue
			}
			again := must.Value(load.Again(c.d.ctx, c.answers[i].call))(t)
			withoutFiles(again)
			require.True(t, proto.Equal(c.answers[i].first, again), "first: %v\nagain: %v", c.answers[i].first, again)
		}
		require.Equal(t, c.revisions, c.d.revisions(c.item), c.item)
	}
}

// copy returns callers that go on from here without these.
func (all callers) copy() (others callers) {
	for _, c := range all {
		other := *c
		other.answers = slices.Clone(c.answers)
		others = append(others, &other)
	}
	return others
}

// loaded is what a start says of the journal of work in its log.
type loaded struct {
	Snapshot uint64 // with which the load began
	Frames   int    // that were read behind it
	warned   []string
}

// startLoaded starts the server, none of whose journals may be damaged, and returns what it says of its load.
func (d *damageable) startLoaded() (l loaded) {
	d.t.Helper()
	l, damaged := d.startAnyhow()
	require.Empty(d.t, damaged)
	return l
}

// startAnyhow is startLoaded with journals that may be damaged.
func (d *damageable) startAnyhow() (l loaded, damaged []string) {
	d.t.Helper()
	before := must.Value(os.ReadFile(d.srv.Log))(d.t)
	damaged = d.start()
	all := must.Value(os.ReadFile(d.srv.Log))(d.t)
	for line := range bytes.Lines(all[len(before):]) {
		var entry struct {
			Level, Msg, Plane string
			Snapshot          uint64
			Frames            int
		}
		if json.Unmarshal(line, &entry) != nil || entry.Plane != "work" || !strings.HasPrefix(entry.Msg, "journal: ") {
			continue
		}
		if entry.Level == "warn" {
			l.warned = append(l.warned, entry.Msg)
		}
		if entry.Msg == "journal: loaded" {
			l.Snapshot, l.Frames = entry.Snapshot, entry.Frames
		}
	}
	return l, damaged
}

// snapshotStream returns the directory of the snapshots of work.
func snapshotStream(dataDir string) string {
	return filepath.Join(dataDir, "nats", "jetstream", "$G", "streams", jetlog.SnapshotStream("work", 0))
}

// snapshotBlock returns the newest file of the snapshots of work with its content.
func (d *damageable) snapshotBlock() (string, []byte) {
	d.t.Helper()
	files := must.Value(filepath.Glob(filepath.Join(snapshotStream(d.srv.DataDir), "msgs", "*.blk")))(d.t)
	require.NotEmpty(d.t, files)
	path := slices.Max(files)
	return path, must.Value(os.ReadFile(path))(d.t)
}

// frames returns the newest file of a segment of the journal of work with its content; -1 is the newest segment that
// has frames.
func (d *damageable) frames(segment int) (string, []byte) {
	d.t.Helper()
	all := d.segments()
	if segment < 0 {
		segment = len(all) - 1
	}
	files := must.Value(filepath.Glob(filepath.Join(all[segment].Dir, "msgs", "*.blk")))(d.t)
	require.NotEmpty(d.t, files)
	path := slices.Max(files)
	return path, must.Value(os.ReadFile(path))(d.t)
}

// snapshotBytes returns how large the files of the snapshots of work are.
func (d *damageable) snapshotBytes() (n int64) {
	files, _ := filepath.Glob(filepath.Join(snapshotStream(d.srv.DataDir), "msgs", "*.blk"))
	for _, file := range files {
		if fi, err := os.Stat(file); err == nil {
			n += fi.Size()
		}
	}
	return n
}

// snapshots returns how many snapshots of work the server that runs has written.
func (d *damageable) snapshots() (n float64) {
	d.t.Helper()
	for line := range strings.Lines(scrape(d.t, d.ctx, "http://"+d.srv.HTTP+"/metrics")) {
		if text, is := strings.CutPrefix(line, `quartet_journal_snapshots_total{plane="work"} `); is {
			must.Value(fmt.Sscan(text, &n))(d.t)
		}
	}
	return n
}

// itemsNow returns the keeper's items, as they are served.
func (d *damageable) itemsNow() (all []proto.Message) {
	d.t.Helper()
	req := &workv1.ListWorkItemsRequest{AgentId: "keeper", PageSize: 100}
	for {
		list := must.Value(d.work.ListWorkItems(d.ctx, req))(d.t)
		for _, item := range list.GetWorkItems() {
			item.PlanArtifact = nil // it has the time of a file, which is copied
			all = append(all, item)
		}
		if req.PageToken = list.GetNextPageToken(); req.PageToken == "" {
			return all
		}
	}
}

// requireSame requires that two lists of items are the same.
func requireSame(t *testing.T, want, got []proto.Message, msg string) {
	t.Helper()
	require.Len(t, got, len(want), msg)
	for i := range want {
		require.True(t, proto.Equal(want[i], got[i]), "%s: item %d is\n%v\nand was\n%v", msg, i, got[i], want[i])
	}
}

// verified requires that quartet verify finds nothing.
func (d *damageable) verified() {
	d.t.Helper()
	out, code := d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Zero(d.t, code, out)
}

// within makes errors those of a test within the other, which begins and ends with the server killed.
func (d *damageable) within(t *testing.T) func() {
	outer := d.t
	d.t = t
	return func() {
		d.t = outer
		require.NoError(outer, d.srv.Kill())
	}
}

// copyDir replaces a directory by a copy of another one.
func copyDir(t *testing.T, to, from string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(to))
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
}

// TestR11_SnapshotsOfARunningServer: a server that writes snapshots begins at one with what was answered. Whatever
// happens to the snapshots, it starts with the same state; what happens to the journal is noticed as without them.
func TestR11_SnapshotsOfARunningServer(t *testing.T) {
	t.Parallel() // most of it is waiting
	d := newDamageable(t, "--segment-mib", "1", "--snapshot-mib", "1", "--log-level", "debug")
	all := d.callers(4)
	for range 20 {
		if all.work(20); d.snapshots() >= 2 {
			break
		}
	}
	require.GreaterOrEqual(t, d.snapshots(), 2.0)
	require.NoError(t, d.srv.Kill())
	older := filepath.Join(t.TempDir(), "older")
	copyDir(t, older, snapshotStream(d.srv.DataDir))
	first := d.startLoaded()
	require.NotZero(t, first.Snapshot)
	all.check(10)

	for range 5 {
		all.work(60)
		d.completed("which waiting reads behind a snapshot")
	}
	d.quiet()
	require.NoError(t, d.srv.Kill())
	d.verified()
	whole := filepath.Join(t.TempDir(), "whole")
	copyDir(t, whole, d.srv.DataDir)
	newest := d.startLoaded().Snapshot
	require.Greater(t, newest, first.Snapshot+2)
	all.check(10)
	items := d.itemsNow()
	d.quiet()
	require.NoError(t, d.srv.Interrupt(d.ctx))
	stopped := filepath.Join(t.TempDir(), "stopped") // the NATS server does not read everything again after that
	copyDir(t, stopped, d.srv.DataDir)

	t.Run("damaged snapshots", func(t *testing.T) { d.damagedSnapshots(t, all, whole, stopped, older, items, newest) })
	t.Run("damaged journal", func(t *testing.T) { d.damagedBesideSnapshots(t, all, whole) })
	t.Run("loss", func(t *testing.T) { d.lossBesideSnapshots(t, all, whole) })
	t.Run("restored", func(t *testing.T) { d.restoredWithSnapshots(t, all, whole) })
}

// damagedSnapshots damages the snapshots in several ways.
func (d *damageable) damagedSnapshots(t *testing.T, all callers, killed, stopped, older string, items []proto.Message,
	newest uint64,
) {
	defer d.within(t)()
	flipped := func(at float64) func() {
		return func() {
			path, b := d.snapshotBlock()
			b[int(at*float64(len(b)))] ^= 4
			require.NoError(t, os.WriteFile(path, b, 0o600))
		}
	}
	stream := snapshotStream(d.srv.DataDir)
	for _, c := range []struct {
		name, of string
		harm     func()
		goesOn   bool // with sequence numbers that were used before
	}{
		{"a bit at the beginning", killed, flipped(0.01), false},
		{"a bit in the middle", killed, flipped(0.5), true},
		{"a bit in the middle, not noticed at once", stopped, flipped(0.6), false},
		{"a bit further on, not noticed at once", stopped, flipped(0.9), false},
		{"a bit at the end", stopped, flipped(0.999), false},
		{"cut", killed, func() {
			path, b := d.snapshotBlock()
			require.NoError(t, os.Truncate(path, int64(len(b)*2/3)))
		}, false},
		{"removed", stopped, func() { require.NoError(t, os.RemoveAll(stream)) }, false},
		{"older ones", killed, func() { copyDir(t, stream, older) }, true},
	} {
		copyDir(t, d.srv.DataDir, c.of)
		c.harm()
		l := d.startLoaded()
		t.Logf("%s: %+v", c.name, l)
		requireSame(t, items, d.itemsNow(), c.name)
		require.Equal(t, l.Snapshot < newest, len(l.warned) > 0, "%+v", l)
		require.LessOrEqual(t, l.Snapshot, newest, "the same one, if what was damaged is not needed any more")
		if c.goesOn {
			all.check(100)
			d.goesOn()
		} else {
			require.NoError(t, d.srv.Kill())
		}
	}
}

// damagedBesideSnapshots damages the journal behind the newest snapshot, and long before it.
func (d *damageable) damagedBesideSnapshots(t *testing.T, all callers, whole string) {
	defer d.within(t)()
	all = all.copy()
	copyDir(t, d.srv.DataDir, whole)
	require.NotZero(t, d.startLoaded().Snapshot)
	var path string
	var b []byte
	for behind := false; !behind; {
		d.quiet()
		before := d.snapshots()
		all.work(2)
		d.quiet()
		path, b = d.frames(-1)
		behind = d.snapshots() == before && len(b) > 20_000
	}
	require.NoError(t, d.srv.Kill())
	b[len(b)-6000] ^= 4
	require.NoError(t, os.WriteFile(path, b, 0o600))
	_, damaged := d.startAnyhow()
	require.Len(t, damaged, 1)
	require.Contains(t, damaged[0], "work/0")
	require.NoError(t, d.srv.Kill())

	copyDir(t, d.srv.DataDir, whole)
	path, b = d.frames(1)
	b[len(b)/2] ^= 4
	require.NoError(t, os.WriteFile(path, b, 0o600))
	out, code := d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "work/0")
	l, _ := d.startAnyhow() // the server reads everything in the background, and may have found it already
	require.NotZero(t, l.Snapshot)
	require.Empty(t, l.warned)
	d.item("goes on")
	require.NoError(t, d.srv.Kill())
}

// lossBesideSnapshots gives up frames that the newest snapshot has.
func (d *damageable) lossBesideSnapshots(t *testing.T, all callers, whole string) {
	defer d.within(t)()
	copyDir(t, d.srv.DataDir, whole)
	segments := len(d.segments())
	for _, at := range []int{segments / 2, segments - 2} {
		copyDir(t, d.srv.DataDir, whole)
		path, b := d.frames(at)
		require.NoError(t, os.Truncate(path, int64(len(b)/5)))
		require.NoError(t, os.RemoveAll(datadir.Salvage(d.srv.DataDir)))
		r, code := d.repair("--accept-loss", "work/0", "--apply")
		require.Zero(t, code)
		require.Equal(t, "accepted", r.of("work").Status)
		snapshots := filepath.Join(t.TempDir(), "snapshots")
		copyDir(t, snapshots, snapshotStream(d.srv.DataDir))
		require.NoError(t, os.RemoveAll(snapshotStream(d.srv.DataDir)))
		repaired := filepath.Join(t.TempDir(), "repaired")
		copyDir(t, repaired, d.srv.DataDir)
		state := func() (items []proto.Message, revisions []int) {
			items = d.itemsNow()
			for _, c := range all {
				revisions = append(revisions, d.revisions(c.item))
			}
			return items, revisions
		}
		require.Zero(t, d.startLoaded().Snapshot)
		items, revisions := state()
		require.Less(t, revisions[0], all[0].revisions)
		require.NoError(t, d.srv.Kill())

		copyDir(t, d.srv.DataDir, repaired)
		copyDir(t, snapshotStream(d.srv.DataDir), snapshots)
		l := d.startLoaded()
		t.Logf("cut in segment %d of %d: %+v", at, segments, l)
		gotItems, gotRevisions := state()
		requireSame(t, items, gotItems, "as without snapshots")
		require.Equal(t, revisions, gotRevisions)
		if at == segments-2 {
			d.goesOn()
		} else {
			require.NoError(t, d.srv.Kill())
		}
	}
}

// goesOn requires that new work is in new snapshots, at which the next start begins. It leaves the server killed.
func (d *damageable) goesOn() {
	d.t.Helper()
	more := callers{{d: d, item: d.item("more"), revisions: 1}}
	for range 20 {
		if more.work(40); d.snapshots() >= 1 {
			break
		}
	}
	d.completed("goes on")
	before := d.itemsNow()
	d.quiet()
	require.NoError(d.t, d.srv.Kill())
	l := d.startLoaded()
	require.NotZero(d.t, l.Snapshot)
	require.Empty(d.t, l.warned)
	more.check(10)
	requireSame(d.t, before, d.itemsNow(), "after another start")
	require.NoError(d.t, d.srv.Kill())
	d.verified()
}

// restoredWithSnapshots restores a backup where no snapshots are, and where those are that followed it.
func (d *damageable) restoredWithSnapshots(t *testing.T, all callers, whole string) {
	defer d.within(t)()
	copyDir(t, d.srv.DataDir, whole)
	d.startLoaded()
	items := d.itemsNow()
	backup := filepath.Join(t.TempDir(), "quartet.backup")
	out, code := d.quartet("backup", backup, "--address", d.srv.GRPC)
	require.Zero(t, code, out)
	all.copy().work(150) // which the backup does not have, and snapshots have
	d.quiet()
	require.NotZero(t, d.snapshots())
	require.NoError(t, d.srv.Kill())
	later := filepath.Join(t.TempDir(), "later")
	copyDir(t, later, snapshotStream(d.srv.DataDir))
	for _, with := range []string{"", later} {
		d.restored(backup)
		if with != "" {
			copyDir(t, snapshotStream(d.srv.DataDir), with)
		}
		require.NoError(t, os.WriteFile(d.srv.Log, nil, 0o600))
		l := d.startLoaded()
		t.Logf("restored with %q: %+v", with, l)
		requireSame(t, items, d.itemsNow(), "restored")
		if with != "" {
			all.check(50)
			d.goesOn()
		} else {
			require.NoError(t, d.srv.Kill())
		}
	}
}
