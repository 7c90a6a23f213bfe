package model

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	agentplane "quartet/services/agent"
	schedulerplane "quartet/services/scheduler"
	taskplane "quartet/services/task"
	taskoutput "quartet/services/task/output"
	waitingplane "quartet/services/waiting"
	workplane "quartet/services/work"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// hang is how long a barrier may take before the run is given up as hanging. It
// decides nothing else.
const hang = 60 * time.Second

// module is a service as the process runs it.
type module interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Register(srv grpc.ServiceRegistrar)
}

// released ends the long polls of a service, so that it can stop.
type released interface{ Release() }

// world is the five services in one process, wired as services/app wires them,
// over journals in memory and on a clock that stands still.
type world struct {
	ctx      context.Context //nolint:containedctx // of one run
	cancel   context.CancelFunc
	clk      *clock.Fake
	journals *planetest.Journals
	feeds    *journal.Feeds
	network  *rpc.Network
	keys     *rpc.Keyring
	home     string
	output   taskoutput.Store
	ids      map[string]*id.Sequence
	taps     *taps
	stops    map[string]func() error

	agent   *agentplane.Service
	work    *workplane.Service
	waiting *waitingplane.Service
	task    *taskplane.Service
	sched   *schedulerplane.Service
	worker  *worker
}

func newWorld(home string) (*world, error) {
	keys := rpc.NewKeyring(nil, false)
	w := &world{
		clk: clock.NewFake(epoch), journals: planetest.NewJournals(), feeds: journal.NewFeeds(), keys: keys, home: home,
		network: rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Token: keys.MintService("test")}),
		output:  taskoutput.NewMemory(taskoutput.Kept), ids: map[string]*id.Sequence{}, taps: newTaps(), stops: map[string]func() error{},
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for _, name := range []string{"agent", "work", "waiting", "task", "scheduler"} {
		w.ids[name] = &id.Sequence{}
		if err := w.start(name); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *world) close() error {
	w.taps.releaseAll()
	var errs []error
	for _, name := range []string{"scheduler", "task", "waiting", "work", "agent"} {
		errs = append(errs, w.stop(name))
	}
	w.cancel()
	return errors.Join(append(errs, w.network.Close(), os.RemoveAll(w.home))...)
}

// lazy dials a service for each call: it may have been started anew.
type lazy struct {
	w    *world
	name string
}

func (l lazy) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := l.w.network.Dial(l.name)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

func (l lazy) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := l.w.network.Dial(l.name)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

func (w *world) works() workv1.WorkServiceClient {
	return workv1.NewWorkServiceClient(lazy{w, "work"})
}
func (w *world) agents() agentv1.AgentServiceClient {
	return agentv1.NewAgentServiceClient(lazy{w, "agent"})
}
func (w *world) waits() waitingv1.WaitingServiceClient {
	return waitingv1.NewWaitingServiceClient(lazy{w, "waiting"})
}
func (w *world) tasks() taskv1.TaskServiceClient {
	return taskv1.NewTaskServiceClient(lazy{w, "task"})
}

// AgentExists is for the planes that make something for an agent.
func (w *world) AgentExists(ctx context.Context, agentID string) error {
	_, err := w.agents().GetFacts(ctx, &agentv1.GetFactsRequest{AgentId: agentID})
	return err
}

// Supervision is for the lists of the waiting plane. No agent of the model has children.
func (w *world) Supervision(context.Context, string) (supervisor string, askedBy []string, err error) {
	return "", nil, nil
}

// RunningTasks is for the work plane.
func (w *world) RunningTasks(ctx context.Context, agentID, itemID string) (running []workplane.RunningTask, err error) {
	r, err := w.tasks().ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: agentID, WorkItemId: itemID, PageSize: 500})
	for _, t := range r.GetTasks() {
		running = append(running, workplane.RunningTask{TaskID: t.GetTaskId(), Blocking: t.GetBlocking()})
	}
	return running, err
}

