package life_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/life"
	"quartet/pkg/must"
)

// journal records what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) module(name string, needs ...string) life.Module {
	return life.Module{Needs: needs, Service: life.Func{
		Label:   name,
		OnStart: func(context.Context) error { j.add("start " + name); return nil },
		OnStop:  func(context.Context) error { j.add("stop " + name); return nil },
	}}
}

func TestOrderIsDerivedAndReversed(t *testing.T) {
	j := &journal{}
	g, err := life.NewGroup(j.module("gateway", "work", "agent"), j.module("agent", "work"), j.module("work", "nats"),
		j.module("nats"), j.module("alone"))
	require.NoError(t, err)
	require.Equal(t, []string{"nats", "work", "agent", "gateway", "alone"}, g.Order())

	ctx := t.Context()
	require.ErrorIs(t, g.Ready(), life.ErrNotStarted)
	require.NoError(t, g.Start(ctx))
	require.NoError(t, g.Start(ctx))
	require.NoError(t, g.Ready())
	require.NoError(t, g.Stop(ctx))
	require.NoError(t, g.Stop(ctx))
	require.ErrorIs(t, g.Ready(), life.ErrNotStarted)
	require.Equal(t, []string{
		"start nats", "start work", "start agent", "start gateway", "start alone",
		"stop alone", "stop gateway", "stop agent", "stop work", "stop nats",
	}, j.lines)
}

// Modules that are beside each other are started at the same time, as far as there are processors, and are stopped in
// reverse order.
func TestModulesBesideEachOther(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	j := &journal{}
	var meet sync.WaitGroup
	meet.Add(3)
	beside := func(name string, fails bool) life.Module {
		return life.Module{Needs: []string{"nats"}, Beside: true, Service: life.Func{
			Label: name,
			OnStart: func(ctx context.Context) error {
				meet.Done()
				meet.Wait() // all three have begun
				if fails {
					return errors.New("no disk")
				}
				return nil
			},
			OnStop: func(context.Context) error { j.add("stop " + name); return nil },
		}}
	}
	g, err := life.NewGroup(j.module("nats"), beside("agent", false), beside("work", false), beside("task", false),
		j.module("rpc", "agent", "work", "task"))
	require.NoError(t, err)
	require.NoError(t, g.Start(t.Context()))
	require.NoError(t, g.Stop(t.Context()))
	require.Equal(t, []string{
		"start nats", "start rpc", "stop rpc", "stop task", "stop work", "stop agent",
		"stop nats",
	}, j.lines)

	j.lines = nil
	meet.Add(3)
	g = must.Value(life.NewGroup(j.module("nats"), beside("agent", false), beside("work", true), beside("task", false),
		j.module("rpc", "agent", "work", "task")))(t)
	require.EqualError(t, g.Start(t.Context()), "start work: no disk")
	require.Equal(t, []string{"start nats", "stop task", "stop agent", "stop nats"}, j.lines)
}

func TestBadTablesAreRefused(t *testing.T) {
	j := &journal{}
	must.Fail(life.NewGroup(j.module("a", "b"), j.module("b", "c"), j.module("c", "b")))(t, "b -> c -> b")
	must.Fail(life.NewGroup(j.module("a", "a")))(t, "a -> a")
	must.Fail(life.NewGroup(j.module("a", "ghost")))(t, `"ghost"`)
	must.Fail(life.NewGroup(j.module("a"), j.module("a")))(t, "two modules")
}

func TestFailingStartUnwinds(t *testing.T) {
	j := &journal{}
	boom, leak := errors.New("boom"), errors.New("leak")
	bad := life.Module{Needs: []string{"b"}, Service: life.Func{
		Label: "bad", OnStart: func(context.Context) error { return boom },
		OnStop: func(context.Context) error { j.add("stop bad"); return nil },
	}}
	leaky := life.Module{Service: life.Func{Label: "leaky", OnStop: func(ctx context.Context) error {
		j.add("stop leaky")
		return leak
	}}}
	g := must.Value(life.NewGroup(leaky, j.module("a"), j.module("b", "a"), bad, j.module("after", "bad")))(t)
	err := g.Start(t.Context())
	require.ErrorIs(t, err, boom)
	require.ErrorIs(t, err, leak)
	require.ErrorContains(t, err, "start bad")
	require.Equal(t, []string{"start a", "start b", "stop b", "stop a", "stop leaky"}, j.lines)
	require.ErrorIs(t, g.Ready(), life.ErrNotStarted)
	require.NoError(t, g.Stop(t.Context()))
}

func TestStartHonoursItsContext(t *testing.T) {
	j := &journal{}
	ctx, cancel := context.WithCancel(t.Context())
	first := life.Module{Service: life.Func{
		Label:   "first",
		OnStart: func(context.Context) error { cancel(); return nil },
		OnStop:  func(ctx context.Context) error { return ctx.Err() }, // unwinding has a living ctx
	}}
	err := must.Value(life.NewGroup(first, j.module("second")))(t).Start(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), "stop first")
	require.Empty(t, j.lines)
}

func TestReadyNamesWhoIsNot(t *testing.T) {
	wait := errors.New("catching up")
	g := must.Value(life.NewGroup(
		life.Module{Service: life.Func{Label: "ok"}},
		life.Module{Service: life.Func{Label: "slow", OnReady: func() error { return wait }}}))(t)
	require.NoError(t, g.Start(t.Context()))
	require.ErrorIs(t, g.Ready(), wait)
	require.ErrorContains(t, g.Ready(), "slow: catching up")
	require.NoError(t, g.Stop(t.Context()))
}

func TestNotReadyComesBeforeDrain(t *testing.T) {
	var g *life.Group
	var seen error
	g = must.Value(life.NewGroup(life.Module{Service: life.Func{
		Label:  "a",
		OnStop: func(context.Context) error { seen = g.Ready(); return nil },
	}}))(t)
	require.NoError(t, g.Start(t.Context()))
	require.NoError(t, g.Stop(t.Context()))
	require.ErrorIs(t, seen, life.ErrNotStarted)
}

func TestStartStopUnderStress(t *testing.T) {
	var running [3]atomic.Int32
	var faults atomic.Int32
	var starts atomic.Int64
	modules := make([]life.Module, len(running))
	names := []string{"a", "b", "c"}
	for i, name := range names {
		if i > 0 {
			modules[i].Needs = names[:i]
		}
		modules[i].Service = life.Func{
			Label: name,
			OnStart: func(context.Context) error {
				if i == 2 && starts.Add(1)%7 == 0 {
					return errors.New("now and then")
				}
				if running[i].Add(1) != 1 || i > 0 && running[i-1].Load() != 1 {
					faults.Add(1)
				}
				return nil
			},
			OnStop: func(context.Context) error {
				if running[i].Add(-1) != 0 || i < 2 && running[i+1].Load() != 0 {
					faults.Add(1)
				}
				return nil
			},
		}
	}
	g := must.Value(life.NewGroup(modules...))(t)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				if (i+w)%2 == 0 {
					_ = g.Start(context.Background())
				} else {
					_ = g.Stop(context.Background())
				}
				_ = g.Ready()
			}
		})
	}
	wg.Wait()
	require.NoError(t, g.Stop(t.Context()))
	require.Zero(t, faults.Load())
	for i := range running {
		require.Zero(t, running[i].Load())
	}
}
