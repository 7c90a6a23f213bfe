package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"quartet/pkg/bus"
	"quartet/pkg/clock"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/services/app/calls"
	boardplane "quartet/services/board"
	taskplane "quartet/services/task"
	taskoutput "quartet/services/task/output"
	"quartet/tests/planes"
	"quartet/tests/sim/engine"
)

// journals are the planes that have one.
var journals = append(slices.Clone(planes.Names[:4]), "board")

// stepLease is how long a worker may be silent about a step of a board.
const stepLease = 20 * time.Second

// life is one life of a service.
type life struct {
	name    string
	tag     string // the name of this life, or of this part of it
	proc    *engine.Process
	feeds   *journal.Feeds
	held    journal.Lease   // of its partitions
	ctx     context.Context //nolint:containedctx // of the life
	cancel  context.CancelFunc
	module  planes.Module
	copies  *bus.Publisher // of its journal, if it has one
	server  *rpc.Server
	conn    grpc.ClientConnInterface
	serving bool
	ended   bool // it is being stopped; nothing is done for it any more

	over      atomic.Bool     // its lease
	positions plane.Positions // of what it has consumed
}

// Valid implements journal.Lease. A process that is suspended holds nothing any more when another one takes over, and
// what it has sent to the log is refused there.
func (l *life) Valid() bool { return !l.over.Load() }

// world is the five services of a run. Everything that crosses a seam goes through the queue.
type world struct {
	segment  int64 // size of segments; 0: there is one
	snapshot int64 // bytes of frames after which a snapshot is written; 0: none is
	q        *engine.Queue
	disk     engine.Disk
	home     string
	names    []string // of what lives: services, or instances of all of them
	planes   []string // of those that have a journal, which the world has
	together bool     // all services are one process, with feeds and hints between them
	leases   *engine.Leases
	events   *engine.Events
	called   int // calls of clients to instances
	shift    *steps
	books    *books
	did      *executions

	ctx     context.Context //nolint:containedctx // of one run
	cancel  context.CancelFunc
	network *rpc.Network
	keys    *rpc.Keyring
	output  taskoutput.Store

	mu            sync.Mutex
	logs          map[string]*journaltest.MemLog
	stores        map[string]*journaltest.MemSnapshots
	archives      map[string]archive.Store
	archived      bool // closed segments are archived
	evicts        bool // what can be is evicted after each event
	short         bool // and events in them are removed once they are old
	spoiled       bool // a journal was damaged
	fromSnapshots int  // loads that began at one
	lives         map[string]*life
	// replaced are lives that know nothing of those which took over from them.
	replaced []*life
	ends     map[string]*witness
	feeds    *journal.Feeds // of the process that all services are
	born     int
	work     sync.WaitGroup // services that start or stop
	err      error          // a service that could not be started for a reason that is no fault
}

func newWorld(q *engine.Queue, home string, together bool, names []string) *world {
	keys := rpc.NewKeyring(nil, false)
	w := &world{
		q: q, home: home, together: together, names: names, planes: journals[:4],
		did: &executions{all: map[string]map[int64]*execution{}, once: map[string]string{}}, leases: engine.NewLeases(),
		shift: &steps{}, books: newBooks(), keys: keys,
		network: rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Renewed: func() string {
			return keys.MintService("test")
		}}),
		output: taskoutput.NewMemory(taskoutput.Kept), logs: map[string]*journaltest.MemLog{},
		stores: map[string]*journaltest.MemSnapshots{}, archives: map[string]archive.Store{}, lives: map[string]*life{},
		ends: map[string]*witness{}, feeds: journal.NewFeeds(),
	}
	w.events = engine.NewEvents(w.books.copied.message)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for _, p := range journals {
		w.logs[p], w.stores[p] = journaltest.NewMemLog(), journaltest.NewMemSnapshots()
		w.archives[p], w.ends[p] = &journaltest.MemArchive{}, &witness{}
	}
	return w
}

// witness is the witness of one journal. It outlives the processes that write it, as the memory of a machine does.
type witness struct {
	mu  sync.Mutex
	end framelog.End
}

// Last implements framelog.Witness.
func (s *witness) Last() (framelog.End, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end, nil
}