func (w *world) build(name string) (m module, err error) {
	sources := func(of string) ([]journal.Source, error) {
		all, err := w.journals.Sources(of)
		for i, src := range all {
			all[i] = w.taps.add(of+">"+name, w.feeds.Source(src))
		}
		return all, err
	}
	deps := plane.Deps{Log: w.journals.Log, Sources: sources, Feeds: w.feeds, Clock: w.clk, WaitClock: impatient{}, IDs: w.ids[name]}
	switch name {
	case "agent":
		w.agent, err = agentplane.New(agentplane.Config{}, agentplane.Deps{
			Deps: deps, Work: w.works(), Waiting: w.waits(), MintRun: w.keys.MintRun,
			Conn: func(p string) (grpc.ClientConnInterface, error) { return lazy{w, p}, nil },
		})
		return w.agent, err
	case "work":
		w.work, err = workplane.New(workplane.Config{Home: w.home}, workplane.Deps{Deps: deps, Tasks: w, Agents: w})
		return w.work, err
	case "waiting":
		w.waiting, err = waitingplane.New(waitingplane.Config{}, waitingplane.Deps{
			Deps: deps, Work: w.works(), Tasks: w.tasks(), Agents: w, TriggerSecret: func(name string) string { return "secret-" + name },
		})
		return w.waiting, err
	case "task":
		w.task, err = taskplane.New(taskplane.Config{}, taskplane.Deps{
			Deps: deps, Output: w.output,
			Workspace: func(ctx context.Context, agentID string) (taskplane.Workspace, error) {
				return taskplane.Workspace{}, w.AgentExists(ctx, agentID)
			},
			OwnsItem: func(ctx context.Context, agentID, itemID string) error {
				_, err := w.works().GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: agentID, WorkItemId: itemID})
				return err
			},
		})
		return w.task, err
	}
	// Without sweeps after the first: what events do not bring about would be
	// brought about by a sweep, and nobody would notice.
	w.sched, err = schedulerplane.New(schedulerplane.Config{Sweep: 1000000 * time.Hour}, schedulerplane.Deps{Sources: sources, Agents: w.agents(), Work: w.works(), Waiting: w.waits(), Clock: w.clk})
	return w.sched, err
}

func (w *world) start(name string) error {
	m, err := w.build(name)
	if err != nil {
		return err
	}
	if err := m.Start(w.ctx); err != nil {
		return err
	}
	srv := rpc.NewServer(rpc.Config{Auth: w.keys, Deadlines: taskplane.Deadlines()})
	m.Register(srv)
	// The name is free once the server before has let it go.
	for began := time.Now(); ; runtime.Gosched() {
		if err = w.network.Listen(name, srv); err == nil {
			break
		}
		if time.Since(began) > hang {
			return err
		}
	}
	w.stops[name] = func() error {
		if name == "task" && w.worker != nil {
			w.worker.leave()
		}
		if r, ok := m.(released); ok {
			r.Release()
		}
		err := m.Stop(context.Background())
		srv.Stop()
		w.taps.remove(name)
		return err
	}
	switch name {
	case "task":
		w.worker, err = w.connect(w.worker)
		return err
	case "scheduler":
		for began := time.Now(); w.sched.Ready() != nil; runtime.Gosched() {
			if time.Since(began) > hang {
				return errors.New("the scheduler's first sweep hangs")
			}
		}
	}
	return nil
}

func (w *world) stop(name string) error {
	if w.stops[name] == nil {
		return nil
	}
	err := w.stops[name]()
	delete(w.stops, name)
	return err
}

// tails returns where the journals end.
func (w *world) tails() (tails [4]uint64) {
	for i, p := range []string{"agent", "work", "waiting", "task"} {
		log, err := w.journals.Log(p, 0)
		if err == nil {
			_, tails[i], err = log.Tail(context.Background())
		}
		if err != nil {
			panic(err)
		}
	}
	return tails
}

func (w *world) tail(p string) uint64 {
	return w.tails()[slices.Index([]string{"agent", "work", "waiting", "task"}, p)]
}

