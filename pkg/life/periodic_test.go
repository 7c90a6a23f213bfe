package life_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/life"
)

func TestPeriodicRepeatsUntilItsStop(t *testing.T) {
	var calls atomic.Int32
	p := &life.Periodic{Label: "counter", Period: time.Millisecond, Do: func(context.Context) { calls.Add(1) }}
	require.Equal(t, "counter", p.Name())
	require.NoError(t, p.Ready())
	for range 2 { // it may be started again
		start, cancel := context.WithCancel(t.Context())
		require.NoError(t, p.Start(start))
		cancel() // bounds the start only
		before := calls.Load()
		require.Eventually(t, func() bool { return calls.Load() >= before+3 }, time.Minute, time.Millisecond)
		require.NoError(t, p.Stop(t.Context()))
		ended := calls.Load()
		require.Never(t, func() bool { return calls.Load() != ended }, 5*time.Millisecond, time.Millisecond)
	}
}

func TestPeriodicStopEndsACallInProgress(t *testing.T) {
	began := make(chan struct{})
	p := &life.Periodic{Label: "waiter", Period: time.Hour, Do: func(ctx context.Context) {
		close(began)
		<-ctx.Done()
	}}
	require.NoError(t, p.Start(t.Context()))
	<-began // at once, not after a period
	require.NoError(t, p.Stop(t.Context()))
}
