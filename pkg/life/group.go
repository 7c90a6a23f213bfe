package life

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Service is something that is started and stopped.
type Service interface {
	// Name is unique in a Group.
	Name() string
	// Start returns when the service runs. ctx bounds the start only and must not be kept.
	// If Start returns an error, the service holds nothing that Stop would have to release.
	Start(ctx context.Context) error
	// Stop finishes what is in progress and releases everything, within ctx. It is called once
	// after each successful Start.
	Stop(ctx context.Context) error
	// Ready returns nil if the service can serve, and otherwise an error that names what
	// it waits for. It must not block.
	Ready() error
}

// Module is one row of the table.
type Module struct {
	Service Service
	Needs   []string // names of modules that must run before this one starts
	// Beside says that the module may be started at the same time as those directly before and behind it in the
	// start order for which Beside is set too. None of them may need another one. At most one per processor starts
	// at a time.
	Beside bool
}

// Func is a Service that consists of functions. A nil function succeeds.
type Func struct {
	Label   string
	OnStart func(ctx context.Context) error
	OnStop  func(ctx context.Context) error
	OnReady func() error
}

// Name returns the Label.
func (f Func) Name() string { return f.Label }

// Start calls OnStart.
func (f Func) Start(ctx context.Context) error {
	if f.OnStart == nil {
		return nil
	}
	return f.OnStart(ctx)
}

// Stop calls OnStop.
func (f Func) Stop(ctx context.Context) error {
	if f.OnStop == nil {
		return nil
	}
	return f.OnStop(ctx)
}

// Ready calls OnReady.
func (f Func) Ready() error {
	if f.OnReady == nil {
		return nil
	}
	return f.OnReady()
}

// ErrNotStarted is returned by Ready until Start has succeeded, and from the beginning of Stop on.
var ErrNotStarted = errors.New("life: not started")

// Group starts and stops a table of modules. Start and Stop are idempotent, safe for
// concurrent use, and exclude each other. A stopped Group may be started again if its
// services may.
type Group struct {
	order []Module

	turn sync.Mutex // held through Start and Stop
	up   bool       // guarded by turn: everything in order has been started

	mu      sync.Mutex
	started []Service // in start order
	running bool      // Start has succeeded and Stop has not begun
}

// NewGroup returns a Group with the start order derived. It returns an error for an unknown
// need, a name that is used twice, and a cycle. Modules that do not need each other keep the
// order of the table.
func NewGroup(modules ...Module) (*Group, error) {
	byName := make(map[string]Module, len(modules))
	for _, m := range modules {
		name := m.Service.Name()
		if _, taken := byName[name]; taken {
			return nil, fmt.Errorf("life: two modules are named %q", name)
		}
		byName[name] = m
	}
	g := &Group{}
	done := make(map[string]bool, len(modules))
	var visit func(m Module, path []string) error
	visit = func(m Module, path []string) error {
		name := m.Service.Name()
		if done[name] {
			return nil
		}
		if i := slices.Index(path, name); i >= 0 {
			return fmt.Errorf("life: modules need each other in a circle: %s",
				strings.Join(append(path[i:], name), " -> "))
		}
		path = append(path, name)
		for _, need := range m.Needs {
			next, ok := byName[need]
			if !ok {
				return fmt.Errorf("life: module %q needs %q, which is not in the table", name, need)
			}
			if err := visit(next, path); err != nil {
				return err
			}
		}
		done[name] = true
		g.order = append(g.order, m)
		return nil
	}
	for _, m := range modules {
		if err := visit(m, nil); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Order returns the names in start order.
func (g *Group) Order() []string {
	names := make([]string, len(g.order))
	for i, m := range g.order {
		names[i] = m.Service.Name()
	}
	return names
}

// Start starts the modules in order. If one fails, those that run are stopped in reverse
// order, and the error names the one that failed. It does nothing if the Group runs.
func (g *Group) Start(ctx context.Context) error {
	g.turn.Lock()
	defer g.turn.Unlock()
	// up is what counts and not running: a Stop that waits for turn has already set running to
	// false, although the modules are started.
	if g.up {
		return nil
	}
	for i := 0; i < len(g.order); {
		next := i + 1
		for g.order[i].Beside && next < len(g.order) && g.order[next].Beside {
			next++
		}
		if err := g.start(ctx, g.order[i:next]); err != nil {
			// The modules are stopped even if ctx has ended.
			return errors.Join(err, g.unwind(context.WithoutCancel(ctx)))
		}
		i = next
	}
	g.up = true
	g.mu.Lock()
	g.running = true
	g.mu.Unlock()
	return nil
}

// start starts modules at the same time, and appends those that have started to g.started in the given order. If one
// fails, it cancels the context of the others and returns the first error.
func (g *Group) start(ctx context.Context, modules []Module) error {
	run := make([]bool, len(modules))
	all, starting := errgroup.WithContext(ctx)
	all.SetLimit(runtime.GOMAXPROCS(0))
	for i, m := range modules {
		all.Go(func() error {
			err := starting.Err()
			if err == nil {
				err = m.Service.Start(starting)
			}
			if err != nil {
				return fmt.Errorf("start %s: %w", m.Service.Name(), err)
			}
			run[i] = true
			return nil
		})
	}
	err := all.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, m := range modules {
		if run[i] {
			g.started = append(g.started, m.Service)
		}
	}
	return err
}

// Stop stops the modules in reverse order. If some return errors, it stops the others all the same, and returns
// the joined errors. Ready returns an error from the beginning of Stop on, so that no new requests arrive
// while the old ones are finished. Stop does nothing if the Group is stopped.
func (g *Group) Stop(ctx context.Context) error {
	// Ready must return an error at once, even while another Start or Stop runs.
	g.mu.Lock()
	g.running = false
	g.mu.Unlock()
	g.turn.Lock()
	defer g.turn.Unlock()
	g.mu.Lock()
	g.running = false // a Start that held the turn may have set it
	g.mu.Unlock()
	g.up = false
	return g.unwind(ctx)
}

func (g *Group) unwind(ctx context.Context) error {
	g.mu.Lock()
	started := g.started
	g.started = nil
	g.mu.Unlock()
	var errs []error
	for _, s := range slices.Backward(started) {
		if err := s.Stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", s.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// Ready returns nil if all modules are started and ready. It returns ErrNotStarted if Start has not
// succeeded or Stop has begun, and otherwise an error that names the modules that are not ready.
func (g *Group) Ready() error {
	g.mu.Lock()
	started, running := g.started, g.running
	g.mu.Unlock()
	if !running {
		return ErrNotStarted
	}
	var errs []error
	for _, s := range started {
		if err := s.Ready(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Name(), err))
		}
	}
	return errors.Join(errs...)
}
