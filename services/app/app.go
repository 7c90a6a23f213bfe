package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/deploy/openapi"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/lease"
	"quartet/pkg/life"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
	"quartet/services/backup"
	"quartet/services/gateway"
	"quartet/services/identity"
	"quartet/services/mcp"
	"quartet/services/quota"
	"quartet/services/scheduler"
	taskoutput "quartet/services/task/output"
	"quartet/services/worker"
)

// App is one process of Quartet.
type App struct {
	cfg     Config
	logger  *zap.Logger
	broker  *broker
	edge    *edge
	gateway *gateway.Service
	tracer  *tracing.Tracer
	metrics *metricsPort
	group   *life.Group
}

// registrar is a service that others call over gRPC.
type registrar interface {
	life.Service
	Register(srv grpc.ServiceRegistrar)
}

// journaled is a plane, as the guard sees it.
type journaled interface{ Stalled() time.Duration }

// New builds the table of modules. Nothing is opened before Start.
func New(cfg Config, logger *zap.Logger, version string) (*App, error) { //nolint:gocyclo // the composition root: one line of wiring after the other
	if logger == nil {
		logger = zap.NewNop()
	}
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	weights, err := cfg.weights()
	if err != nil {
		return nil, err
	}
	key, err := loadKey(cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	if cfg.HTTPAddr == "" {
		return nil, errors.New("http-addr is empty")
	}
	a := &App{cfg: cfg, logger: logger}
	metrics := newRegistry(version)
	creds, err := newCallers(&a.cfg, key, logger)
	if err != nil {
		return nil, err
	}
	keyring := creds.keyring
	wire, err := openTLS(cfg.TLS, logger)
	if err != nil {
		return nil, err
	}
	a.tracer, err = tracing.New(context.Background(), cfg.tracing(logger, metrics, version))
	if err != nil {
		return nil, err
	}
	network := rpc.NewNetwork(rpc.NetworkConfig{
		Service: "quartet", Token: keyring.MintService("quartet"), Addresses: cfg.Addresses, Transport: wire.dial, Tracer: a.tracer, NewID: id.New().New,
	})
	c := calls{network}
	a.broker = &broker{cfg: &a.cfg, logger: logger, feeds: journal.NewFeeds()}
	creds.follow(a.broker, c, logger)
	deps := plane.Deps{Log: a.broker.log, Sources: a.broker.sources, Feeds: a.broker.feeds, Partitions: a.broker.partitions, IDs: id.New(), Logger: logger, Tracer: a.tracer}

	var keeper *lease.Keeper
	if cfg.clustered() && slices.ContainsFunc(planes, cfg.serves) {
		keeper = lease.NewKeeper(lease.Config{
			ID: deps.IDs.New("inst_"), Replicas: cfg.Replicas, Term: cfg.PartitionLease, Logger: logger.Named("lease"),
		})
	}
	limits, err := cfg.quotas()
	if err != nil {
		return nil, err
	}
	gate := quota.NewGate(quota.Config{Limits: limits, Sources: a.broker.sources, Serves: cfg.serves, Logger: logger, Metrics: metrics})
	var around func(context.Context, string, any, grpc.UnaryHandler) (any, error)
	var limit func(namespace string) error
	permit := identity.Permit
	if gate != nil {
		around, limit, permit = gate.Unary, gate.Request, permitWithin(gate)
	}
	server := rpc.NewServer(rpc.Config{
		Around: around, Transport: wire.serve, Mutual: wire.mutual,
		Auth: creds.door, Log: logger.Named("rpc"), Metrics: metrics, Deadlines: deadlines(),
		Ready: func() error { return a.Ready() }, Fence: c.fence, Permit: permit,
		Tracer: a.tracer, Quiet: quiet,
		Elsewhere: func(service string) grpc.ClientConnInterface { return elsewhere(network, service) },
	})
	a.edge = &edge{addr: cfg.GRPCAddr, network: network, server: server}

	// The architecture on one screen: what runs, and what must run before it
	// in the same process. Whom it calls is in its Deps.
	modules := []life.Module{{Service: a.broker}, {Service: creds.keys, Needs: []string{"nats"}}}
	before := []string{"nats", "keys"}
	if gate != nil {
		modules = append(modules, life.Module{Service: gate, Needs: []string{"nats"}})
		before = append(before, gate.Name())
	}
	deps.Metrics = metrics
	out := &output{broker: a.broker}
	var served []string
	var stalls []journaled
	gauges := newGauges(metrics)
	add := func(s life.Service, err error, needs ...string) error {
		if err != nil {
			return err
		}
		if r, ok := s.(registrar); ok {
			r.Register(server)
		}
		if j, ok := s.(journaled); ok {
			stalls = append(stalls, j)
			gauges.journals[s.Name()] = append(gauges.journals[s.Name()], j)
			if s.Name() != identity.Plane { // who may come in is nobody else's business
				served = append(served, s.Name())
			}
		}
		if g, ok := s.(sampled); ok {
			gauges.of = append(gauges.of, g)
		}
		if r, ok := s.(interface{ Release() }); ok {
			a.edge.release = append(a.edge.release, r.Release)
		}
		modules = append(modules, life.Module{Service: s, Needs: needs})
		return nil
	}
	if cfg.serves("task") {
		modules = append(modules, life.Module{Service: out, Needs: []string{"nats"}})
	}
	type row struct {
		name  string
		build func() (life.Service, error)
		needs []string
	}
	var table []row
	w := wiring{cfg: &a.cfg, calls: c, creds: creds, key: key, output: out, weights: weights, publicURL: a.publicURL(), version: version}
	for _, p := range w.planes() {
		table = append(table, row{p.name, func() (life.Service, error) {
			if keeper == nil {
				return p.build(deps, journal.Share{})
			}
			h := newHost(&host{name: p.name, build: p.build, deps: deps, broker: a.broker, keeper: keeper, copy: cfg.Publish, logger: logger}, metrics)
			return h, h.route(server, network, deps.IDs.New, p.missing, p.search...)
		}, p.needs})
	}
	table = append(table, []row{
		{"backup", func() (life.Service, error) {
			return backup.New(backup.Config{
				Journals: journalStreams(), Output: taskoutput.StreamName, Home: a.cfg.HomeDir, Key: fingerprint(key), Version: version,
			}, backup.Deps{Conn: func() *nats.Conn { return a.broker.readers }, Partitions: a.broker.split, Logger: logger.Named("backup")})
		}, []string{"nats"}},
		{"scheduler", func() (life.Service, error) {
			return scheduler.New(scheduler.Config{}, scheduler.Deps{
				Sources: a.broker.sources, Agents: agentv1.NewAgentServiceClient(c.to("agent")), Work: c.work(),
				Waiting: waitingv1.NewWaitingServiceClient(c.to("waiting")), Logger: logger, Tracer: a.tracer, Metrics: metrics,
			})
		}, []string{"rpc"}},
		{"worker", func() (life.Service, error) {
			return worker.New(worker.Config{
				ID: cfg.WorkerID, Roots: cfg.WorkerRoots, Capacity: cfg.WorkerCapacity, Logger: logger,
				Pools: cfg.WorkerPools, Labels: cfg.WorkerLabels, Guard: cfg.WorkerGuard,
				MaxMemory: int64(cfg.WorkerMemory) << 20, MaxProcesses: cfg.WorkerProcesses,
				StateDir: filepath.Join(cfg.DataDir, "worker"), Tracer: a.tracer,
				Dial: func() (grpc.ClientConnInterface, error) { return network.Dial("task") },
			})
		}, []string{"rpc"}},
		{"gateway", func() (life.Service, error) {
			tools, err := mcp.New(mcp.Config{Version: version}, mcp.Deps{Conn: c.conn})
			if err != nil {
				return nil, err
			}
			gw, err := gateway.New(gateway.Config{HTTPAddr: cfg.HTTPAddr}, gateway.Deps{
				MCP:  tools.Handler,
				Conn: c.conn, Waits: waits, Auth: creds.door, Limit: limit, TLS: wire.http, Sources: a.broker.sources, Ready: func() error { return a.Ready() },
				OpenAPI: openapi.JSON, Logger: logger, Metrics: metrics, Tracer: a.tracer, Version: version,
			})
			a.gateway = gw
			return gw, err
		}, []string{"rpc"}},
	}...)
	for _, row := range table {
		if !cfg.serves(row.name) {
			continue
		}
		s, err := row.build()
		if keeper != nil && row.needs[0] == "rpc" {
			// What calls this process's planes ends before they are handed over.
			row.needs = []string{"leases"}
		}
		if err := add(s, err, row.needs...); err != nil {
			return nil, fmt.Errorf("%s: %w", row.name, err)
		}
		a.edge.names = append(a.edge.names, row.name)
		if row.needs[0] == "nats" {
			before = append(before, row.name)
		}
	}
	if cfg.serves("gateway") {
		a.edge.names = append(a.edge.names, "event")
	}
	modules = append(modules, life.Module{Service: a.edge, Needs: before})
	if keeper != nil {
		// It begins when this process can be reached, and hands over while it still can.
		modules = append(modules, life.Module{Service: &leases{cfg: &a.cfg, broker: a.broker, edge: a.edge, keeper: keeper}, Needs: []string{a.edge.Name()}})
	}
	if cfg.Publish && len(served) > 0 {
		modules = append(modules, life.Module{Service: &publisher{broker: a.broker, planes: served, logger: logger, metrics: metrics}, Needs: []string{"nats"}})
	}
	modules = append(modules, life.Module{Needs: before, Service: &guard{broker: a.broker, logger: logger, stalled: func() time.Duration {
		var most time.Duration
		for _, s := range stalls {
			most = max(most, s.Stalled())
		}
		return most
	}}})
	modules = append(modules, life.Module{Needs: before, Service: gauges})
	if cfg.MetricsAddr != "" {
		a.metrics = &metricsPort{addr: cfg.MetricsAddr, from: metrics}
		modules = append(modules, life.Module{Service: a.metrics})
	}
	if cfg.PProfAddr != "" {
		modules = append(modules, life.Module{Service: &profiles{addr: cfg.PProfAddr}})
	}
	a.group, err = life.NewGroup(modules...)
	return a, err
}

func (a *App) publicURL() string {
	if a.cfg.PublicURL != "" {
		return a.cfg.PublicURL
	}
	return a.scheme() + "://" + a.cfg.HTTPAddr
}

// Start runs the modules in order. A failing one unwinds those before it.
func (a *App) Start(ctx context.Context) error {
	// The worker's commands find their TMPDIR there.
	if err := os.MkdirAll(filepath.Join(a.cfg.DataDir, "worker"), 0o700); err != nil {
		return err
	}
	return a.group.Start(ctx)
}

// Stop ends the modules in reverse.
func (a *App) Stop(ctx context.Context) error {
	err := a.group.Stop(ctx)
	a.flush(ctx)
	return err
}

// Ready is nil when everything that this process serves can be served.
func (a *App) Ready() error { return a.group.Ready() }

// GRPCAddr is where gRPC is served.
func (a *App) GRPCAddr() string { return a.edge.Addr() }

// HTTPAddr is where REST is served, "" without a gateway.
func (a *App) HTTPAddr() string {
	if a.gateway == nil {
		return ""
	}
	return a.gateway.Addr()
}

func joinStop(ctx context.Context, err error, s life.Service) error {
	return errors.Join(err, s.Stop(ctx))
}
