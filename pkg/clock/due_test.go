package clock_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/clock"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// started returns a running index whose fires arrive on the channel.
func started(t *testing.T) (*clock.Fake, *clock.Due, chan []string) {
	fake := clock.NewFake(epoch)
	fired := make(chan []string, 1000)
	due := clock.NewDue(fake, func(keys []string) { fired <- keys })
	due.Start()
	t.Cleanup(due.Stop)
	return fake, due, fired
}

func TestP4_DueFiresInOrderNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, due, fired := started(t)
		due.Set("c", epoch.Add(3*time.Second))
		due.Set("a", epoch.Add(time.Second))
		due.Set("b", epoch.Add(2*time.Second))
		synctest.Wait()

		fake.Advance(time.Second - 1)
		synctest.Wait()
		require.Empty(t, fired)

		fake.Advance(1)
		synctest.Wait()
		require.Equal(t, []string{"a"}, <-fired)

		fake.Advance(time.Hour)
		synctest.Wait()
		require.Equal(t, []string{"b", "c"}, <-fired)
		require.Zero(t, due.Len())
		fake.Advance(time.Hour)
		synctest.Wait()
		require.Empty(t, fired)
	})
}

func TestX14_OverdueFiresAtOnceAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := clock.NewFake(epoch)
		var got []string
		due := clock.NewDue(fake, func(keys []string) { got = append(got, keys...) })
		due.Set("late", epoch.Add(-time.Hour))
		due.Set("now", epoch)
		due.Set("future", epoch.Add(time.Hour))
		due.Start()
		due.Start()
		synctest.Wait()
		due.Stop()
		due.Stop()
		require.Equal(t, []string{"late", "now"}, got)
		due.Start()
		synctest.Wait()
		due.Stop()
		require.Len(t, got, 2)
	})
}

func TestDueResetAndRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, due, fired := started(t)
		due.Set("moved-later", epoch.Add(time.Second))
		due.Set("moved-later", epoch.Add(time.Minute))
		due.Set("moved-earlier", epoch.Add(time.Hour))
		due.Set("moved-earlier", epoch.Add(2*time.Second))
		due.Set("removed", epoch.Add(time.Second))
		due.Remove("removed")
		due.Remove("unknown")
		at, ok := due.At("moved-later")
		require.True(t, ok)
		require.Equal(t, epoch.Add(time.Minute), at)
		_, ok = due.At("removed")
		require.False(t, ok)
		synctest.Wait()

		fake.Advance(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"moved-earlier"}, <-fired)
		fake.Advance(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"moved-later"}, <-fired)
		require.Empty(t, fired)
	})
}

func TestDueMayBeSetFromFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := clock.NewFake(epoch)
		var due *clock.Due
		fires := 0
		due = clock.NewDue(fake, func(keys []string) {
			fires++
			due.Set(keys[0], fake.Now().Add(time.Second))
		})
		due.Set("tick", epoch)
		due.Start()
		defer due.Stop()
		for range 5 {
			synctest.Wait()
			fake.Advance(time.Second)
		}
		synctest.Wait()
		require.Equal(t, 6, fires)
	})
}

func TestDueFarFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, due, fired := started(t)
		due.Set("never", time.Unix(math.MaxInt32*1000, 0))
		due.Set("far", time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))
		synctest.Wait() // returns only if the loop sleeps: a busy loop hangs here
		fake.Advance(1000 * time.Hour)
		synctest.Wait()
		require.Empty(t, fired)
		require.Equal(t, 2, due.Len())
		fake.Set(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))
		synctest.Wait()
		require.Equal(t, []string{"far"}, <-fired)
	})
}

func TestDueSurvivesAClockThatStepsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, due, fired := started(t)
		due.Set("a", epoch.Add(time.Second))
		fake.Set(epoch.Add(-time.Hour))
		synctest.Wait()
		require.Empty(t, fired)
		fake.Set(epoch.Add(time.Second))
		synctest.Wait()
		require.Equal(t, []string{"a"}, <-fired)
	})
}

func TestDueHundredThousandKeys(t *testing.T) {
	const n = 100_000
	fake := clock.NewFake(epoch)
	got := make(chan string, n)
	due := clock.NewDue(fake, func(keys []string) {
		for _, k := range keys {
			got <- k
		}
	})
	at := map[string]time.Time{}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		k := fmt.Sprint(i)
		due.Set(k, epoch.Add(time.Duration(r.IntN(1e9))))
		at[k] = epoch.Add(time.Duration(r.IntN(1e9)))
		due.Set(k, at[k])
		if i%3 == 0 {
			due.Remove(k)
			delete(at, k)
		}
	}
	require.Equal(t, len(at), due.Len())
	due.Start()
	defer due.Stop()
	fake.Advance(time.Second)
	last := time.Time{}
	for range len(at) {
		k := <-got
		require.False(t, at[k].Before(last))
		last = at[k]
		delete(at, k)
	}
	require.Empty(t, at)
	require.Empty(t, got)
}

func TestSystemClockFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fired := make(chan time.Time, 1)
		due := clock.NewDue(clock.System(), func([]string) { fired <- time.Now() })
		due.Start()
		defer due.Stop()
		want := time.Now().Add(90 * time.Second)
		due.Set("a", want)
		require.Equal(t, want, <-fired)
	})
}

func TestFakeTimers(t *testing.T) {
	fake := clock.NewFake(epoch)
	armed := make(chan struct{})
	go func() { fake.AwaitTimers(1); close(armed) }()
	timer := fake.TimerAt(epoch.Add(time.Second))
	<-armed
	require.True(t, timer.Stop())
	require.False(t, timer.Stop())
	past := fake.TimerAt(epoch)
	require.Equal(t, epoch, <-past.C())
	require.False(t, past.Stop())
}

func BenchmarkDueSet(b *testing.B) {
	due := clock.NewDue(clock.System(), func([]string) {})
	r := rand.New(rand.NewPCG(1, 2))
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
		due.Set(keys[i], epoch.Add(time.Duration(r.IntN(1e9))))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		due.Set(keys[i%len(keys)], epoch.Add(time.Duration(r.IntN(1e9))))
		i++
	}
}

// Settle returns when all that the clock has reached was fired, also what a fire
// set in its turn, and at once where nothing fires at all.
func TestDueSettleWaitsForWhatIsDue(t *testing.T) {
	clk := clock.NewFake(time.Unix(0, 0))
	var fired atomic.Int32
	var due *clock.Due
	due = clock.NewDue(clk, func(keys []string) {
		if fired.Add(int32(len(keys))) == 2 {
			due.Set("c", clk.Now())
		}
	})
	due.Set("a", clk.Now())
	due.Settle() // not started: nothing to wait for
	require.Zero(t, fired.Load())
	due.Start()
	due.Settle()
	require.EqualValues(t, 1, fired.Load())
	due.Set("b", clk.Now().Add(time.Hour))
	due.Settle()
	require.EqualValues(t, 1, fired.Load(), "not due yet")
	clk.Advance(time.Hour)
	due.Settle()
	require.EqualValues(t, 3, fired.Load())
	due.Stop()
	due.Settle()
}
