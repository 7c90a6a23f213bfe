package journaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
)

// within is how long a test waits at most.
const within = 20 * time.Second

// RunLog tests the contract of framelog.Log. open returns an empty log.
func RunLog(t *testing.T, open func(t *testing.T) framelog.Log) {
	for name, test := range map[string]func(*testing.T, framelog.Log){
		"empty":               logEmpty,
		"append in order":     logOrder,
		"wrong sequence":      logWrongSequence,
		"ended context":       logEndedContext,
		"one of many wins":    logRace,
		"scan":                logScan,
		"follow":              logFollow,
		"follow ends with fn": logFollowEnds,
		"large frame":         logLarge,
		"segments":            logSegments,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func body(s string) framelog.Frame {
	return framelog.Frame{ID: "frame-" + s, Generation: 7, Body: []byte(s)}
}

// fill appends n frames and returns their sequences.
func fill(t *testing.T, log framelog.Log, n int) []uint64 {
	t.Helper()
	var seqs []uint64
	last := uint64(0)
	for i := range n {
		seq, err := log.Append(t.Context(), last, body(fmt.Sprint(i)))
		require.NoError(t, err)
		require.Greater(t, seq, last)
		seqs = append(seqs, seq)
		last = seq
	}
	return seqs
}

func logEmpty(t *testing.T, log framelog.Log) {
	f, seq, err := log.Tail(t.Context())
	require.NoError(t, err)
	require.Zero(t, seq)
	require.Zero(t, f)
	_, err = log.Get(t.Context(), 1)
	require.ErrorIs(t, err, framelog.ErrNoFrame)
	require.NoError(t, log.Scan(t.Context(), 1, func(uint64, framelog.Frame) error {
		return errors.New("no frame expected")
	}))
}

func logOrder(t *testing.T, log framelog.Log) {
	seqs := fill(t, log, 3)
	f, seq, err := log.Tail(t.Context())
	require.NoError(t, err)
	require.Equal(t, seqs[2], seq)
	require.Equal(t, body("2"), f)
	f, err = log.Get(t.Context(), seqs[1])
	require.NoError(t, err)
	require.Equal(t, body("1"), f)
	fence := framelog.Frame{ID: "fence", Generation: 8}
	seq, err = log.Append(t.Context(), seqs[2], fence)
	require.NoError(t, err)
	f, err = log.Get(t.Context(), seq)
	require.NoError(t, err)
	require.Equal(t, "fence", f.ID)
	require.Empty(t, f.Body)
}

func logWrongSequence(t *testing.T, log framelog.Log) {
	seqs := fill(t, log, 2)
	for _, expect := range []uint64{0, seqs[0], seqs[1] + 1, seqs[1] + 100} {
		_, err := log.Append(t.Context(), expect, body("x"))
		require.ErrorIs(t, err, framelog.ErrWrongSequence)
	}
	_, seq, err := log.Tail(t.Context())
	require.NoError(t, err)
	require.Equal(t, seqs[1], seq)
}

func logEndedContext(t *testing.T, log framelog.Log) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := log.Append(ctx, 0, body("x"))
	require.ErrorIs(t, err, context.Canceled)
	_, _, err = log.Tail(ctx)
	require.Error(t, err)
	require.ErrorIs(t, log.Follow(ctx, 1, func(uint64, framelog.Frame) error { return nil }), context.Canceled)
}

func logRace(t *testing.T, log framelog.Log) {
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = log.Append(t.Context(), 0, body(fmt.Sprint(i))) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		require.ErrorIs(t, err, framelog.ErrWrongSequence)
	}
	require.Equal(t, 1, won)
}

func logScan(t *testing.T, log framelog.Log) {
	seqs := fill(t, log, 50)
	for _, from := range []int{0, 1, 49} {
		var got []uint64
		require.NoError(t, log.Scan(t.Context(), seqs[from], func(seq uint64, f framelog.Frame) error {
			require.Equal(t, body(fmt.Sprint(from+len(got))), f)
			got = append(got, seq)
			return nil
		}))
		require.Equal(t, seqs[from:], got)
	}
	require.NoError(t, log.Scan(t.Context(), seqs[49]+1, func(uint64, framelog.Frame) error {
		return errors.New("nothing is there")
	}))
	stop := errors.New("stop")
	require.ErrorIs(t, log.Scan(t.Context(), 1, func(uint64, framelog.Frame) error { return stop }), stop)
}

func logFollow(t *testing.T, log framelog.Log) {
	seqs := fill(t, log, 3)
	ctx, cancel := context.WithCancel(t.Context())
	got, from := make(chan uint64, 100), seqs[1]
	done := make(chan error, 1)
	go func() {
		done <- log.Follow(ctx, from, func(seq uint64, _ framelog.Frame) error {
			got <- seq
			return nil
		})
	}()
	last := seqs[2]
	for i := range 20 {
		seq, err := log.Append(t.Context(), last, body(fmt.Sprint(i)))
		require.NoError(t, err)
		last = seq
		seqs = append(seqs, seq)
	}
	for _, want := range seqs[1:] {
		require.Equal(t, want, receive(t, got))
	}
	cancel()
	require.ErrorIs(t, receive(t, done), context.Canceled)
	require.Empty(t, got)
}

func logFollowEnds(t *testing.T, log framelog.Log) {
	seqs := fill(t, log, 2)
	stop := errors.New("stop")
	err := log.Follow(t.Context(), 1, func(seq uint64, _ framelog.Frame) error {
		if seq == seqs[1] {
			return stop
		}
		return nil
	})
	require.ErrorIs(t, err, stop)
}

func logLarge(t *testing.T, log framelog.Log) {
	f := framelog.Frame{ID: "large", Body: bytes.Repeat([]byte("x"), 5<<20)}
	seq, err := log.Append(t.Context(), 0, f)
	require.NoError(t, err)
	got, err := log.Get(t.Context(), seq)
	require.NoError(t, err)
	require.Len(t, got.Body, len(f.Body))
	require.NoError(t, log.Scan(t.Context(), 1, func(_ uint64, got framelog.Frame) error {
		require.Len(t, got.Body, len(f.Body))
		return nil
	}))
}

// receive waits for one value.
func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(within):
		var zero T
		require.FailNow(t, "nothing came")
		return zero
	}
}
