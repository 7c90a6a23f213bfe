package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/bus"
	"quartet/pkg/journal"
	"quartet/pkg/lease"
	"quartet/pkg/rpc"
	"quartet/tests/planes"
	"quartet/tests/sim/engine"
)

// instanceNames are the instances of a run in which each process serves all planes, of those partitions for which it
// has the lease, and forwards the other calls.
var instanceNames = []string{"one", "two", "three"}

// Terms of a run's instances.
const (
	leaseTerm = 3 * time.Second
	drainTerm = 5 * time.Second
)

// instance is one life of such a process, wired as services/app wires it.
type instance struct {
	w         *world
	l         *life
	keeper    *lease.Keeper
	groups    map[string]*lease.Group
	shapes    map[string]*rpc.Instance
	scheduler planes.Module

	mu    sync.Mutex
	taken int
	units map[string]*unit
}

// unit is a plane for which an instance has the lease.
type unit struct {
	module planes.Module
	part   *life
	calls  *rpc.Instance
	copies *bus.Publisher
	held   journal.Lease
}

// newInstance returns an instance that is not started. Its clock runs up to a tenth faster or slower than those of
// others.
func (w *world) newInstance(l *life) (planes.Module, error) {
	i := &instance{
		w: w, l: l, groups: map[string]*lease.Group{}, shapes: map[string]*rpc.Instance{}, units: map[string]*unit{},
	}
	rate := []float64{0.9, 1, 1.1}[slices.Index(instanceNames, l.name)]
	i.keeper = lease.NewKeeper(lease.Config{
		ID: l.proc.Name, Term: leaseTerm, Peer: lease.Peer{Addr: l.proc.Name},
		Open: func(context.Context) (lease.Bucket, error) {
			return &engine.Bucket{Queue: w.q, Of: l.proc, Leases: w.leases}, nil
		},
		Elapsed: func() time.Duration { return time.Duration(float64(time.Since(epoch)) * rate) },
	})
	for _, name := range i.w.planes {
		prototype, _, err := i.build(name, nil)
		if err != nil {
			return nil, err
		}
		if i.shapes[name], err = rpc.NewInstance(prototype.Register); err != nil {
			return nil, err
		}
		i.groups[name] = i.keeper.Group(name, 1, lease.Hooks{
			Unused: func(ctx context.Context, _ int) (bool, error) {
				_, seq, err := w.logs[name].Tail(ctx)
				return err == nil && seq == 0, err
			},
			Take: func(ctx context.Context, _ int, held *lease.Lease) error { return i.take(ctx, name, held) },
			Drop: func(int) { i.drop(name) },
			Over: func(int) bool { return i.over(name) },
		})
	}
	var err error
	i.scheduler, _, err = i.build("scheduler", nil)
	return i, err
}

// build returns a service of this process.
func (i *instance) build(name string, held journal.Lease) (planes.Module, *life, error) {
	i.mu.Lock()
	i.taken++
	part := &life{
		name: name, tag: fmt.Sprintf("%s/%s.%d", i.l.proc.Name, name, i.taken), proc: i.l.proc,
		feeds: i.l.feeds, held: held, ctx: i.l.ctx,
	}
	i.mu.Unlock()
	module, err := planes.Build(name, i.w.parts(part))
	return module, part, err
}

// Start implements planes.Module.
func (i *instance) Start(ctx context.Context) error {
	return errors.Join(i.scheduler.Start(ctx), i.keeper.Start(ctx))
}

// Stop implements planes.Module.
func (i *instance) Stop(ctx context.Context) error {
	return errors.Join(i.keeper.Stop(ctx), i.scheduler.Stop(ctx))
}

// Register implements planes.Module.
func (i *instance) Register(srv grpc.ServiceRegistrar) {
	i.scheduler.Register(srv)
	for _, name := range i.w.planes {
		made := &ids{life: i.l.proc.Name + " " + name}
		rpc.Route(srv, i.shapes[name], rpc.Routes{
			Service: name, Size: func() int { return 1 }, NewID: made.New,
			Where: func(int) (rpc.Place, <-chan struct{}) { return i.where(name) },
			Left:  func(err error) bool { return errors.Is(err, journal.ErrNotHeld) },
			Peer:  func(addr, _ string) grpc.ClientConnInterface { return i.w.peer(i.l.proc, addr) },
		})
	}
}

