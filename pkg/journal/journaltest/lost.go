package journaltest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
)

// lagging tests that a reader that shows an old end of the log does not make the writer
// conclude that a frame was not stored.
func lagging(t *testing.T, r *rig) {
	for i, f := range []Fault{AnswerLost, LandsBefore, Doubted} {
		for stale := range 3 {
			r.log.Inject(f)
			r.log.StaleReads(stale)
			n, _ := r.put(t, "k", "v", "")
			require.Equal(t, 3*i+stale+1, n)
			r.log.Heal()
		}
	}
	live := r.live(t)
	require.Len(t, live.Log, 9)
	require.Equal(t, live, r.replayed(t))
}

// hold puts key with an append that waits for Release and is then refused.
func (r *rig) hold(t *testing.T, key string) <-chan error {
	t.Helper()
	r.log.Inject(HeldRefused)
	done := make(chan error, 1)
	go func() {
		_, _, err := journal.Do(context.Background(), r.p, Put(key, "held", ""))
		done <- err
	}()
	receive(t, r.log.Held())
	return done
}

// seenAndLost tests that a View reads again if the log refuses a frame whose effects it saw.
func seenAndLost(t *testing.T, r *rig) {
	put := r.hold(t, "k")
	looked, seen := make(chan int, 2), make(chan int, 1)
	go func() {
		n, _, err := journal.View(context.Background(), r.p, func(s *State) (int, error) {
			looked <- s.Puts["k"]
			return s.Puts["k"], nil
		})
		if err != nil {
			n = -1
		}
		seen <- n
	}()
	require.Equal(t, 1, receive(t, looked), "it saw what is on its way")
	r.log.Release()
	requireOutcome(t, receive(t, put), "none")
	require.Equal(t, 0, receive(t, seen))
}

// withdrawn tests that nothing of a command is stored once its caller got an error that says
// so, also if the command would store something when executed again on another state.
func withdrawn(t *testing.T, r *rig) {
	put := r.hold(t, "k")
	ctx, cancel := context.WithCancel(context.Background())
	start := func(ctx context.Context, op journal.Op[*State, int]) <-chan error {
		decided, done := make(chan struct{}, 4), make(chan error, 1)
		decide := op.Decide
		op.Decide = func(s *State, env journal.Env) (journal.Decision[int], error) {
			decided <- struct{}{}
			return decide(s, env)
		}
		go func() {
			_, _, err := journal.Do(ctx, r.p, op)
			done <- err
		}()
		receive(t, decided)
		return done
	}
	second := start(context.Background(), Put("second", "v", ""))
	late := Put("late", "v", "")
	decide := late.Decide
	late.Decide = func(s *State, env journal.Env) (journal.Decision[int], error) {
		if s.Puts["k"] > 0 {
			return journal.Decision[int]{Reply: 1}, nil
		}
		return decide(s, env)
	}
	gone := start(ctx, late)
	third := start(context.Background(), Put("third", "v", "")) // late has its answer by now
	cancel()
	requireOutcome(t, receive(t, gone), "none")
	r.log.Release()
	requireOutcome(t, receive(t, put), "none")
	require.NoError(t, receive(t, second))
	require.NoError(t, receive(t, third))
	require.Equal(t, []string{"second=v", "third=v"}, r.live(t).Log)
}
