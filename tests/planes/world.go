package planes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	agentplane "quartet/services/agent"
	"quartet/services/app/calls"
	schedulerplane "quartet/services/scheduler"
	taskplane "quartet/services/task"
	taskoutput "quartet/services/task/output"
	waitingplane "quartet/services/waiting"
	workplane "quartet/services/work"
)

// Epoch is the time at which every world begins.
var Epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Hang is how long a barrier may take before a run is given up as hanging. It decides nothing
// else.
const Hang = 60 * time.Second

// Names are the services of a world, in the order in which they start.
var Names = []string{"agent", "work", "waiting", "task", "scheduler"}

// Config of a World. Home is required.
type Config struct {
	// Home is the directory of the agents' homes. Close removes it.
	Home string
	// Log, if set, wraps the log of each plane for the services that are started after it was
	// set; a service that runs keeps the log that it was started with.
	Log func(log framelog.Log) framelog.Log
	// Register, if set, registers a service in place of the service itself.
	Register func(name string, srv grpc.ServiceRegistrar) grpc.ServiceRegistrar
}

// World is the five services in one process, wired as services/app wires them, over journals in
// memory and on a clock that stands still. Boards have no part in it.
type World struct {
	Clock    *clock.Fake
	Journals *planetest.Journals

	mu sync.Mutex // guards the services, which may be started anew while Quiet begins
	// The services that run. A service that is started anew is another one.
	Agent     *agentplane.Service
	Work      *workplane.Service
	Waiting   *waitingplane.Service
	Task      *taskplane.Service
	Scheduler *schedulerplane.Service

	cfg     Config
	ctx     context.Context //nolint:containedctx // of one run
	cancel  context.CancelFunc
	feeds   *journal.Feeds
	taps    *taps
	network *rpc.Network
	keys    *rpc.Keyring
	calls   calls.Planes
	output  taskoutput.Store
	ids     map[string]*id.Sequence
	stores  map[string]*journaltest.MemSnapshots
	stops   map[string]func(ctx context.Context) error
}

// New returns a world whose services run. The caller closes it, also if New returns an error.
func New(cfg Config) (*World, error) {
	keys := rpc.NewKeyring(nil, false)
	w := &World{
		Clock: clock.NewFake(Epoch), Journals: planetest.NewJournals(), taps: newTaps(), cfg: cfg, keys: keys,
		network: rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Token: keys.MintService("test")}),
		output:  taskoutput.NewMemory(taskoutput.Kept), ids: map[string]*id.Sequence{},
		stores: map[string]*journaltest.MemSnapshots{}, stops: map[string]func(ctx context.Context) error{},
	}
	w.calls = calls.Planes{Network: w.network}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for _, name := range Names {
		w.ids[name], w.stores[name] = &id.Sequence{}, journaltest.NewMemSnapshots()
	}
	return w, w.Up()
}

// Context ends when the world is closed.
func (w *World) Context() context.Context { return w.ctx }

// Close stops all services and removes the homes.
func (w *World) Close() error {
	err := w.Down()
	w.cancel()
	return errors.Join(err, w.network.Close(), os.RemoveAll(w.cfg.Home))
}

// Down stops all services in order. Whatever waits for one of them returns with an error.
func (w *World) Down() error {
	var errs []error
	for _, name := range slices.Backward(Names) {
		errs = append(errs, w.Stop(name))
	}
	return errors.Join(errs...)
}

// Kill ends all services without an order: what they have accepted and not written is lost.
func (w *World) Kill() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, name := range slices.Backward(Names) {
		_ = w.stop(ctx, name) // what was abandoned is an error
	}
}

// Up starts all services over what the journals hold.
func (w *World) Up() error {
	w.feeds = journal.NewFeeds()
	for _, name := range Names {
		if err := w.Start(name); err != nil {
			return err
		}
	}
	return nil
}

// Conn returns a connection to a service that holds over its restarts.
func (w *World) Conn(service string) grpc.ClientConnInterface { return w.calls.To(service) }

// Agents returns a client of the agent plane.
func (w *World) Agents() agentv1.AgentServiceClient {
	return agentv1.NewAgentServiceClient(w.Conn("agent"))
}

// Items returns a client of the work plane.
func (w *World) Items() workv1.WorkServiceClient { return w.calls.Work() }

// Waits returns a client of the waiting plane.
func (w *World) Waits() waitingv1.WaitingServiceClient {
	return waitingv1.NewWaitingServiceClient(w.Conn("waiting"))
}

// Tasks returns a client of the task plane.
func (w *World) Tasks() taskv1.TaskServiceClient { return taskv1.NewTaskServiceClient(w.Conn("task")) }

// Verdicts returns a client of the scheduler.
func (w *World) Verdicts() schedulerv1.SchedulerServiceClient {
	return schedulerv1.NewSchedulerServiceClient(w.Conn("scheduler"))
}

func (w *World) log(name string, partition int) (framelog.Log, error) {
	log, err := w.Journals.Log(name, partition)
	if err == nil && w.cfg.Log != nil {
		log = w.cfg.Log(log)
	}
	return log, err
}

