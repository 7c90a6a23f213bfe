package follower

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// await starts Await and returns where its result arrives.
func await(ctx context.Context, s *Progress, walSeq uint64, timeout <-chan time.Time,
	closed <-chan struct{},
) <-chan bool {
	out := make(chan bool, 1)
	go func() { out <- s.Await(ctx, walSeq, timeout, closed) }()
	return out
}

func TestAwaitWaitsForTheEventAndThenForItsEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set Positions[string]
		s, durable := set.Of("work"), make(chan struct{})
		require.Same(t, s, set.Of("work"))
		require.NotSame(t, s, set.Of("task"))
		require.True(t, s.Await(t.Context(), 0, nil, nil), "nothing has to be received")
		out := await(t.Context(), s, 5, nil, nil)
		s.Receive(4, nil)
		synctest.Wait()
		require.Empty(t, out, "the event was not received")
		s.Receive(6, durable)
		s.Receive(3, nil) // an older frame changes nothing
		synctest.Wait()
		require.EqualValues(t, 6, s.Position())
		require.Empty(t, out, "its effects are not durable")
		close(durable)
		require.True(t, <-out)
		s.Receive(7, nil)
		require.True(t, s.Await(t.Context(), 7, nil, nil))
	})
}

func TestAwaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Progress
		timeout, closed := make(chan time.Time), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		outs := []<-chan bool{
			await(t.Context(), &s, 1, timeout, nil), await(t.Context(), &s, 1, nil, closed),
			await(ctx, &s, 1, nil, nil),
		}
		synctest.Wait()
		close(timeout)
		close(closed)
		cancel()
		for _, out := range outs {
			require.False(t, <-out)
		}
	})
}
