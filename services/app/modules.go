package app

import (
	"net/http"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/deploy/openapi"
	"quartet/pkg/journal"
	"quartet/pkg/keyfile"
	"quartet/pkg/life"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/services/app/installation"
	"quartet/services/backup"
	"quartet/services/console"
	"quartet/services/fleet"
	"quartet/services/gateway"
	"quartet/services/identity"
	"quartet/services/mcp"
	"quartet/services/quota"
	"quartet/services/scheduler"
	taskoutput "quartet/services/task/output"
	"quartet/services/worker"
)

// serviceRow describes one service of a process.
type serviceRow struct {
	name  string
	build func() (life.Service, error)
	// callable says that others call the service, so it must run before the gRPC server accepts calls. Other services
	// only call.
	callable bool
	needs    []string // further modules that must run before it
}

// services returns one row for each service that a process can serve. A service is built only when
// its row's build is called.
func (w *wiring) services() []serviceRow {
	var rows []serviceRow
	for _, p := range w.planes() {
		rows = append(rows, serviceRow{p.name, func() (life.Service, error) { return w.plane(p) }, true, p.needs})
	}
	return append(rows,
		serviceRow{name: "backup", build: w.newBackup, callable: true},
		serviceRow{name: "scheduler", build: w.newScheduler},
		serviceRow{name: "worker", build: w.newWorker},
		serviceRow{name: "gateway", build: w.newGateway},
	)
}

// plane builds a plane: one that holds all its partitions, or, if other processes may serve it too, a host of the
// partitions whose leases this process holds. It registers the methods of a host on the process's server, and adds it
// to w.hosts.
func (w *wiring) plane(p planeRow) (life.Service, error) {
	if w.keeper == nil {
		return p.build(w.deps, journal.Share{})
	}
	h := newHost(&host{
		name: p.name, build: p.build, deps: w.deps, broker: w.broker, keeper: w.keeper, copy: w.cfg.Publish,
		logger: w.logger,
	}, w.metrics)
	w.hosts[p.name] = h
	return h, h.route(w.server, w.network, w.deps.IDs.New, p.missing, p.search...)
}

// newBackup builds the backup service.
func (w *wiring) newBackup() (life.Service, error) {
	return backup.New(backup.Config{
		Journals: journalStreams, Output: taskoutput.StreamName, Home: w.cfg.HomeDir, Key: func() keyfile.Key {
			return w.keys.Ring().Active()
		}, Version: w.version,
	}, backup.Deps{
		Conn: func() *nats.Conn { return w.broker.readers }, Partitions: w.broker.split, Record: w.recorder.Stream,
		Logger:  w.logger.Named("backup"),
		Archive: w.cfg.places().Store, Snapshots: w.broker.snapshots,
	})
}

// newScheduler builds the scheduler.
func (w *wiring) newScheduler() (life.Service, error) {
	return scheduler.New(scheduler.Config{}, scheduler.Deps{
		Sources: w.broker.sources, Agents: agentv1.NewAgentServiceClient(w.calls.To("agent")), Work: w.calls.Work(),
		Waiting: waitingv1.NewWaitingServiceClient(w.calls.To("waiting")), Logger: w.logger, Tracer: w.app.tracer,
		Metrics: w.metrics,
	})
}

// newWorker builds the worker that runs in this process.
func (w *wiring) newWorker() (life.Service, error) {
	confinement, err := w.cfg.confinement()
	if err != nil {
		return nil, err
	}
	if w.cfg.Auth == AuthRequired {
		w.logger.Warn("this process holds the installation's keys and executes commands of agents; on a machine with "+
			"others, use separate workers (embedded-worker=off)", zap.Bool("confined", confinement != nil))
	}
	return worker.New(worker.Config{
		Confinement: confinement,
		ID:          w.cfg.WorkerID, Roots: w.cfg.WorkerRoots, Isolate: worker.Isolation(w.cfg.WorkerIsolate),
		Capacity: w.cfg.WorkerCapacity, Logger: w.logger,
		Pools: w.cfg.WorkerPools, Labels: w.cfg.WorkerLabels, Guard: w.cfg.WorkerGuard,
		MaxMemory: int64(w.cfg.WorkerMemory) << 20, MaxProcesses: w.cfg.WorkerProcesses,
		StateDir: filepath.Join(w.cfg.DataDir, "worker"), Tracer: w.app.tracer,
		Dial: func() (grpc.ClientConnInterface, error) { return w.network.Dial("task") },
	})
}

