package app

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/requests"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/keyfile"
	"quartet/pkg/lease"
	auditv1 "quartet/pkg/pb/quartet/audit/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
	"quartet/services/app/calls"
	"quartet/services/audit"
	"quartet/services/quota"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
)

// wiring holds what the services of a process are built from. Its connections and journals are opened
// when the modules start.
type wiring struct {
	app       *App
	cfg       *Config
	logger    *zap.Logger
	version   string
	keys      *keyfile.Source // the installation's keys
	weights   map[string]int  // by namespace
	metrics   *prometheus.Registry
	creds     *callers
	tls       transports
	network   *rpc.Network
	calls     calls.Planes
	broker    *broker
	overview  func(plane string, partition int) (archive.Store, error) // archives, for an overview of all
	bucket    *archives.Watch                                          // of the archive; nil: it is in none
	output    *output
	fill      *datadir.FillGauge
	keeper    *lease.Keeper // nil unless other processes may serve the same planes
	gate      *quota.Gate
	admission rpc.Admission
	server    *rpc.Server
	processes *processes
	hosts     map[string]*host // by plane; empty without a keeper
	recorder  *audit.Recorder  // records calls in the audit log
	deps      plane.Deps
}

// wire builds what all services share, from the settings. It reads the installation's key,
// or creates it, and reads the TLS files.
func (a *App) wire(version string) (*wiring, error) {
	w := &wiring{
		hosts: map[string]*host{}, app: a, cfg: &a.cfg, logger: a.logger, version: version,
		metrics: newRegistry(version),
	}
	var err error
	if w.weights, err = weightsOf(a.cfg.NamespaceWeights); err != nil {
		return nil, err
	}
	if w.keys, err = keyfile.Open(a.cfg.KeyFile, time.Now()); err != nil {
		return nil, err
	}
	if w.creds, err = newCallers(w.cfg, w.keys, a.logger); err != nil {
		return nil, err
	}
	if a.cfg.Auth == AuthLocal {
		token := localToken(w.keys.Ring().Active())
		w.creds.authenticator.SetLocal(token)
		a.tokens = &tokenFiles{token: token, logger: a.logger}
	}
	if w.tls, err = openTLS(a.cfg.TLS, a.logger); err != nil {
		return nil, err
	}
	if a.tracer, err = tracing.New(context.Background(), a.cfg.tracing(a.logger, w.metrics, version)); err != nil {
		return nil, err
	}
	w.network = rpc.NewNetwork(rpc.NetworkConfig{
		Service: "quartet", Renewed: w.creds.keyring.ServiceToken("quartet"), Addresses: a.cfg.Addresses,
		Transport: w.tls.dial, Tracer: a.tracer, NewID: id.New().New,
	})
	w.calls = calls.Planes{Network: w.network}
	w.broker = &broker{
		cfg: w.cfg, logger: a.logger, feeds: journal.NewFeeds(), idle: follower.NewWatch(clock.System()),
		room: &framelog.Room{Remedy: w.cfg.storeRemedy()}, keys: func() []string { return w.keys.Ring().IDs() },
	}
	w.overview = w.cfg.places().Store
	if b := a.cfg.bucket; b != nil {
		w.overview = archives.NewOverview(w.overview).Store // requests cost
		b.Own(w.broker.keys)
		w.bucket = archives.NewWatch(b, a.logger)
	}
	w.output = &output{broker: w.broker}
	w.fill = w.broker.fill(w.metrics)
	w.creds.follow(w.broker, w.calls, a.logger)
	w.creds.authenticator.Run = w.calls.RunHolds
	w.recorder = audit.NewRecorder(audit.RecorderConfig{
		Client: auditv1.NewAuditServiceClient(w.calls.To("identity")), Logger: a.logger.Named("audit"),
	})
	w.creds.authenticator.Refused = w.recorder.Refused
	kept, err := archives.ParseHistory(w.cfg.HistoryDays, w.cfg.NamespaceHistoryDays, w.cfg.Day)
	if err != nil {
		return nil, err
	}
	pressure := w.cfg.memory() / 3
	w.deps = plane.Deps{
		Log: w.broker.log, Witness: w.broker.witness, LossPatience: w.cfg.lossPatience(),
		SegmentSize: int64(w.cfg.SegmentSize) << 20,
		Snapshots:   w.broker.snapshots, SnapshotBytes: int64(w.cfg.SnapshotSize) << 20, Sources: w.broker.sources,
		Feeds: w.broker.feeds, Requests: requests.NewPool(journal.DefaultRequestMemory), Room: w.broker.room,
		Partitions: w.broker.partitions,
		IDs:        id.New(), Logger: a.logger, Tracer: a.tracer, Metrics: w.metrics, EraseAfter: w.cfg.EraseAfter,
		EraseEvents: w.broker.eraseEvents,
		History:     kept, ReadThrough: w.readThrough, Positions: &plane.Positions{}, Removals: &plane.Removals{},
		Eviction: &snapshot.EvictionPolicy{Dir: datadir.Unused(w.cfg.DataDir)}, EvictEvery: time.Minute,
		Pressed: func() bool { return liveHeap() > pressure },
	}
	if a.cfg.clustered() && slices.ContainsFunc(planes, a.cfg.serves) {
		w.keeper = lease.NewKeeper(lease.Config{
			ID: w.deps.IDs.New("inst_"), Replicas: a.cfg.Replicas, Term: a.cfg.PartitionLease,
			Logger: a.logger.Named("lease"),
		})
	}
	limits, err := a.cfg.quotas()
	if err != nil {
		return nil, err
	}
	w.gate = quota.NewGate(quota.Config{
		Limits: limits, Sources: w.broker.sources, Serves: a.cfg.serves, Archived: archives.SegmentNames(w.overview),
		Memory: a.cfg.memory(), Logger: a.logger, Metrics: w.metrics,
	})
	w.admission = admission{w.gate, w.calls, w.recorder}
	w.server = rpc.NewServer(w.serverConfig())
	a.edge = &edge{
		addr: a.cfg.GRPCAddr, connections: a.cfg.connections(), network: w.network, server: w.server,
		tokens: a.tokens,
	}
	w.processes = newProcesses(w, a.edge)
	return w, nil
}

// serverConfig returns the configuration of the process's gRPC server.
func (w *wiring) serverConfig() rpc.Config {
	return rpc.Config{
		Transport: w.tls.serve, Mutual: w.tls.mutual, Auth: w.creds.authenticator, Admission: w.admission,
		Log: w.logger.Named("rpc"), Metrics: w.metrics, Tracer: w.app.tracer, Quiet: quiet, Deadlines: deadlines(),
		Ready:     w.app.Ready,
		Elsewhere: func(service string) grpc.ClientConnInterface { return elsewhere(w.network, service) },
	}
}
