package jetlog_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
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
