package jetlog_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
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

// TestR10_AFrameThatIsGoneIsDefinite: the only server of a log is asked once about the frame that a follower read last; so it
// is about a number at which another partition has a frame.
func TestR10_AFrameThatIsGoneIsDefinite(t *testing.T) {
	nc := natsdtest.Connect(t)
	_, err := jetlog.Ensure(t.Context(), nc, "test", 1, 2)
	require.NoError(t, err)
	var logs [2]*asked
	for i := range logs {
		log, err := jetlog.New(nc, "test", i)
		require.NoError(t, err)
		logs[i] = &asked{Log: log}
		_, err = log.Append(t.Context(), 0, framelog.Frame{ID: "f", Generation: 1, Body: []byte("{}\n")})
		require.NoError(t, err)
	}
	for _, seq := range []uint64{2, 3} {
		logs[0].gets.Store(0)
		var broken *framelog.Broken
		err = framelog.Follow(t.Context(), logs[0], "test/0", framelog.End{Seq: seq, WalSeq: 7, Hash: framelog.Hash{1}}, func(framelog.End, framelog.Frame) error { return nil })
		require.ErrorAs(t, err, &broken)
		require.ErrorContains(t, err, "is gone")
		require.EqualValues(t, 1, logs[0].gets.Load())
		_, err = logs[0].Get(t.Context(), seq)
		require.ErrorIs(t, err, framelog.ErrGone)
	}
}
