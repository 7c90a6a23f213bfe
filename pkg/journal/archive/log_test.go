package archive_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

const partition = "test/0"

// written is a log of some segments.
type written struct {
	live   *journaltest.MemLog
	writer *framelog.Writer
	ends   []framelog.End
	frames map[uint64]framelog.Frame
}

func newWritten() *written {
	w := &written{live: journaltest.NewMemLog(), frames: map[uint64]framelog.Frame{}}
	n := 0
	w.writer = &framelog.Writer{
		Log: w.live, Partition: partition, Timeout: 5 * time.Second, Logger: zap.NewNop(), Secret: [32]byte{9},
		NewID: func(string) string { n++; return fmt.Sprintf("s%d", n) },
	}
	return w
}

func (w *written) end() framelog.End {
	if len(w.ends) == 0 {
		return framelog.End{}
	}
	return w.ends[len(w.ends)-1]
}

// write writes a frame.
func (w *written) write(t *testing.T, body string) {
	f := framelog.Frame{ID: w.writer.NewID(""), Generation: 3, Body: []byte(body)}
	c := framelog.NewContent(w.writer.Salt(f.ID))
	c.Add(f.Body)
	v := w.writer.Write(t.Context(), w.end(), f, c)
	require.Equal(t, framelog.Stored, v.Outcome, v.Err)
	w.stored(t, v.End)
}

func (w *written) stored(t *testing.T, end framelog.End) {
	f := must.Value(w.live.Get(t.Context(), end.Seq))(t)
	if len(f.Body) == 0 {
		f.Body = nil
	}
	w.ends, w.frames[end.Seq] = append(w.ends, end), f
}

// close closes the segment.
func (w *written) close(t *testing.T) {
	first := must.Value(w.live.Prepare(t.Context(), w.end().Segment))(t)
	v := w.writer.CloseSegment(t.Context(), w.end(), 3, first)
	require.Equal(t, framelog.Stored, v.Outcome, v.Err)
	w.stored(t, v.End)
}

// segments writes some segments and closes all but the last one.
func (w *written) segments(t *testing.T, n, frames, bytes int) {
	for i := range n {
		if i > 0 {
			w.close(t)
		}
		for j := range frames {
			w.write(t, fmt.Sprintf("line %d of %d %s\nanother\n", j, i, strings.Repeat("x", bytes)))
		}
		w.write(t, "")
	}
}

// archived archives all that lies before the last segment.
func (w *written) archived(t *testing.T, l *archive.Log) {
	a := archive.Start(l, time.Now, zap.NewExample(), nil)
	defer a.Stop()
	a.Below(w.end())
	require.NoError(t, a.Settle(t.Context()))
}

// reads reads the log from each end, in each way, and requires the frames that were written.
func (w *written) reads(t *testing.T, l framelog.Log) {
	t.Helper()
	for i, end := range w.ends {
		f := must.Value(l.Get(t.Context(), end.Seq))(t)
		requireFrame(t, w.frames[end.Seq], f)
		for _, read := range []func(context.Context, uint64, func(uint64, framelog.Frame) error) error{
			l.Scan, l.Follow,
		} {
			at := i
			err := read(t.Context(), end.Seq+1, func(seq uint64, f framelog.Frame) error {
				at++
				require.Equal(t, w.ends[at].Seq, seq)
				requireFrame(t, w.frames[seq], f)
				if at == len(w.ends)-1 {
					return errEnough
				}
				return nil
			})
			if i < len(w.ends)-1 {
				require.ErrorIs(t, err, errEnough)
			}
			if i == len(w.ends)-1 {
				break // Follow would wait
			}
		}
	}
}

func requireFrame(t *testing.T, want, got framelog.Frame) {
	t.Helper()
	if len(got.Body) == 0 {
		got.Body = nil
	}
	require.Equal(t, want, got)
}

var errEnough = errors.New("enough")

func TestLog_ReadsThrough(t *testing.T) {
	for name, sizes := range map[string][3]int{
		"small": {4, 3, 10}, "several objects": {3, 12, 150_000},
		"one frame": {5, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWritten()
			w.segments(t, sizes[0], sizes[1], sizes[2])
			store := archive.NewDirectory(t.TempDir(), "test", 0)
			l := archive.NewLog(w.live, store, partition)
			w.reads(t, l)
			w.archived(t, l)
			segments := must.Value(w.live.Segments(t.Context()))(t)
			require.Len(t, segments, 1, "only the segment that is written to is left")
			w.reads(t, l)
			w.reads(t, archive.NewLog(w.live, store, partition))

			w.close(t)
			w.segments(t, 2, sizes[1], sizes[2])
			w.archived(t, l)
			w.reads(t, l)
			require.Len(t, must.Value(l.Catalog(t.Context()))(t).Segments, sizes[0]+1)
			_, err := l.Get(t.Context(), w.ends[0].Seq+1)
			if w.ends[1].Seq != w.ends[0].Seq+1 {
				require.ErrorIs(t, err, framelog.ErrNoFrame)
			}
		})
	}
}