// newGateway builds the gateway, with MCP.
func (w *wiring) newGateway() (life.Service, error) {
	limits, err := w.cfg.quotas()
	if err != nil {
		return nil, err
	}
	if err := w.newFleet(); err != nil {
		return nil, err
	}
	signIn, err := w.creds.signIn(w.cfg, w.keys, w.logger)
	if err != nil {
		return nil, err
	}
	ui, err := console.New(console.Deps{
		Auth: w.creds.authenticator, Keys: w.keys.Ring, SignIn: signIn,
		Version: w.version,
	})
	if err != nil {
		return nil, err
	}
	w.app.gateway,
		err = gateway.New(gateway.Config{
		HTTPAddr:          w.cfg.HTTPAddr,
		SourceDeliveries:  limits.Default[quota.Deliveries] * sourcesOf,
		SourceDeliveryKiB: limits.Default[quota.DeliveryKiB] * sourcesOf, Connections: w.cfg.connections(),
		MetricsAuth: w.cfg.gatewayMetricsAuth(), AllowedOrigins: w.cfg.allowedOrigins(),
	}, gateway.Deps{
		MCP: w.mcp, Console: ui, Conn: w.calls.Conn, Waits: waits, Auth: w.creds.authenticator,
		Admission: w.admission, TLS: w.tls.http,
		Sources: w.broker.sources, Ready: w.app.Ready, Damage: w.broker.feeds.Damage.All, Warning: w.fill.Warning,
		Down: installation.NewWatch(w.installation).Down, OpenAPI: openapi.JSON,
		Logger: w.logger, Metrics: w.metrics, Tracer: w.app.tracer, Version: w.version,
		Listening: w.app.tokens.publish, Closing: w.app.tokens.remove,
	})
	return w.app.gateway, err
}

// mcp returns the handler of an agent's tools.
func (w *wiring) mcp(conn func(service string) (grpc.ClientConnInterface, error),
	refuse func(http.ResponseWriter, *http.Request, error),
) (http.Handler, error) {
	tools, err := mcp.New(mcp.Config{Version: w.version}, mcp.Deps{Conn: conn})
	if err != nil {
		return nil, err
	}
	return tools.Handler(refuse), nil
}

// newFleet builds the overview of agents, which processes with a gateway serve.
func (w *wiring) newFleet() error {
	f, err := fleet.New(fleet.Deps{
		Sources: w.broker.sources, Agents: agentv1.NewAgentServiceClient(w.calls.To("agent")),
		Boards: boardv1.NewBoardServiceClient(w.calls.To("board")), Logger: w.logger,
	})
	if err != nil {
		return err
	}
	f.Register(w.server)
	w.app.edge.release = append(w.app.edge.release, f.Stop)
	return nil
}

// registrar is a service that others call over gRPC.
type registrar interface {
	Register(srv grpc.ServiceRegistrar)
}

// journaled is a service with a journal. Stalled returns for how long the journal could
// not be written, 0 while it can.
type journaled interface{ Stalled() time.Duration }

// table collects the modules of a process, and what the modules around the services have
// to know about them.
type table struct {
	w       *wiring
	modules []life.Module
	before  []string    // names of the modules that run before the gRPC server accepts calls
	planes  []string    // names of the planes whose events may be published
	stalls  []journaled // the services with a journal
	gauges  *gauges
}

