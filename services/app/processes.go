package app

import (
	"context"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/bus"
	"quartet/pkg/journal"
	"quartet/pkg/keyfile"
	"quartet/pkg/life"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/app/installation"
	"quartet/services/identity"
	"quartet/services/storage/archives"
)

const (
	// reportPeriod is how often a process reports itself if nothing changes.
	reportPeriod = 10 * time.Second
	// changePeriod is how often it looks whether something has changed.
	changePeriod = time.Second
)

// processes is the module that reports this process to the others, with the installation's keys
// that it knows, and lists all processes.
type processes struct {
	*life.Periodic
	cfg    *Config
	broker *broker
	edge   *edge
	keys   *keyfile.Source
	logger *zap.Logger
	self   *identityv1.Process
	bucket installation.Bucket
	// ready, held and warning are what the process tells of itself; see identityv1.Process.
	ready    func() error
	held     func() []*identityv1.HeldPartition
	warning  func() string
	removals func() []string // what could not be removed
	// consumed is what a partition that the process holds has consumed.
	consumed func(h *identityv1.HeldPartition) []*identityv1.ConsumedSource
	failed   bool
	last     *identityv1.Process // the report that was written last, without what is consumed
	at       time.Time           // when that was
}

// newProcesses returns the module, with a new id for this process. It reports the process
// every reportPeriod, and when something of it changes.
func newProcesses(w *wiring, edge *edge) *processes {
	p := &processes{
		cfg: w.cfg, broker: w.broker, edge: edge, keys: w.keys, logger: w.logger, ready: w.app.Ready,
		held: w.heldPartitions, consumed: w.consumed, warning: w.fill.Warning, removals: w.deps.Removals.Failed,
		bucket: installation.Bucket{Conn: func() *nats.Conn { return w.broker.readers }, Replicas: w.cfg.Replicas},
	}
	host, _ := os.Hostname() // "" if unknown
	p.self = &identityv1.Process{
		ProcessId: w.deps.IDs.New("prc_"), Host: host, Services: slices.Clone(w.cfg.Serve), Version: w.version,
		StartedAt: timestamppb.Now(),
	}
	p.Periodic = &life.Periodic{Label: "processes", Period: changePeriod, Do: p.report}
	return p
}

// Start begins to report.
func (p *processes) Start(ctx context.Context) error {
	addr, err := p.cfg.advertisedAddr(p.edge.Addr())
	if err != nil {
		return err
	}
	p.self.Address, p.self.CertificateName = addr, p.cfg.AdvertiseName
	return p.Periodic.Start(ctx)
}

// Stop withdraws the report, so that a process that was stopped does not count as running. If the
// withdrawal fails, Stop returns no error for it: the report expires by itself.
func (p *processes) Stop(ctx context.Context) error {
	err := p.Periodic.Stop(ctx)
	p.bucket.Withdraw(ctx, p.self.GetProcessId())
	return err
}

// report writes the report, if it is due or differs from the one before.
func (p *processes) report(ctx context.Context) {
	ring := p.keys.Ring()
	report := proto.CloneOf(p.self)
	for _, err := range p.broker.feeds.Damage.All() {
		report.Damage = append(report.Damage, err.Error())
	}
	if err := p.ready(); err != nil {
		report.NotReady = strings.Split(err.Error(), "\n")
	}
	report.Held, report.Warning, report.RemovalFailures = p.held(), p.warning(), p.removals()
	report.InstallationKeyIds, report.ActiveInstallationKeyId = ring.IDs(), ring.Active().ID
	if proto.Equal(report, p.last) && time.Since(p.at) < reportPeriod {
		return
	}
	was := proto.CloneOf(report) // compared without what is consumed, which changes with every event
	for _, h := range report.GetHeld() {
		h.Consumed = p.consumed(h)
	}
	term, cancel := context.WithTimeout(ctx, reportPeriod)
	defer cancel()
	err := p.bucket.Put(term, report)
	if err != nil && ctx.Err() == nil && !p.failed {
		p.logger.Warn("this process could not be reported to the others of the installation; trying again",
			zap.Error(err))
	}
	if p.failed = err != nil; !p.failed {
		p.last, p.at = was, time.Now()
	}
}