// Record implements framelog.Witness.
func (s *witness) Record(end framelog.End) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = end
}

// steps is a clock that was set: the machine's clock of the bubble and what the run added to it.
type steps struct {
	mu  sync.Mutex
	off time.Duration
}

func (s *steps) offset() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.off
}

func (s *steps) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off += d
}

// Now implements clock.Clock.
func (s *steps) Now() time.Time { return time.Now().Add(s.offset()) }

// TimerAt implements clock.Clock. A timer does not know of a later step, as those of the operating system do not.
func (s *steps) TimerAt(t time.Time) clock.Timer { return clock.System().TimerAt(t.Add(-s.offset())) }

// conn returns a connection of a process to a service, whichever life that has.
func (w *world) conn(of *engine.Process, from, to string) grpc.ClientConnInterface {
	return &engine.Conn{
		Queue: w.q, Of: of, Edge: from + ">" + to, Identify: w.split(),
		Around:   func(args any) func(any, error) { return w.books.around(to, args) },
		Repeated: func(args any) { w.books.repeated(args, to) },
		Serving: func() (*engine.Process, grpc.ClientConnInterface) {
			w.mu.Lock()
			defer w.mu.Unlock()
			l := w.lives[to]
			switch {
			case !w.split():
			case of == nil:
				l = w.anInstance()
			default:
				l = w.lifeOf(of)
			}
			if l != nil && l.serving && !l.proc.Dead() {
				return l.proc, l.conn
			}
			return nil, nil
		},
	}
}

// split reports whether what lives are instances of all services.
func (w *world) split() bool { return &w.names[0] == &instanceNames[0] }

// lifeOf returns the life of a process, nil if it was replaced. w.mu must be held.
func (w *world) lifeOf(p *engine.Process) *life {
	for _, name := range w.names {
		if l := w.lives[name]; l != nil && l.proc == p {
			return l
		}
	}
	return nil
}

// parts returns what a life is built from.
func (w *world) parts(l *life) planes.Parts {
	dial := func(to string) grpc.ClientConnInterface { return w.conn(l.proc, l.tag, to) }
	log := func(of string) framelog.Log {
		log := &engine.Log{
			Queue: w.q, Of: l.proc, Name: l.tag + ":" + of, Inner: w.logs[of], Disk: &w.disk,
			Stored: func(seq uint64, f framelog.Frame) {
				w.books.stored(of, seq, f)
			},
		}
		if !w.archived {
			return log
		}
		return archive.NewLog(log, &engine.Archive{
			Queue: w.q, Of: l.proc, Name: l.tag + ":" + of, Inner: w.archives[of], Disk: &w.disk,
		}, framelog.PartitionName(of, 0))
	}
	return planes.Parts{
		Home: w.home, Output: &outputs{w.output, engine.Store{
			Queue: w.q, Of: l.proc, Name: "output " + l.tag, Disk: &w.disk,
		}}, StepLease: stepLease, Keys: w.keys, Calls: calls.Planes{Network: w.network, Via: dial},
		Conn:  dial,
		Sweep: 1000000 * time.Hour, // events must bring about everything
		Deps: plane.Deps{
			Log:     func(of string, _ int) (framelog.Log, error) { return log(of), nil },
			Witness: func(of string, _ int) framelog.Witness { return w.ends[of] },
			Sources: func(of string) ([]journal.Source, error) {
				src := l.feeds.Source(journal.NewSource(of, 0, log(of)))
				return []journal.Source{&engine.Source{Source: src, Queue: w.q, Of: l.proc, Edge: of + ">" + l.tag}}, nil
			},
			Snapshots: func(of string, _ int) (snapshot.Store, error) {
				if w.snapshot == 0 {
					return nil, nil
				}
				return &engine.Snapshots{
					Queue: w.q, Of: l.proc, Name: l.tag + ":" + of, Inner: w.stores[of], Disk: &w.disk,
				}, nil
			},
			SnapshotBytes: w.snapshot, Eviction: w.eviction(), CheckRestored: w.checked(), EraseAfter: w.eraseAfter(),
			EraseEvents: func(ctx context.Context, of, namespace, agentID string) error {
				store := engine.Store{Queue: w.q, Of: l.proc, Name: "events " + l.tag}
				return store.Change(ctx, "erase "+of+" "+agentID, func() error {
					w.events.Erase(bus.EventPrefix + namespace + "." + of + "." + agentID + ".")
					return nil
				})
			},
			History: plane.History{Default: w.history()}, Positions: &l.positions, ReadThrough: w.readThrough,
			SegmentSize: w.segment, Lease: l.held, Feeds: l.feeds, Clock: w.shift, IDs: &ids{life: l.tag},
			Arrive: func(ctx context.Context, method, agentID, requestID string) {
				if method == "view" && ctx.Value(ownKey{}) != nil {
					return // it looks again and again for deleted agents
				}
				agentID = cmp.Or(agentID, plane.ReadOf(ctx))
				_, _ = w.q.Park(ctx, engine.Crossing{Edge: "command " + l.tag + " " + method + " " + agentID + " " +
					requestID, Of: l.proc})
			},
		},
	}
}