// TestLog_FollowsWhileArchived follows a log from its beginning, slowly, while its segments are archived.
func TestLog_FollowsWhileArchived(t *testing.T) {
	w := newWritten()
	w.segments(t, 3, 4, 10)
	l := archive.NewLog(w.live, archive.NewDirectory(t.TempDir(), "test", 0), partition)
	go1, read := make(chan struct{}), make(chan framelog.End, 100)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- framelog.Follow(ctx, l, partition, framelog.End{}, func(at framelog.End, _ framelog.Frame) error {
			<-go1
			read <- at
			return nil
		})
	}()
	go1 <- struct{}{}
	w.archived(t, l)
	w.close(t)
	w.segments(t, 3, 4, 10)
	w.archived(t, l)
	close(go1)
	for _, want := range w.ends {
		require.Equal(t, want, <-read)
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
}

// TestLog_Damaged changes each byte of a stored segment, or removes it: readers are told, and never get other frames.
func TestLog_Damaged(t *testing.T) {
	w := newWritten()
	w.segments(t, 2, 3, 10)
	dir := t.TempDir()
	store := archive.NewDirectory(dir, "test", 0)
	l := archive.NewLog(w.live, store, partition)
	w.archived(t, l)
	files := must.Value(filepath.Glob(filepath.Join(dir, "test-0", "segment-*")))(t)
	require.Len(t, files, 1)
	catalogs := must.Value(filepath.Glob(filepath.Join(dir, "test-0", "catalog-*")))(t)
	require.Len(t, catalogs, 1)
	for _, file := range append(files, catalogs...) {
		intact := must.Value(os.ReadFile(file))(t)
		end := len(intact)
		if file == files[0] {
			end -= 8 // the length of the index is for rebuilding
		}
		for i := range end {
			changed := append([]byte(nil), intact...)
			changed[i] ^= 1 << (i % 8)
			require.NoError(t, os.WriteFile(file, changed, 0o600))
			err := archive.NewLog(w.live, store, partition).
				Scan(t.Context(), 1, func(seq uint64, f framelog.Frame) error {
					requireFrame(t, w.frames[seq], f)
					return nil
				})
			var broken *framelog.Broken
			require.ErrorAs(t, err, &broken, "byte %d of %s", i, file)
			require.Equal(t, partition, broken.Partition)
		}
		require.NoError(t, os.WriteFile(file, intact, 0o600))
	}
	w.reads(t, archive.NewLog(w.live, store, partition))
	require.NoError(t, os.Remove(catalogs[0]))
	var broken *framelog.Broken
	require.ErrorAs(t, archive.NewLog(w.live, store, partition).
		Scan(t.Context(), 1, func(uint64, framelog.Frame) error { return nil }), &broken)
	require.ErrorContains(t, broken, "segments from 0 on are neither in the log nor in its archive")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "test-0", "segment-1-other.frames"),
		[]byte("no index is in here"), 0o600))
	stored, unreadable, err := archive.Stored(t.Context(), store, partition)
	require.NoError(t, err)
	require.Len(t, stored, 1)
	require.Len(t, unreadable, 1)
	must.Value(archive.Replace(t.Context(), store, partition, 0, slices.Collect(maps.Values(stored))))(t)
	w.reads(t, archive.NewLog(w.live, store, partition))
}

// TestArchiver_AnothersArchive: a segment is not dropped because the archive of another journal has one of the same
// number.
func TestArchiver_AnothersArchive(t *testing.T) {
	other, w := newWritten(), newWritten()
	other.segments(t, 3, 2, 10)
	w.write(t, "its own")
	w.segments(t, 3, 2, 10)
	store := &journaltest.MemArchive{}
	other.archived(t, archive.NewLog(other.live, store, partition))
	core, logs := observer.New(zap.WarnLevel)
	failed := make(chan struct{}, 1)
	logger := zap.New(core, zap.Hooks(func(zapcore.Entry) error {
		select {
		case failed <- struct{}{}:
		default:
		}
		return nil
	}))
	before := must.Value(w.live.Segments(t.Context()))(t)
	a := archive.Start(archive.NewLog(w.live, store, partition), time.Now, logger, nil)
	a.Below(w.end())
	<-failed
	a.Stop()
	require.ErrorContains(t, logs.All()[0].Context[0].Interface.(error), "another journal has its archive there")
	require.Equal(t, before, must.Value(w.live.Segments(t.Context()))(t))
}

// damagedAt is a log with a frame of which the link has changed.
type damagedAt struct {
	*journaltest.MemLog
	seq uint64
}

// Get implements framelog.Log.
func (d damagedAt) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	f, err := d.MemLog.Get(ctx, seq)
	if seq == d.seq {
		f.Link.Hash[0] ^= 1
	}
	return f, err
}

