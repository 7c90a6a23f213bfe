package app

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/lease"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
	"quartet/services/app/calls"
	"quartet/services/identity"
	"quartet/services/quota"
)

// wiring holds what the services of a process are built from. Its connections and journals are opened
// when the modules start.
type wiring struct {
	app     *App
	cfg     *Config
	logger  *zap.Logger
	version string
	key     []byte         // the installation's key
	weights map[string]int // by namespace
	metrics *prometheus.Registry
	creds   *callers
	tls     transports
	network *rpc.Network
	calls   calls.Planes
	broker  *broker
	output  *output
	keeper  *lease.Keeper // nil unless other processes may serve the same planes
	gate    *quota.Gate   // nil without quotas
	server  *rpc.Server
	deps    plane.Deps
}

// wire builds what all services share, from the settings. It reads the installation's key,
// or creates it, and reads the TLS files.
func (a *App) wire(version string) (*wiring, error) {
	w := &wiring{app: a, cfg: &a.cfg, logger: a.logger, version: version, metrics: newRegistry(version)}
	var err error
	if w.weights, err = a.cfg.weights(); err != nil {
		return nil, err
	}
	if w.key, err = loadKey(a.cfg.KeyFile); err != nil {
		return nil, err
	}
	if w.creds, err = newCallers(w.cfg, w.key, a.logger); err != nil {
		return nil, err
	}
	if w.tls, err = openTLS(a.cfg.TLS, a.logger); err != nil {
		return nil, err
	}
	if a.tracer, err = tracing.New(context.Background(), a.cfg.tracing(a.logger, w.metrics, version)); err != nil {
		return nil, err
	}
	w.network = rpc.NewNetwork(rpc.NetworkConfig{
		Service: "quartet", Token: w.creds.keyring.MintService("quartet"), Addresses: a.cfg.Addresses,
		Transport: w.tls.dial, Tracer: a.tracer, NewID: id.New().New,
	})
	w.calls = calls.Planes{Network: w.network}
	w.broker = &broker{cfg: w.cfg, logger: a.logger, feeds: journal.NewFeeds()}
	w.output = &output{broker: w.broker}
	w.creds.follow(w.broker, w.calls, a.logger)
	w.deps = plane.Deps{
		Log: w.broker.log, Sources: w.broker.sources, Feeds: w.broker.feeds, Partitions: w.broker.partitions,
		IDs: id.New(), Logger: a.logger, Tracer: a.tracer, Metrics: w.metrics,
	}
	if a.cfg.clustered() && slices.ContainsFunc(planes, a.cfg.serves) {
		w.keeper = lease.NewKeeper(lease.Config{
			ID: w.deps.IDs.New("inst_"), Replicas: a.cfg.Replicas, Term: a.cfg.PartitionLease, Logger: a.logger.Named("lease"),
		})
	}
	limits, err := a.cfg.quotas()
	if err != nil {
		return nil, err
	}
	w.gate = quota.NewGate(quota.Config{
		Limits: limits, Sources: w.broker.sources, Serves: a.cfg.serves, Logger: a.logger, Metrics: w.metrics,
	})
	w.server = rpc.NewServer(w.serverConfig())
	a.edge = &edge{addr: a.cfg.GRPCAddr, network: w.network, server: w.server}
	return w, nil
}

// serverConfig returns the configuration of the process's gRPC server.
func (w *wiring) serverConfig() rpc.Config {
	c := rpc.Config{
		Transport: w.tls.serve, Mutual: w.tls.mutual, Auth: w.creds.authenticator, Permit: identity.Permit, Fence: w.calls.Fence,
		Log: w.logger.Named("rpc"), Metrics: w.metrics, Tracer: w.app.tracer, Quiet: quiet, Deadlines: deadlines(),
		Ready:     w.app.Ready,
		Elsewhere: func(service string) grpc.ClientConnInterface { return elsewhere(w.network, service) },
	}
	if w.gate != nil {
		c.Around, c.Permit = w.gate.Unary, permitWithin(w.gate)
	}
	return c
}