// eviction is plane.Deps.Eviction.
func (w *world) eviction() *snapshot.EvictionPolicy {
	if w.evicts {
		return &snapshot.EvictionPolicy{Always: true}
	}
	return nil
}

// checked returns the function that compares states; nil once a journal was damaged: what is damaged before a snapshot
// is in one of them only.
func (w *world) checked() func(restored, replayed journal.State) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.spoiled || w.history() > 0 { // the log has not all of it any more
		return nil
	}
	return w.restored
}

// restored compares a state that was read from a snapshot with that of the whole log.
func (w *world) restored(restored, replayed journal.State) error {
	err := journaltest.Same(restored, replayed)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fromSnapshots++; err != nil && w.err == nil {
		w.err = fmt.Errorf("a state that was read from a snapshot differs from that of the log: %w", err)
	}
	return err
}

// ids are the ids of one life: no other life makes the same, and none depends on what another life made.
type ids struct {
	life string
	mu   sync.Mutex
	n    int
}

// New implements id.Source. Ids of one life sort in the order in which they were made, as id.Source promises.
func (s *ids) New(prefix string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	tail := id.Derived("", s.life, fmt.Sprint(s.n))
	return prefix + fmt.Sprintf("%010d", time.Since(epoch).Microseconds()/1000)[:10] + fmt.Sprintf("%06d", s.n) +
		tail[:10]
}

// epoch is when the clock of a bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// start begins a new life of a service, in the background.
func (w *world) start(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.born++
	ctx, cancel := context.WithCancel(w.ctx)
	l := &life{name: name, tag: fmt.Sprintf("%s.%d", name, w.born), feeds: w.feeds, ctx: ctx, cancel: cancel}
	if l.proc, l.held = engine.NewProcess(l.tag), l; !w.together {
		l.feeds = journal.NewFeeds()
	}
	w.lives[name] = l
	w.work.Go(func() { w.live(ctx, l) })
}

// ownKey is the context key of what a service does by itself.
type ownKey struct{}