// TestArchiver_DropsADamagedSegment: that the last frame of a segment is damaged in the log does not keep the segment
// there, since what is archived was verified.
func TestArchiver_DropsADamagedSegment(t *testing.T) {
	w := newWritten()
	w.segments(t, 3, 2, 10)
	segments := must.Value(w.live.Segments(t.Context()))(t)
	f := must.Value(w.live.Get(t.Context(), w.ends[3].Seq))(t)
	require.Equal(t, segments[1].First, f.Link.Next, "it closes the first segment")
	w.archived(t, archive.NewLog(damagedAt{w.live, w.ends[3].Seq}, &journaltest.MemArchive{}, partition))
	require.Equal(t, segments[2:], must.Value(w.live.Segments(t.Context()))(t))
}

// TestArchiver_Repeats ends an archiver at each call of its store and of the log, with and without the effect of that
// call.
func TestArchiver_Repeats(t *testing.T) {
	for _, effect := range []bool{false, true} {
		calls := 0
		for reached := true; reached; calls++ {
			w := newWritten()
			w.segments(t, 3, 2, 10)
			inner := archive.NewDirectory(t.TempDir(), "test", 0)
			f := &failing{left: calls, effect: effect, failed: make(chan struct{})}
			a := archive.Start(archive.NewLog(failingLive{w.live, f}, failingStore{inner, f}, partition), time.Now,
				zap.NewNop(), nil)
			a.Below(w.end())
			ctx, cancel := context.WithCancel(t.Context())
			settled := make(chan error, 1)
			go func() { settled <- a.Settle(ctx) }()
			select {
			case <-f.failed:
			case err := <-settled:
				require.NoError(t, err)
				reached = false
			}
			cancel()
			a.Stop()
			l := archive.NewLog(w.live, inner, partition)
			w.reads(t, l)
			w.archived(t, l)
			w.reads(t, l)
			names := must.Value(inner.Names(t.Context()))(t)
			require.Len(t, names, 2, "nothing is left of the attempt that failed")
		}
		require.Greater(t, calls, 20)
	}
}

// failing makes calls fail once some have succeeded. The first one that fails may have its effect.
type failing struct {
	left   int
	effect bool
	failed chan struct{}
}

var errFailing = errors.New("failing")

// call counts a call, and makes it unless it fails.
func (f *failing) call(do func() error) error {
	f.left--
	switch {
	case f.left >= 0:
		return do()
	case f.left == -1:
		defer close(f.failed)
		if f.effect {
			_ = do()
		}
	}
	return errFailing
}

type (
	failingStore struct {
		archive.Store
		*failing
	}
	failingLive struct {
		archive.Live
		*failing
	}
)

func (f failingStore) Begin(ctx context.Context, segment uint64) (d archive.Draft, err error) {
	err = f.call(func() (err error) { d, err = f.Store.Begin(ctx, segment); return err })
	return &failingDraft{d, f.failing}, err
}

func (f failingStore) Get(ctx context.Context, name string, at uint64, n int64) (b []byte, err error) {
	err = f.call(func() (err error) { b, err = f.Store.Get(ctx, name, at, n); return err })
	return b, err
}

func (f failingStore) Names(ctx context.Context) (all map[string]uint64, err error) {
	err = f.call(func() (err error) { all, err = f.Store.Names(ctx); return err })
	return all, err
}

func (f failingStore) Remove(ctx context.Context, name string) error {
	return f.call(func() error { return f.Store.Remove(ctx, name) })
}

func (f failingStore) Catalog(ctx context.Context) (b []byte, version uint64, err error) {
	err = f.call(func() (err error) { b, version, err = f.Store.Catalog(ctx); return err })
	return b, version, err
}

func (f failingStore) ReplaceCatalog(ctx context.Context, version uint64, content []byte) error {
	return f.call(func() error { return f.Store.ReplaceCatalog(ctx, version, content) })
}

func (f failingLive) Segments(ctx context.Context) (all []framelog.Segment, err error) {
	err = f.call(func() (err error) { all, err = f.Live.Segments(ctx); return err })
	return all, err
}

func (f failingLive) Drop(ctx context.Context, number uint64) error {
	return f.call(func() error { return f.Live.Drop(ctx, number) })
}

func (f failingLive) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	return f.call(func() error { return f.Live.Scan(ctx, from, fn) })
}

type failingDraft struct {
	archive.Draft
	of *failing
}

func (d *failingDraft) Add(ctx context.Context, object []byte) (at uint64, err error) {
	err = d.of.call(func() (err error) { at, err = d.Draft.Add(ctx, object); return err })
	return at, err
}

func (d *failingDraft) Commit(ctx context.Context) (name string, err error) {
	err = d.of.call(func() (err error) { name, err = d.Draft.Commit(ctx); return err })
	return name, err
}

func (d *failingDraft) Close() { d.Draft.Close() }
