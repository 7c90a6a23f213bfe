package admission

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// short makes a Turns observe n times that goroutines wait too long.
func short(t *Turns, n int) (limit int) {
	for range n {
		limit = t.Observe(2 * t.target)
	}
	return limit
}

// begin starts n calls of a tenant and returns those that run, in the order in which they began to.
func begin(t *testing.T, turns *Turns, tenant string, n int) <-chan *Turn {
	out := make(chan *Turn, n)
	for range n {
		go func() {
			if turn, err := turns.Enter(t.Context(), tenant); err == nil {
				out <- turn
			}
		}()
	}
	synctest.Wait()
	return out
}

// TestG12_OneTenantAloneIsNotLimited: there is nobody to protect from it.
func TestG12_OneTenantAloneIsNotLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(time.Millisecond)
		require.Len(t, begin(t, turns, "a", 500), 500)
		require.Zero(t, short(turns, 100))
		require.Len(t, begin(t, turns, "a", 500), 500)
	})
}

// TestG12_ManyCallsWaitAndFewDoNot: while processors are short each tenant has the same number of calls
// running. A tenant with fewer calls than that never waits.
func TestG12_ManyCallsWaitAndFewDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(time.Millisecond)
		first := begin(t, turns, "many", 100)
		one := begin(t, turns, "few", 1)
		require.Equal(t, 50, short(turns, 1))
		require.Equal(t, leastTurns, short(turns, 30))
		for range 100 - leastTurns {
			(<-first).Leave()
		}
		waiting := begin(t, turns, "many", 50)
		require.Empty(t, waiting, "as many as may run already do")
		(<-one).Leave()
		few := begin(t, turns, "few", leastTurns)
		require.Len(t, few, leastTurns)
		above := begin(t, turns, "few", 1)
		require.Empty(t, above)
		(<-few).Leave()
		synctest.Wait()
		require.Len(t, above, 1)
		require.Empty(t, waiting, "a turn that ends is followed by one of the same tenant")
		left := <-first
		left.Leave()
		left.Leave() // once is enough
		synctest.Wait()
		require.Empty(t, waiting, "it wants more than the other one, which runs")
		short(turns, 1)
		synctest.Wait()
		require.Len(t, waiting, 1, "one begins with each observation all the same")
		for range calm - 1 {
			require.Equal(t, leastTurns, turns.Observe(0), "calm for too short a time")
		}
		require.Equal(t, leastTurns+1, turns.Observe(0))
		for range 40 + calm {
			turns.Observe(0)
		}
		synctest.Wait()
		require.Len(t, waiting, 50, "processors are free again")
		require.Zero(t, turns.Observe(0))
	})
}

// TestG12_TheLighterTenantGoesFirst: a tenant that wants much more than the others begins no call while one of
// theirs runs, and goes on as soon as none does.
func TestG12_TheLighterTenantGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(time.Millisecond)
		first := begin(t, turns, "many", 10)
		few := begin(t, turns, "few", 1)
		short(turns, 30)
		for range 10 {
			(<-first).Leave()
		}
		one := <-few
		waiting := begin(t, turns, "many", 10)
		require.Empty(t, waiting)
		again := begin(t, turns, "few", 1)
		one.Leave()
		synctest.Wait()
		require.Len(t, again, 1, "its own next call")
		require.Empty(t, waiting)
		(<-again).Leave()
		synctest.Wait()
		require.Len(t, waiting, leastTurns, "as many as may run")
		few = begin(t, turns, "few", 1)
		require.Len(t, few, 1, "it waits for nobody")
		(<-waiting).Leave()
		synctest.Wait()
		require.Empty(t, waiting)
		begin(t, turns, "few", 9) // as much is wanted by both now
		short(turns, 8*memory)
		require.Empty(t, turns.heavy, "neither wants more than the mean by half")
	})
}

// TestG12_Steps: messages of streams wait for their turns like calls, but not for long, and not without a limit.
func TestG12_Steps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(time.Millisecond)
		require.Nil(t, turns.Step(t.Context(), "a"))
		begin(t, turns, "b", 1)
		running := begin(t, turns, "a", leastTurns)
		short(turns, 30)
		began := time.Now()
		require.Nil(t, turns.Step(t.Context(), "a"))
		require.Equal(t, stepTime, time.Since(began))
		for range leastTurns {
			(<-running).Leave()
		}
		step := turns.Step(t.Context(), "a")
		require.NotNil(t, step)
		next := begin(t, turns, "a", leastTurns)
		require.Len(t, next, leastTurns-1)
		step.Leave()
		synctest.Wait()
		require.Len(t, next, leastTurns)
	})
}