// where returns who serves a plane, as far as this instance knows.
func (i *instance) where(name string) (rpc.Place, <-chan struct{}) {
	at, changed := i.groups[name].Where(0)
	if !at.Here {
		return rpc.Place{Addr: at.Peer.Addr, Lives: at.Lives}, changed
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if u := i.units[name]; u != nil {
		return rpc.Place{Local: u.calls}, changed
	}
	return rpc.Place{}, changed
}

// has reports whether this instance serves a plane.
func (i *instance) has(name string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.units[name] != nil
}

func (i *instance) take(ctx context.Context, name string, held *lease.Lease) error {
	module, part, err := i.build(name, held)
	if err != nil {
		return err
	}
	u := &unit{module: module, part: part, held: held}
	if u.calls, err = rpc.NewInstance(module.Register); err != nil {
		return err
	}
	err = module.Start(ctx)
	if err == nil {
		u.copies, err = i.w.publish(part)
	}
	if err != nil {
		i.end(u)
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.units[name] = u
	return nil
}

func (i *instance) drop(name string) {
	i.mu.Lock()
	u := i.units[name]
	delete(i.units, name)
	i.mu.Unlock()
	if u != nil {
		i.end(u)
	}
}

func (i *instance) over(name string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	u := i.units[name]
	if u == nil {
		return false
	}
	r, ok := u.module.(interface{ Ready() error })
	return ok && errors.Is(r.Ready(), journal.ErrNotHeld)
}

// end ends a plane as services/app does.
func (i *instance) end(u *unit) {
	if r, ok := u.module.(interface{ Release() }); ok {
		r.Release()
	}
	stop := func(ctx context.Context) {
		if u.copies != nil {
			u.copies.Stop()
		}
		_ = u.module.Stop(ctx)
	}
	for _, end := range []func(context.Context){u.calls.Drain, stop} {
		ctx, cancel := context.WithTimeout(context.Background(), drainTerm)
		if i.l.proc.Dead() {
			cancel()
		}
		end(ctx)
		cancel()
	}
}

// peer returns a connection of a process to another instance.
func (w *world) peer(of *engine.Process, addr string) grpc.ClientConnInterface {
	return &engine.Conn{Queue: w.q, Of: of, Edge: of.Name + ">" + addr, Plain: true, Repeated: func(args any) {
		w.books.repeated(args, w.planes...)
	}, Serving: func() (*engine.Process, grpc.ClientConnInterface) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, name := range instanceNames {
			if l := w.lives[name]; l.proc.Name == addr && l.serving && !l.proc.Dead() {
				return l.proc, l.conn
			}
		}
		return nil, nil
	}}
}

// anInstance returns an instance for a call of a client: another one for each call. w.mu must be held.
func (w *world) anInstance() *life {
	w.called++
	for n := range instanceNames {
		if l := w.lives[instanceNames[(w.called+n)%len(instanceNames)]]; l != nil && l.serving && !l.proc.Dead() {
			return l
		}
	}
	return nil
}

// allHeld reports whether each plane is served by an instance. w.mu must be held.
func (w *world) allHeld() bool {
	for _, plane := range w.planes {
		held := false
		for _, name := range w.names {
			i, ok := w.lives[name].module.(*instance)
			held = held || ok && i.has(plane)
		}
		if !held {
			return false
		}
	}
	return true
}

// holders returns the lives of a plane in the instances that have it.
func (w *world) holders(plane string) (all []*life) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.names {
		l := w.lives[name]
		if i, ok := l.module.(*instance); ok && !l.proc.Dead() {
			i.mu.Lock()
			if u := i.units[plane]; u != nil {
				all = append(all, u.part)
			}
			i.mu.Unlock()
		}
	}
	return all
}

// leasesOverlap returns an error if two instances may answer for one plane at a time.
func (w *world) leasesOverlap() error {
	if !w.split() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, plane := range w.planes {
		var valid []string
		for _, name := range w.names {
			if i, ok := w.lives[name].module.(*instance); ok {
				i.mu.Lock()
				if u := i.units[plane]; u != nil && u.held.Valid() && !i.l.proc.Dead() {
					valid = append(valid, i.l.proc.Name)
				}
				i.mu.Unlock()
			}
		}
		if len(valid) > 1 {
			return fmt.Errorf("%s: %v have a valid lease at the same time", plane, valid)
		}
	}
	return nil
}

// freeze suspends an instance, or cuts it off, for a while.
func (w *world) freeze(name string, d time.Duration) {
	w.mu.Lock()
	proc := w.lives[name].proc
	w.mu.Unlock()
	w.q.Freeze(proc, d)
}
