package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"quartet/pkg/bus"
	"quartet/pkg/lease"
	"quartet/pkg/must"
	"quartet/tests/sim/engine"
)

// Nothing that a frozen process sends passes before its time, and what others send does.
func TestQueue_AFrozenProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, began := engine.New(engine.Config{Wait: synctest.Wait}), time.Now()
		frozen, other := engine.NewProcess("frozen"), engine.NewProcess("other")
		var passed []string
		for _, p := range []*engine.Process{frozen, other} {
			go func() {
				_, _ = q.Park(t.Context(), engine.Crossing{Edge: p.Name, Of: p})
				passed = append(passed, p.Name+" "+time.Since(began).Round(time.Second).String())
			}()
		}
		q.Freeze(frozen, 5*time.Second)
		for q.Step(time.Minute) {
		}
		require.Equal(t, []string{"other 0s", "frozen 5s"}, passed)
	})
}

// What may be refused is held back and then fails, while other edges go on.
func TestQueue_AStalledEdge(t *testing.T) {
	refused := 0
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			q := engine.New(engine.Config{Seed: seed, Wait: synctest.Wait, StallRate: 0.2})
			var order []string
			write := func() {
				o, _ := q.Park(t.Context(),
					engine.Crossing{Edge: "log a append", Faults: []engine.Outcome{engine.Lost, engine.Refused}})
				order = append(order, "write")
				if o == engine.Refused {
					refused++
					require.Greater(t, len(order), 1, "others passed before it")
				}
			}
			go write()
			for range 30 {
				go func() {
					_, _ = q.Park(t.Context(), engine.Crossing{Edge: "call b c"})
					order = append(order, "call")
				}()
			}
			for q.Step(time.Second) {
			}
			require.Len(t, order, 31)
		})
	}
	require.Positive(t, refused)
}

// drive lets crossings pass in the background, so that the goroutine of the test can make them, until stop is called.
func drive(q *engine.Queue) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			default:
				q.Step(time.Second)
			}
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}

// A bucket keeps revisions, and sends its contents and then each change.
func TestBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := engine.New(engine.Config{Wait: synctest.Wait})
		b := &engine.Bucket{Queue: q, Of: engine.NewProcess("p"), Leases: engine.NewLeases()}
		ctx, stop := context.WithCancel(t.Context())
		var seen []string
		defer drive(q)()
		first := must.Value(b.Create(ctx, "a", []byte("1")))(t)
		must.Refuse(b.Create(ctx, "a", []byte("2")))(t, lease.ErrConflict)
		changes := must.Value(b.Watch(ctx))(t)
		second := must.Value(b.Update(ctx, "a", []byte("2"), first))(t)
		must.Refuse(b.Update(ctx, "a", []byte("3"), first))(t, lease.ErrConflict)
		require.ErrorIs(t, b.Delete(ctx, "a", first), lease.ErrConflict)
		require.NoError(t, b.Delete(ctx, "a", second))
		must.Refuse(b.Revision(ctx, "a"))(t, lease.ErrNoKey)
		require.Greater(t, must.Value(b.Create(ctx, "a", []byte("4")))(t), second)
		for len(seen) < 5 {
			switch c := <-changes; {
			case c == nil:
				seen = append(seen, "all")
			case c.Gone:
				seen = append(seen, "gone")
			default:
				seen = append(seen, string(c.Value))
			}
		}
		stop()
		require.Equal(t, []string{"1", "all", "2", "gone", "4"}, seen)
	})
}

// A window is stored as a whole, in part, late or not, and after an error the session is over. What a loss of power
// removes takes with it what is on its way.
func TestEvents_Faults(t *testing.T) {
	stored := map[int]bool{}
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			q, events := engine.New(engine.Config{Seed: seed, Wait: synctest.Wait, FaultRate: 1}), engine.NewEvents(nil)
			target := &engine.EventsTarget{Queue: q, Of: engine.NewProcess("p"), Name: "p", Events: events}
			publish := func(s bus.Session) (err error) {
				for n := range 4 {
					if err = s.Publish(t.Context(), &nats.Msg{Subject: "x"}, n == 3); err != nil {
						break
					}
				}
				return err
			}
			first := must.Value(target.Open(func() {}))(t)
			done := make(chan error, 1)
			go func() { done <- publish(first) }()
			require.True(t, q.Step(0))
			q.Calm()
			for q.Step(time.Second) {
			}
			require.Error(t, <-done)
			stop := drive(q)
			require.ErrorIs(t, publish(first), engine.ErrBroken)
			stop()
			stored[len(events.Messages())] = true

			events.Lose(100)
			lost := false
			second := must.Value(target.Open(func() { lost = true }))(t)
			go func() { done <- publish(second) }()
			synctest.Wait()
			events.Lose(0)
			require.True(t, lost)
			require.True(t, q.Step(0))
			require.ErrorIs(t, <-done, engine.ErrBroken)
			require.Empty(t, events.Messages())
		})
	}
	require.Equal(t, map[int]bool{0: true, 2: true, 4: true}, stored)
}