// newTable returns a table with the modules that services use. Its before has those of them that the gRPC server
// waits for; a service waits for what its row needs.
func newTable(w *wiring) *table {
	t := &table{w: w, gauges: newGauges(w.metrics)}
	t.module(w.broker)
	t.module(w.fill, "nats")
	t.module(w.creds.keys, "nats")
	t.before = []string{"nats", w.fill.Name(), "keys", w.gate.Name()}
	t.module(w.gate, "nats")
	if most := w.cfg.memory(); most > 0 {
		t.module(observeMemory(w.gate, most))
	}
	if w.cfg.Auth == AuthRequired { // else there is one tenant
		t.module(&life.Periodic{Label: "delay", Period: delayPeriod, Do: w.gate.ObserveDelay})
	}
	if w.bucket != nil {
		t.module(w.bucket)
	}
	if w.cfg.serves("task") {
		t.module(w.output, "nats")
	}
	return t
}

// module appends a module, which needs those with the given names to run before it.
func (t *table) module(s life.Service, needs ...string) {
	t.modules = append(t.modules, life.Module{Service: s, Needs: needs})
}

// add builds a service, registers it on the gRPC server, and appends it.
func (t *table) add(row serviceRow) error {
	s, err := row.build()
	if err != nil {
		return err
	}
	edge := t.w.app.edge
	if r, ok := s.(registrar); ok {
		r.Register(t.w.server)
	}
	if j, ok := s.(journaled); ok {
		t.stalls = append(t.stalls, j)
		t.gauges.journals[s.Name()] = append(t.gauges.journals[s.Name()], j)
		// hosts publish themselves; events of API keys are not published
		if _, hosted := s.(*host); !hosted && s.Name() != identity.Plane {
			t.planes = append(t.planes, s.Name())
		}
	}
	if g, ok := s.(sampled); ok {
		t.gauges.of = append(t.gauges.of, g)
	}
	if r, ok := s.(interface{ Release() }); ok {
		edge.release = append(edge.release, r.Release)
	}
	edge.names = append(edge.names, row.name)

	// A service that calls this process's planes stops before they are handed over.
	runsBefore := edge.Name()
	switch {
	case row.callable:
		runsBefore = "nats"
		t.before = append(t.before, row.name)
	case t.w.keeper != nil:
		runsBefore = "leases"
	}
	t.module(s, append(row.needs, runsBefore)...)
	t.modules[len(t.modules)-1].Beside = row.callable // these load journals, side by side
	return nil
}

// complete appends the modules that run around the services, and returns all modules.
func (t *table) complete() []life.Module {
	w, cfg, edge := t.w, t.w.cfg, t.w.app.edge
	if cfg.serves("gateway") {
		edge.names = append(edge.names, "event", "fleet")
	}
	t.module(edge, t.before...)
	t.module(w.recorder, edge.Name())
	if w.keeper != nil {
		// It starts when this process can be reached, and hands over while it still can be.
		t.module(&leases{cfg: cfg, broker: w.broker, edge: edge, keeper: w.keeper}, edge.Name())
	}
	if cfg.Publish && len(t.planes) > 0 {
		t.module(&publisher{broker: w.broker, planes: t.planes, logger: w.logger, metrics: w.metrics}, "nats")
	}
	t.module(followKeyFile(w.keys, w.logger))
	t.module(w.processes, edge.Name())
	t.module(guard(w.broker, t.stalled, w.logger), t.before...)
	if cfg.NATSURL == "" {
		t.module(newScrubber(w), "nats")
	}
	t.module(&life.Periodic{Label: "gauges", Period: samplePeriod, Do: t.gauges.sample}, t.before...)
	if cfg.MetricsAddr != "" {
		w.app.metrics = &metricsPort{addr: cfg.MetricsAddr, from: w.metrics}
		if cfg.MetricsAuth == AuthRequired {
			w.app.metrics.auth = w.creds.authenticator
		}
		t.module(w.app.metrics)
	}
	if cfg.PProfAddr != "" {
		t.module(&profiles{addr: cfg.PProfAddr})
	}
	return t.modules
}

// stalled returns the longest time for which a journal of this process has been unable to
// write, 0 while all can.
func (t *table) stalled() time.Duration {
	var most time.Duration
	for _, s := range t.stalls {
		most = max(most, s.Stalled())
	}
	return most
}