// live starts a service, again and again if a fault keeps it from that.
func (w *world) live(ctx context.Context, l *life) {
	for n := 0; ; n++ {
		o, err := w.q.Park(ctx, engine.Crossing{Edge: "start " + l.proc.Name, Of: l.proc})
		if err != nil || o != engine.Pass {
			return
		}
		var m planes.Module
		if w.split() {
			m, err = w.newInstance(l)
		} else {
			m, err = planes.Build(l.name, w.parts(l))
		}
		if err == nil {
			err = m.Start(context.WithValue(ctx, ownKey{}, true))
		}
		if err == nil && slices.Contains(journals, l.name) {
			l.copies, err = w.publish(l)
		}
		if err == nil {
			w.serve(l, m)
			return
		}
		if m != nil {
			gone, cancel := context.WithCancel(ctx)
			cancel()
			_ = m.Stop(gone)
		}
		if l.proc.Dead() || ctx.Err() != nil {
			return
		}
		if n == 20 {
			w.mu.Lock()
			w.err = fmt.Errorf("%s does not start: %w", l.name, err)
			w.mu.Unlock()
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}

// serve makes a started service reachable.
func (w *world) serve(l *life, m planes.Module) {
	deadlines := taskplane.Deadlines()
	maps.Copy(deadlines, boardplane.Deadlines())
	srv := rpc.NewServer(rpc.Config{Auth: w.keys, Deadlines: deadlines})
	m.Register(srv)
	err := w.network.Listen(l.proc.Name, srv)
	conn, dialErr := w.network.Dial(l.proc.Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	l.module, l.server, l.conn = m, srv, conn
	if err != nil || dialErr != nil {
		w.err = fmt.Errorf("%s: %w %w", l.name, err, dialErr)
		return
	}
	l.serving = true
	if l.ended { // it was stopped meanwhile
		l.serving = false
		w.work.Go(func() { w.end(l, true) })
	}
}

// end stops a life. A dead one is swept up.
func (w *world) end(l *life, dead bool) {
	ctx, cancel := context.WithCancel(l.ctx) // a crash ends an orderly stop
	if dead {
		cancel()
	}
	defer cancel()
	if r, ok := l.module.(interface{ Release() }); ok {
		r.Release()
	}
	if l.copies != nil {
		l.copies.Stop()
	}
	_ = l.module.Stop(ctx)
	l.server.Stop()
}

// crash kills services at once, and begins new lives of them. All are one process or each is one.
func (w *world) crash(names ...string) {
	if w.together {
		names = w.names
	}
	w.kill(names)
	if w.together {
		w.feeds = journal.NewFeeds()
	}
	for _, name := range names {
		w.start(name)
	}
}

// kill kills services at once.
func (w *world) kill(names []string) {
	var procs []*engine.Process
	w.mu.Lock()
	for _, name := range names {
		procs = append(procs, w.lives[name].proc)
	}
	w.mu.Unlock()
	w.q.Kill(procs...)
	for _, name := range names {
		w.sweep(name)
	}
}

// replace begins a new life of a service whose process goes on for a while, as one that was suspended does.
func (w *world) replace(name string) {
	w.mu.Lock()
	l := w.lives[name]
	if w.together || !l.serving {
		w.mu.Unlock()
		return
	}
	l.serving, l.ended = false, true
	l.over.Store(true)
	w.replaced = append(w.replaced, l)
	w.mu.Unlock()
	w.start(name)
}

// sweepReplaced kills what was replaced.
func (w *world) sweepReplaced() {
	w.mu.Lock()
	gone := w.replaced
	w.replaced = nil
	w.mu.Unlock()
	var procs []*engine.Process
	for _, l := range gone {
		procs = append(procs, l.proc)
	}
	w.q.Kill(procs...)
	for _, l := range gone {
		l.cancel()
		w.work.Go(func() { w.end(l, true) })
	}
}

// restart stops a service that serves, in order, and then begins a new life of it.
func (w *world) restart(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lives[name]
	if !l.serving {
		return
	}
	l.serving, l.ended = false, true
	w.work.Go(func() {
		w.end(l, false)
		if !l.proc.Dead() { // otherwise a new life has begun
			w.start(name)
		}
	})
}

// sweep sweeps up a dead life in the background.
func (w *world) sweep(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lives[name]
	l.cancel()
	l.ended = true
	if !l.serving {
		return // live or end sees it
	}
	l.serving = false
	w.work.Go(func() { w.end(l, true) })
}

// up reports whether all services serve.
func (w *world) up() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.names {
		if l := w.lives[name]; l == nil || !l.serving {
			return false
		}
	}
	return !w.split() || w.allHeld()
}

// failed returns why the world is broken, nil if it is not.
func (w *world) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// close kills everything and waits until it has ended.
func (w *world) close() error {
	w.sweepReplaced()
	w.kill(w.names)
	w.cancel()
	w.q.Close()
	w.work.Wait()
	return w.network.Close()
}

// frames returns what a journal holds.
func (w *world) frames(of string) (all []framelog.Frame) {
	_ = archive.NewLog(w.logs[of], w.archives[of], framelog.PartitionName(of, 0)).Scan(context.Background(), 0,
		func(_ uint64, f framelog.Frame) error {
			all = append(all, f)
			return nil
		})
	return slices.Clip(all)
}