// build returns a service, and what makes it the one that runs.
func (w *World) build(name string) (m Module, publish func(), err error) {
	m, err = Build(name, Parts{
		Home: w.cfg.Home, Output: w.output, Keys: w.keys, Calls: w.calls, Conn: w.Conn,
		// Without sweeps after the first: what events do not bring about would be
		// brought about by a sweep, and nobody would notice.
		Sweep: 1000000 * time.Hour,
		Deps: plane.Deps{
			Log: w.log, Feeds: w.feeds, Clock: w.Clock, WaitClock: impatient{}, IDs: w.ids[name],
			SegmentSize:   20 << 10, // some dozens of frames
			Snapshots:     func(of string, _ int) (snapshot.Store, error) { return w.stores[of], nil },
			SnapshotBytes: 8 << 10,
			CheckRestored: func(restored, replayed journal.State) error { return journaltest.Same(restored, replayed) },
			Sources: func(of string) ([]journal.Source, error) {
				all, err := w.Journals.Sources(of)
				for i, src := range all {
					all[i] = w.taps.add(of+">"+name, w.feeds.Source(src))
				}
				return all, err
			},
		},
	})
	return m, func() {
		switch s := m.(type) {
		case *agentplane.Service:
			w.Agent = s
		case *workplane.Service:
			w.Work = s
		case *waitingplane.Service:
			w.Waiting = s
		case *taskplane.Service:
			w.Task = s
		case *schedulerplane.Service:
			w.Scheduler = s
		}
	}, err
}

// Start starts a service and returns when it is ready.
func (w *World) Start(name string) error {
	m, publish, err := w.build(name)
	if err != nil {
		return err
	}
	if err := m.Start(w.ctx); err != nil {
		return err
	}
	w.mu.Lock()
	publish()
	w.mu.Unlock()
	srv := rpc.NewServer(rpc.Config{Auth: w.keys, Deadlines: taskplane.Deadlines()})
	if w.cfg.Register != nil {
		m.Register(w.cfg.Register(name, srv))
	} else {
		m.Register(srv)
	}
	// The name is free once the server before has let it go.
	for began := time.Now(); ; runtime.Gosched() {
		if err = w.network.Listen(name, srv); err == nil {
			break
		}
		if time.Since(began) > Hang {
			return err
		}
	}
	w.stops[name] = func(ctx context.Context) error {
		if r, ok := m.(released); ok {
			r.Release()
		}
		err := m.Stop(ctx)
		srv.Stop()
		w.taps.remove(name)
		return err
	}
	if name == "scheduler" {
		for began := time.Now(); w.Scheduler.Ready() != nil; runtime.Gosched() {
			if time.Since(began) > Hang {
				return errors.New("the scheduler's first sweep hangs")
			}
		}
	}
	return nil
}

// Stop stops a service. It is idempotent.
func (w *World) Stop(name string) error { return w.stop(context.Background(), name) }

func (w *World) stop(ctx context.Context, name string) error {
	if w.stops[name] == nil {
		return nil
	}
	err := w.stops[name](ctx)
	delete(w.stops, name)
	return err
}

// Tails returns where the journals of the four planes end, in the order of Names.
func (w *World) Tails() (tails [4]uint64) {
	for i, p := range Names[:4] {
		log, err := w.Journals.Log(p, 0)
		if err == nil {
			_, tails[i], err = log.Tail(context.Background())
		}
		if err != nil {
			panic(err)
		}
	}
	return tails
}

func (w *World) tail(p string) uint64 { return w.Tails()[slices.Index(Names, p)] }

// Quiet waits until the world is idle: everything due has happened, every follower has received what its source holds,
// what it derived is on disk, and the scheduler has examined the agents that it marked.
func (w *World) Quiet() error {
	// A world that is killed meanwhile has other services afterwards.
	w.mu.Lock()
	agent, work, waiting, task, scheduler := w.Agent, w.Work, w.Waiting, w.Task, w.Scheduler
	w.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		for {
			before := w.Tails()
			if err := errors.Join(waiting.Quiesce(w.ctx), agent.Quiesce(w.ctx), work.Quiesce(w.ctx),
				task.Quiesce(w.ctx)); err != nil {
				done <- err
				return
			}
			w.taps.settle(w.tail)
			if err := errors.Join(waiting.Quiesce(w.ctx), agent.Quiesce(w.ctx), work.Quiesce(w.ctx)); err != nil {
				done <- err
				return
			}
			scheduler.Quiesce()
			if w.Tails() == before {
				done <- nil
				return
			}
		}
	}()
	watch := time.NewTimer(Hang)
	defer watch.Stop()
	select {
	case err := <-done:
		return err
	case <-watch.C:
		return fmt.Errorf("not quiet after %s: %s", Hang, w.taps.where(w.tail))
	}
}

// impatient is the real clock, with timers of at most 500 ms: what a follower that has stopped would
// bring does not come, however long a read waits for it, and the world's own clock stands
// still meanwhile.
type impatient struct{}

// Now implements clock.Clock.
func (impatient) Now() time.Time { return time.Now() }

// TimerAt implements clock.Clock.
func (impatient) TimerAt(t time.Time) clock.Timer {
	if latest := time.Now().Add(500 * time.Millisecond); t.After(latest) {
		t = latest
	}
	return clock.System().TimerAt(t)
}
