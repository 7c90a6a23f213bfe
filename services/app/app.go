package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"quartet/pkg/life"
	"quartet/pkg/tracing"
	"quartet/services/gateway"
)

// App is one process of Quartet.
type App struct {
	cfg     Config
	logger  *zap.Logger
	tracer  *tracing.Tracer
	edge    *edge
	gateway *gateway.Service // nil if this process serves no gateway
	metrics *metricsPort     // nil without metrics-addr
	tokens  *tokenFiles      // nil unless auth is local
	group   *life.Group
}

// New builds the modules of a process: first what every service is built from, then the
// services that cfg names, then what runs around them. It reads the installation's key, or
// creates it, and reads the TLS files; ports, connections and journals are opened by Start.
// After an error nothing of it runs.
func New(cfg Config, logger *zap.Logger, version string) (_ *App, err error) {
	if logger == nil {
		logger = zap.NewNop()
	}
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	if err := cfg.checkArchive(); err != nil {
		return nil, err
	}
	if cfg.HTTPAddr == "" {
		return nil, errors.New("http-addr is empty")
	}
	a := &App{cfg: cfg, logger: logger}
	defer func() {
		if err != nil {
			a.abandon()
		}
	}()
	w, err := a.wire(version)
	if err != nil {
		return nil, err
	}
	t := newTable(w)
	for _, row := range w.services() {
		if !cfg.serves(row.name) {
			continue
		}
		if row.name == "worker" && !cfg.executes() {
			if cfg.rootIsHome {
				logger.Warn("commands of agents are not executed: the working directory is the home or around it; "+
					"start in the directory of a project, or name directories in worker-roots",
					zap.String("directory", cfg.WorkerRoots[0]))
			}
			continue
		}
		if err := t.add(row); err != nil {
			return nil, fmt.Errorf("%s: %w", row.name, err)
		}
	}
	a.group, err = life.NewGroup(t.complete()...)
	return a, err
}

// abandon ends what New started: the tracer, and the goroutines of the gRPC server.
func (a *App) abandon() {
	a.flush(context.Background())
	if a.edge != nil {
		a.edge.server.Stop()
		_ = a.edge.network.Close() // nothing was dialled
	}
}

// publicURL returns the URL at which outside systems reach the gateway.
func (a *App) publicURL() string {
	if a.cfg.PublicURL != "" {
		return a.cfg.PublicURL
	}
	return a.scheme() + "://" + a.cfg.HTTPAddr
}

// Start starts the modules, each after those that it needs, and returns when all have started. If one
// fails, those before it are stopped.
func (a *App) Start(ctx context.Context) error {
	// This directory is the TMPDIR of the worker's commands.
	if err := os.MkdirAll(filepath.Join(a.cfg.DataDir, "worker"), 0o700); err != nil {
		return err
	}
	return a.group.Start(ctx)
}

// Stop stops the modules in reverse order and flushes the traces.
func (a *App) Stop(ctx context.Context) error {
	err := a.group.Stop(ctx)
	a.flush(ctx)
	return err
}

// Ready returns nil if every module is ready, so that everything which this process serves can be
// served, and otherwise life.ErrNotStarted or an error that names all modules that are not ready.
func (a *App) Ready() error { return a.group.Ready() }

// GRPCAddr returns the address on which gRPC is served.
func (a *App) GRPCAddr() string { return a.edge.Addr() }

// HTTPAddr returns the address on which REST is served; "" without a gateway or before Start.
func (a *App) HTTPAddr() string {
	if a.gateway == nil {
		return ""
	}
	return a.gateway.Addr()
}

// joinStop stops a module whose start failed with err, and returns err with the error of the stop.
func joinStop(ctx context.Context, err error, s life.Service) error {
	return errors.Join(err, s.Stop(ctx))
}