// TestG12_TheDelayIsHowLateASleeperRuns: in a process whose goroutines need no time there is none.
func TestG12_TheDelayIsHowLateASleeperRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.Zero(t, Delay(0))
		require.Equal(t, probes*probeTime, time.Since(began))
		began = time.Now()
		require.Zero(t, Delay(-1))
		require.Equal(t, time.Duration(0), time.Since(began), "no delay is as good as that")
	})
}

// TestG12_TurnsEndByThemselves: a call that waits for something to happen, or for a turn at another process,
// keeps others from running for a bounded time only.
func TestG12_TurnsEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(time.Millisecond)
		begin(t, turns, "b", 1)
		streams := begin(t, turns, "a", 2)
		short(turns, 30)
		next := begin(t, turns, "a", leastTurns+1)
		for range 2 {
			(<-streams).LeaveSoon()
		}
		<-time.After(soon)
		synctest.Wait()
		require.Len(t, next, leastTurns)
		<-time.After(turnTime)
		synctest.Wait()
		require.Len(t, next, leastTurns+1)
	})
	var none *Turn
	none.Leave()
	none.LeaveSoon()
}

// TestG12_WaitingIsBounded: a call stops waiting with its context, and so many wait at most.
func TestG12_WaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(time.Millisecond)
		begin(t, turns, "b", 1)
		running := begin(t, turns, "a", leastTurns)
		short(turns, 30)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := turns.Enter(ctx, "a")
			ended <- err
		}()
		synctest.Wait()
		waiting := begin(t, turns, "a", maxWaiting-1)
		_, err := turns.Enter(t.Context(), "a")
		require.ErrorIs(t, err, ErrTooManyWait)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		last := begin(t, turns, "a", 1) // at the limit
		require.Empty(t, waiting)
		for range leastTurns {
			(<-running).Leave()
		}
		for range maxWaiting - 1 {
			(<-waiting).Leave()
		}
		synctest.Wait()
		require.Len(t, last, 1)
	})
}

// TestG12_TenantsAreForgotten: the memory of a Turns is bounded by the tenants that called lately.
func TestG12_TenantsAreForgotten(t *testing.T) {
	turns := NewTurns(time.Millisecond)
	for _, name := range []string{"a", "b", "c"} {
		turn, err := turns.Enter(t.Context(), name)
		require.NoError(t, err)
		defer turn.Leave()
		if name == "a" {
			turn.Leave()
		}
	}
	for range recent {
		turns.Observe(0)
	}
	require.Len(t, turns.tenants, 2, "those with running calls stay")
}

// TestG12_TheNextLimit has the values of next at, below and above its bounds.
func TestG12_TheNextLimit(t *testing.T) {
	const target = 8 * time.Millisecond
	for _, c := range []struct {
		limit, active, most int
		waited              time.Duration
		next                int
	}{
		{limit: 0, active: 1, most: 100, waited: target + 1, next: 0},
		{limit: 10, active: 1, most: 100, waited: target + 1, next: 0},
		{limit: 0, active: 2, most: 100, waited: target, next: 0},
		{limit: 0, active: 2, most: 100, waited: target + 1, next: 50},
		{limit: 0, active: 2, most: 1, waited: target + 1, next: leastTurns},
		{limit: 8, active: 2, waited: target + 1, next: 4},
		{limit: leastTurns, active: 2, waited: time.Hour, next: leastTurns},
		{limit: 8, active: 2, waited: target, next: 8},
		{limit: 8, active: 2, waited: target/2 + 1, next: 8},
		{limit: 8, active: 2, waited: target / 2, next: 11},
		{limit: mostTurns*4/5 - 1, active: 2, next: mostTurns - 2},
		{limit: mostTurns * 4 / 5, active: 2, next: 0},
	} {
		require.Equal(t, c.next, next(c.limit, c.active, c.most, c.waited, target), "%+v", c)
	}
}