// heldPartitions returns the partitions that this process holds.
func (w *wiring) heldPartitions() []*identityv1.HeldPartition {
	var out []*identityv1.HeldPartition
	for _, plane := range planes {
		if h := w.hosts[plane]; h != nil {
			h.mu.Lock()
			for _, n := range slices.Sorted(maps.Keys(h.units)) {
				out = append(out, &identityv1.HeldPartition{Plane: plane, Partition: int32(n)})
			}
			h.mu.Unlock()
		} else if w.keeper == nil && w.cfg.serves(plane) {
			for n := range w.broker.partitions(plane) {
				out = append(out, &identityv1.HeldPartition{Plane: plane, Partition: int32(n)})
			}
		}
	}
	return out
}

// consumed returns what a partition held by this process has consumed, or all partitions of a plane held as a whole.
func (w *wiring) consumed(held *identityv1.HeldPartition) []*identityv1.ConsumedSource {
	share := journal.Share{First: int(held.GetPartition()), Count: 1}
	if h := w.hosts[held.GetPlane()]; h != nil {
		share = h.share(share.First)
	}
	return archives.Consumed(w.deps.Positions, held.GetPlane(), share.First, share.Count)
}

// readThrough is plane.Deps.ReadThrough.
func (w *wiring) readThrough(ctx context.Context, plane string, partition int) (uint64, error) {
	floor := archives.Floor{List: w.processes.bucket.List, Units: func(plane string) int {
		if w.cfg.clustered() && !splits[plane] {
			return 1
		}
		return w.broker.partitions(plane)
	}}
	if w.cfg.Publish && plane != identity.Plane {
		floor.Copied = func(ctx context.Context, plane string, partition int) (uint64, error) {
			return bus.CopiedThrough(ctx, w.broker.readers, plane, partition, w.deps.History.Shortest())
		}
	}
	return floor.ReadThrough(ctx, plane, partition)
}

// installation returns what is needed to examine the processes, streams and archive of the installation.
func (w *wiring) installation() installation.Config {
	var publishers func(ctx context.Context) ([]*identityv1.PublisherLag, error)
	if w.cfg.Publish {
		published := slices.DeleteFunc(slices.Clone(planes), func(plane string) bool { return plane == identity.Plane })
		publishers = func(ctx context.Context) ([]*identityv1.PublisherLag, error) {
			return installation.Publishers(ctx, w.broker.readers, published, w.broker.partitions)
		}
	}
	var usable func() error
	if w.bucket != nil {
		usable = w.bucket.Err
	}
	many := math.MaxInt // without an archive all segments stay
	if w.cfg.places().Kept() {
		many = installation.ManySegments(w.cfg.SegmentSize, w.cfg.SnapshotSize)
	}
	return installation.Config{
		Publishers: publishers,
		Services:   slices.DeleteFunc(slices.Clone(Services), func(name string) bool { return name == "worker" }),
		Partitions: func(service string) int {
			if !slices.Contains(planes, service) {
				return 0
			}
			return w.broker.partitions(service)
		},
		List: w.processes.bucket.List,
		Ask: func(ctx context.Context, p *identityv1.Process) (bool, error) {
			if p.GetProcessId() == w.processes.self.GetProcessId() {
				return w.processes.ready() == nil, nil // it may not know the authority of its own certificate
			}
			resp, err := grpc_health_v1.NewHealthClient(w.network.Peer(p.GetAddress(), p.GetCertificateName())).
				Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			return resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING, err
		},
		Stored: func(ctx context.Context) ([]*identityv1.StreamUsage, []*identityv1.JournalUsage, error) {
			return installation.Stored(ctx, w.broker.readers, planes, w.broker.partitions, w.overview)
		},
		Archive:      usable,
		ManySegments: many,
		Store:        w.broker.room.Used, FullIn: w.fill.FullIn,
	}
}

// listProcesses lists the processes that run, and examines the installation if that is requested.
func (w *wiring) listProcesses(ctx context.Context, examine bool) (*identityv1.ListProcessesResponse, error) {
	if examine {
		return w.installation().Examine(ctx)
	}
	all, err := w.processes.bucket.List(ctx)
	return &identityv1.ListProcessesResponse{Processes: all}, err
}