// quiet waits until nothing goes on any more: all that is due has happened, every
// follower that is not held back has heard what its source holds, what it made of
// it is on disk, and the scheduler has looked at whom it marked.
func (w *world) quiet() error {
	done := make(chan error, 1)
	go func() {
		for {
			before := w.tails()
			if err := errors.Join(w.waiting.Quiesce(w.ctx), w.agent.Quiesce(w.ctx), w.work.Quiesce(w.ctx), w.task.Quiesce(w.ctx)); err != nil {
				done <- err
				return
			}
			w.taps.settle(w.tail)
			if err := errors.Join(w.waiting.Quiesce(w.ctx), w.agent.Quiesce(w.ctx), w.work.Quiesce(w.ctx)); err != nil {
				done <- err
				return
			}
			w.sched.Quiesce()
			if w.tails() == before {
				done <- nil
				return
			}
		}
	}()
	watch := time.NewTimer(hang)
	defer watch.Stop()
	select {
	case err := <-done:
		return err
	case <-watch.C:
		return fmt.Errorf("not quiet after %s: %s", hang, w.taps.where(w.tail))
	}
}

// impatient is the real clock, with timers of at most 500 ms: what a held-back follower would
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

// taps stand between the journals and who follows them: they know how far each
// has heard, and hold it back.
type taps struct {
	mu    sync.Mutex
	moved *sync.Cond
	all   map[string]*tap
	held  map[string]bool
}

// tap is one follower's way to one journal.
type tap struct {
	journal.Source
	edge string
	taps *taps
	pos  uint64 // guarded by taps.mu
	on   bool
}

func newTaps() *taps {
	ts := &taps{all: map[string]*tap{}, held: map[string]bool{}}
	ts.moved = sync.NewCond(&ts.mu)
	return ts
}

func (ts *taps) add(edge string, src journal.Source) *tap {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := &tap{Source: src, edge: edge, taps: ts}
	ts.all[edge] = t
	return t
}

// remove forgets the taps of a service that was stopped.
func (ts *taps) remove(name string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for edge := range ts.all {
		if strings.HasSuffix(edge, ">"+name) {
			delete(ts.all, edge)
		}
	}
}

func (ts *taps) hold(edge string, held bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.held[edge] = held
	ts.moved.Broadcast()
}

func (ts *taps) releaseAll() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	clear(ts.held)
	ts.moved.Broadcast()
}

// Follow implements journal.Source.
func (t *tap) Follow(ctx context.Context, from uint64, fn func(uint64, []journal.Line) error) error {
	t.move(from-1, true)
	stop := context.AfterFunc(ctx, func() {
		t.taps.mu.Lock()
		defer t.taps.mu.Unlock()
		t.taps.moved.Broadcast()
	})
	defer stop()
	return t.Source.Follow(ctx, from, func(seq uint64, lines []journal.Line) error {
		if err := t.wait(ctx); err != nil {
			return err
		}
		err := fn(seq, lines)
		t.move(seq, err == nil)
		return err
	})
}

func (t *tap) move(pos uint64, on bool) {
	t.taps.mu.Lock()
	defer t.taps.mu.Unlock()
	if on {
		t.pos, t.on = pos, true
	}
	t.taps.moved.Broadcast()
}

func (t *tap) wait(ctx context.Context) error {
	t.taps.mu.Lock()
	defer t.taps.mu.Unlock()
	for t.taps.held[t.edge] && ctx.Err() == nil {
		t.taps.moved.Wait()
	}
	return ctx.Err()
}

func source(edge string) string { return edge[:strings.Index(edge, ">")] }

// settle waits until all that are not held back have heard everything.
func (ts *taps) settle(tail func(plane string) uint64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.all {
		for !ts.held[t.edge] && (!t.on || t.pos < tail(source(t.edge))) {
			ts.moved.Wait()
		}
	}
}

func (ts *taps) where(tail func(plane string) uint64) string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var all []string
	for edge, t := range ts.all {
		all = append(all, fmt.Sprintf("%s %d/%d held=%t", edge, t.pos, tail(source(edge)), ts.held[edge]))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
