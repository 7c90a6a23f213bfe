package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPausesGrowToTheLastAndStartOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(100*time.Millisecond, time.Second)
		pause := func() time.Duration {
			began := time.Now()
			require.NoError(t, p.Wait(t.Context()))
			return time.Since(began)
		}
		for range 3 {
			for _, millis := range []int{100, 200, 400, 800, 1000, 1000} {
				most := time.Duration(millis) * time.Millisecond
				got := pause()
				require.LessOrEqual(t, got, most+time.Millisecond)
				require.GreaterOrEqual(t, got, most/2-time.Millisecond)
			}
			p.Reset()
		}
	})
}

func TestWaitEndsWithTheContext(t *testing.T) {
	cause := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	require.ErrorIs(t, New(time.Hour, time.Hour).Wait(ctx), cause)
}
