package jetlog_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// asked counts how often a frame is asked for.
type asked struct {
	framelog.Log
	gets atomic.Int32
}

// Get implements framelog.Log.
func (a *asked) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	a.gets.Add(1)
	return a.Log.Get(ctx, seq)
}

// TestR10_AFrameThatIsGoneIsDefinite: the only server of a log is asked once about the frame that a follower read last;
// so it is about a number at which another partition has a frame.
func TestR10_AFrameThatIsGoneIsDefinite(t *testing.T) {
	nc := natsdtest.Connect(t)
	_, err := jetlog.Ensure(t.Context(), nc, "test", 1, 2)
	require.NoError(t, err)
	var logs [2]*asked
	for i := range logs {
		log := must.Value(jetlog.New(nc, "test", i))(t)
		logs[i] = &asked{Log: log}
		must.Value(log.Append(t.Context(), 0, framelog.Frame{ID: "f", Generation: 1, Body: []byte("{}\n")}))(t)
	}
	for _, seq := range []uint64{2, 3} {
		logs[0].gets.Store(0)
		var broken *framelog.Broken
		err = framelog.Follow(t.Context(), logs[0], "test/0", framelog.End{Seq: seq, WalSeq: 7, Hash: framelog.Hash{1}},
			func(framelog.End, framelog.Frame) error { return nil })
		require.ErrorAs(t, err, &broken)
		require.ErrorContains(t, err, "is gone")
		require.EqualValues(t, 1, logs[0].gets.Load())
		_, err = logs[0].Get(t.Context(), seq)
		require.ErrorIs(t, err, framelog.ErrGone)
	}
}

// TestLog_DroppedWhileRead drops a segment while it is read: whoever reads it is told, and does not wait for it without
// end.
func TestLog_DroppedWhileRead(t *testing.T) {
	for name, read := range map[string]func(l *jetlog.Log, fn func(uint64, framelog.Frame) error) error{
		"Scan": func(l *jetlog.Log, fn func(uint64, framelog.Frame) error) error {
			return l.Scan(t.Context(), 1, fn)
		},
		"Follow": func(l *jetlog.Log, fn func(uint64, framelog.Frame) error) error {
			return l.Follow(t.Context(), 1, fn)
		},
	} {
		t.Run(name, func(t *testing.T) {
			nc := natsdtest.Connect(t)
			must.Value(jetlog.Ensure(t.Context(), nc, "test", 1, 1))(t)
			log := must.Value(jetlog.New(nc, "test", 0))(t)
			const frames = 48 // more than a reader has ahead
			for seq := range uint64(frames) {
				must.Value(log.Append(t.Context(), seq, framelog.Frame{
					ID: "f", Generation: 1, Body: make([]byte, 1<<20),
				}))(t)
			}
			must.Value(log.Prepare(t.Context(), 0))(t)
			must.Value(log.Append(t.Context(), frames, framelog.Frame{ID: "g", Generation: 1, Link: framelog.Link{
				Segment: 1,
			}}))(t)
			reader := must.Value(jetlog.New(nc, "test", 0))(t)
			last := uint64(0)
			require.ErrorIs(t, read(reader, func(seq uint64, _ framelog.Frame) error {
				require.Equal(t, last+1, seq)
				if last = seq; seq == 1 {
					require.NoError(t, log.Drop(t.Context(), 0))
				}
				return nil
			}), framelog.ErrTrimmed)
			require.Less(t, last, uint64(frames))
			require.ErrorIs(t, read(reader, func(uint64, framelog.Frame) error { return nil }), framelog.ErrTrimmed)
		})
	}
}

// TestASegmentIsDroppedWhileItIsRead: a reader to which the server did not send all of a segment yet is told when it is
// dropped, and a log with an archive goes on there.
func TestASegmentIsDroppedWhileItIsRead(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	for name, open := range map[string]bool{"closed": false, "written to at first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc := natsdtest.Connect(t)
			must.Value(jetlog.Ensure(t.Context(), nc, "test", 1, 1))(t)
			log := must.Value(jetlog.New(nc, "test", 0))(t)
			j := journaltest.NewArchivedJournal(log, archive.NewDirectory(t.TempDir(), "test", 0), "test/0")
			j.Write(t, 40, 1<<20)
			drop := func() {
				j.Close(t)
				j.Write(t, 1, 10)
			}
			if !open {
				drop()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			read := 0
			err := framelog.Follow(ctx, j.Log, "test/0", framelog.End{}, func(at framelog.End, _ framelog.Frame) error {
				if read++; read == 1 {
					if open {
						drop()
					}
					j.Archive(t)
				}
				if at == j.End {
					cancel()
				}
				return nil
			})
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, 42, read)
		})
	}
}

// Behind a segment that other partitions have frames in, which stays, segments are removed from the first one on too.
func TestLog_DropBehindASharedSegment(t *testing.T) {
	nc := natsdtest.Connect(t)
	js := must.Value(jetstream.New(nc))(t)
	must.Value(js.CreateStream(t.Context(), jetlog.Place{Plane: "test", Shared: true}.Config(1, 1)))(t)
	log := must.Value(jetlog.New(nc, "test", 0))(t)
	last := uint64(0)
	add := func(segment uint64) {
		last = must.Value(log.Append(t.Context(), last, framelog.Frame{
			ID: "f", Generation: 1, Body: []byte("{}\n"), Link: framelog.Link{Segment: segment},
		}))(t)
	}
	add(0)
	for segment := range uint64(3) {
		must.Value(log.Prepare(t.Context(), segment))(t)
		add(segment + 1)
	}
	numbers := func() (all []uint64) {
		segments := must.Value(log.Segments(t.Context()))(t)
		for _, s := range segments {
			all = append(all, s.Number)
		}
		return all
	}
	require.ErrorContains(t, log.Drop(t.Context(), 2), "not the first")
	require.NoError(t, log.Drop(t.Context(), 0), "it stays")
	require.Equal(t, []uint64{0, 1, 2, 3}, numbers())
	require.NoError(t, log.Drop(t.Context(), 1))
	require.NoError(t, log.Drop(t.Context(), 1), "again")
	require.NotContains(t, numbers(), uint64(1))
	require.NoError(t, log.Drop(t.Context(), 2))
	require.ErrorContains(t, log.Drop(t.Context(), 3), "not the first of several")
	require.Contains(t, numbers(), uint64(3))
}

// A log that goes on in the next segment while it is read is read up to where it ended before, and not on in that
// segment.
func TestR10_ASegmentBeginsWhileAReplicaIsRead(t *testing.T) {
	nc := natsdtest.Connect(t)
	must.Value(jetlog.Ensure(t.Context(), nc, "test", 1, 1))(t)
	log := must.Value(jetlog.New(nc, "test", 0))(t)
	j := journaltest.NewArchivedJournal(log, archive.NewDirectory(t.TempDir(), "test", 0), "test/0")
	j.Write(t, 3, 100)
	want := j.End
	must.Value(log.Prepare(t.Context(), 0))(t)
	end, read := framelog.End{}, 0
	require.NoError(t, log.ScanReplica(t.Context(), "anywhere", func(seq uint64, f framelog.Frame) error {
		if read++; read == 1 {
			j.Close(t)
			j.Write(t, 1, 100)
		}
		next, _, err := end.Next("test/0", seq, f)
		end = next
		return err
	}))
	require.Equal(t, want, end)
	require.Equal(t, 3, read)
}
