package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/bus"
	"quartet/pkg/journal"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/follower"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/journal/witness"
	"quartet/pkg/life"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/varz"
	"quartet/pkg/retry"
	"quartet/services/storage/archives"
	"quartet/services/storage/datadir"
	taskoutput "quartet/services/task/output"
)

// stallRestart is how long writes to a journal may fail before the embedded NATS server
// is restarted: after a full disk it keeps failing although space was freed.
const stallRestart = 30 * time.Second

// broker is the module that connects the process to NATS: to an embedded server, or to
// the servers of nats-url.
type broker struct {
	cfg      *Config
	logger   *zap.Logger
	embedded *natsd.Server
	unlock   func() error // releases the data directory; nil without an embedded server
	conns    []*nats.Conn // all connections, to close

	// Journals have a connection of their own, so that no frame waits behind a burst
	// of events or output.
	journals *nats.Conn
	readers  *nats.Conn

	witnesses *witness.Files  // of the partitions that this process holds; nil before Start
	shared    *witness.Bucket // of all partitions; nil with an embedded server, and before Start

	counts map[string]int // number of partitions of each plane; nil before Start

	idle *follower.Watch // for followers of journals to which nothing is written

	// feeds pass the frames of partitions held in this process to followers without NATS.
	feeds *journal.Feeds

	room *framelog.Room  // of the store
	keys func() []string // the ids of the installation's keys
}

// Name implements life.Service.
func (b *broker) Name() string { return "nats" }

// Start starts the embedded server, if there is one, connects, and creates the journals
// that do not exist: those of all planes, not only of the planes that this process serves.
func (b *broker) Start(ctx context.Context) error {
	connect := func(name string) (*nats.Conn, error) { return b.cfg.remote().Connect(ctx, name, b.logger) }
	if b.cfg.NATSURL == "" {
		unlock, err := datadir.Lock(b.cfg.DataDir)
		if err != nil {
			return err
		}
		b.unlock = unlock
		b.embedded, err = natsd.Start(natsd.Config{
			StoreDir: filepath.Join(b.cfg.DataDir, "nats"), MaxStore: int64(b.cfg.MaxStore) << 20,
			Port: natsd.InProcess, Logger: b.logger.Named("nats"), BeforeOpen: func() error {
				return datadir.CheckBlocks(b.cfg.DataDir, account, planes, b.cfg.places().Store, b.logger)
			},
		})
		if err != nil {
			return joinStop(ctx, err, b)
		}
		connect = b.embedded.Connect
	}
	for _, c := range []struct {
		name string
		to   **nats.Conn
	}{{"quartet-journals", &b.journals}, {"quartet-readers", &b.readers}} {
		nc, err := connect(c.name)
		if err != nil {
			return joinStop(ctx, err, b)
		}
		b.conns = append(b.conns, nc)
		*c.to = nc
		if err := checkPayload(nc.MaxPayload()); err != nil {
			return joinStop(ctx, err, b)
		}
	}
	if err := b.checkServers(ctx); err != nil {
		return joinStop(ctx, err, b)
	}
	witnesses, err := witness.Open(datadir.Witness(b.cfg.DataDir), b.logger)
	if err != nil {
		return joinStop(ctx, err, b)
	}
	b.witnesses = witnesses
	if b.cfg.clustered() && slices.ContainsFunc(planes, b.cfg.serves) {
		if b.shared, err = witness.OpenBucket(ctx, b.readers, b.cfg.Replicas, b.logger); err != nil {
			return joinStop(ctx, err, b)
		}
	}
	b.counts = map[string]int{}
	for _, plane := range planes {
		if err := b.openJournal(ctx, plane); err != nil {
			return joinStop(ctx, err, b)
		}
	}
	if err := b.cfg.places().Begin(ctx, archives.Installation{
		Conn: b.readers, Planes: planes, Partitions: b.partitions, Keys: b.keys, Logger: b.logger,
	}); err != nil {
		return joinStop(ctx, err, b)
	}
	return nil
}

// awaitNATS waits until a server of nats-url can be reached, or ctx ends. It also returns after any other error than
// that none can be reached: Start meets that again, and says what to do about it.
func awaitNATS(ctx context.Context, cfg *Config, logger *zap.Logger) {
	if cfg.NATSURL == "" {
		return
	}
	pacer := retry.New(200*time.Millisecond, 2*time.Second)
	for waiting := false; ; waiting = true {
		nc, err := cfg.remote().Connect(ctx, "quartet-start", logger)
		if err == nil {
			nc.Close()
		}
		if err == nil || !errors.Is(err, nats.ErrNoServers) {
			return
		}
		if !waiting {
			logger.Warn("waiting for NATS", zap.Error(err))
		}
		if pacer.Wait(ctx) != nil {
			return
		}
	}
}

// minPayload is the size of the messages that a NATS server must allow, in bytes: the largest frame of a journal with
// its headers.
const minPayload = journal.MaxCommand + jetlog.HeaderRoom

// checkPayload returns an error if a server does not allow the largest frames. A frame that is too large for it is
// refused after its events were decided, which makes its partition load again.
func checkPayload(allowed int64) error {
	if allowed >= minPayload {
		return nil
	}
	return fmt.Errorf("the NATS server allows messages of %d bytes, and a journal needs %d: set max_payload: 8MB in "+
		"the server's configuration", allowed, minPayload)
}

// checkServers returns an error that names wrong settings of the servers of nats-url, as nats-monitor-url shows them.
// Settings that it cannot read, such as all without nats-monitor-url, and a cluster with replicas 1 are only logged.
func (b *broker) checkServers(ctx context.Context) error {
	if b.cfg.NATSURL == "" {
		return nil // natsd.Start has verified it
	}
	if cluster := b.journals.ConnectedClusterName(); cluster != "" && b.cfg.Replicas < 2 {
		b.logger.Warn("replicas is 1, and nats-url is a cluster: a journal cannot be used while its one server is "+
			"down, and is lost with that server's disk; give replicas 3 when the installation is created",
			zap.String("cluster", cluster))
	}
	if b.cfg.NATSMonitorURL == "" {
		b.logger.Info("sync_interval of the NATS servers is not verified, as connections are not told; it must be " +
			"always, or mutations that were answered are lost when a machine loses power. Give nats-monitor-url")
		return nil
	}
	unknown, wrong := varz.Verify(ctx, b.cfg.NATSMonitorURL, minPayload)
	for _, text := range unknown {
		b.logger.Warn("nats-monitor-url: " + text)
	}
	return wrong
}

// openJournal creates the journal of a plane if it does not exist. A journal that exists keeps
// its number of partitions; if the operator set another one explicitly, that is an error.
func (b *broker) openJournal(ctx context.Context, plane string) error {
	want, explicit, err := b.cfg.partitions(plane)
	if err != nil {
		return err
	}
	n, err := jetlog.Ensure(ctx, b.journals, plane, b.cfg.Replicas, want)
	if err != nil {
		return err
	}
	if explicit && n != want {
		return fmt.Errorf("partitions: the journal of %s has %d partitions, not %d; the number cannot be changed, "+
			"because its events are distributed by it: omit the setting, or give %d", plane, n, want, n)
	}
	b.counts[plane] = n
	return nil
}

// fill returns the module that measures how full the store is.
func (b *broker) fill(metrics prometheus.Registerer) *datadir.FillGauge {
	source := datadir.AccountFill(func() *nats.Conn { return b.readers }, b.cfg.Replicas)
	if b.cfg.NATSURL == "" {
		source = datadir.EmbeddedFill(func() *natsd.Server { return b.embedded }, b.cfg.DataDir)
	}
	return datadir.NewFillGauge(b.room, source, b.logger, metrics)
}

// storeRemedy returns how an operator makes room in the store.
func (c *Config) storeRemedy() string {
	if c.NATSURL == "" {
		return "Make room on the disk of " + c.DataDir + ", or raise max-store-mib if it is set"
	}
	return "Give the NATS servers more disk, and raise max_file_store in their configuration and max_file of the " +
		"account"
}

// witness returns the witness of a partition. It is valid after Start.
func (b *broker) witness(plane string, partition int) framelog.Witness {
	local := b.witnesses.Of(plane, partition)
	if b.shared == nil {
		return local
	}
	return b.shared.Of(plane, partition, local)
}

// snapshots returns the store of a partition's snapshots. It uses the connection of readers, so that no frame waits
// behind an object.
func (b *broker) snapshots(plane string, partition int) (snapshot.Store, error) {
	return jetlog.NewSnapshotStore(b.readers, plane, partition, b.cfg.Replicas)
}

// lossPatience returns for how long a journal that ends before its witness is read again: a server of a cluster may
// show an old end while it elects a leader.
func (c *Config) lossPatience() time.Duration {
	if c.NATSURL == "" {
		return 0
	}
	return 15 * time.Second
}

// partitions returns how many partitions a plane has. It is valid after Start.
func (b *broker) partitions(plane string) int { return max(b.counts[plane], 1) }

// Stop closes the connections and the embedded server, and unlocks the data directory.
func (b *broker) Stop(context.Context) error {
	if b.shared != nil {
		b.shared.Close()
		b.shared = nil
	}
	for _, nc := range b.conns {
		nc.Close()
	}
	b.conns = nil
	if b.embedded != nil {
		b.embedded.Stop()
	}
	if b.witnesses != nil {
		if err := b.witnesses.Close(); err != nil {
			b.logger.Warn("the witnesses of the journals were not closed in order", zap.Error(err))
		}
		b.witnesses = nil
	}
	if b.unlock != nil {
		unlock := b.unlock
		b.unlock = nil
		return unlock()
	}
	return nil
}

// Ready returns an error while NATS is unreachable.
func (b *broker) Ready() error {
	if b.journals == nil || !b.journals.IsConnected() {
		return errNoBroker
	}
	return nil
}

// split returns the numbers of partitions of the planes that have more than one, by plane. It
// is valid after Start.
func (b *broker) split() map[string]int {
	out := maps.Clone(b.counts)
	maps.DeleteFunc(out, func(_ string, n int) bool { return n == 1 })
	return out
}

// log returns the log of a partition of a plane with its archive, if there is one. It is valid after Start.
func (b *broker) log(plane string, partition int) (framelog.Log, error) {
	return b.open(b.journals, plane, partition)
}

// eraseEvents removes the events of an agent that a plane wrote from EVENTS.
func (b *broker) eraseEvents(ctx context.Context, plane, namespace, agentID string) error {
	return bus.Erase(ctx, b.readers, namespace, plane, agentID)
}

// open returns the log of a partition with its archive, if there is one. Its damaged replicas are reported.
func (b *broker) open(nc *nats.Conn, plane string, partition int) (framelog.Log, error) {
	log, err := jetlog.New(nc, plane, partition)
	if err != nil {
		return nil, err
	}
	name := framelog.PartitionName(plane, partition)
	log.OnDamage = func(server string, damage error) {
		b.logger.Error("journal: a replica is damaged; it is read at another one", zap.String("partition", name),
			zap.String("server", server), zap.Error(damage))
		b.feeds.Damage.ReportReplica(name, server, damage)
	}
	if !b.cfg.places().Kept() {
		return log, nil // segments stay in it
	}
	store, err := b.cfg.places().Store(plane, partition)
	if err != nil {
		return nil, err
	}
	return archive.NewLog(log, store, name), nil
}

// sources returns the partitions of a plane for a follower.
func (b *broker) sources(plane string) ([]journal.Source, error) {
	all := make([]journal.Source, b.partitions(plane))
	for i := range all {
		log, err := b.open(b.readers, plane, i)
		if err != nil {
			return nil, err
		}
		all[i] = b.feeds.Source(b.idle.Source(journal.NewSource(plane, i, log)))
	}
	return all, nil
}

// output is the module that stores the output of commands. It opens its stream when the
// broker is connected.
type output struct {
	taskoutput.Store
	broker *broker
}

// Name implements life.Service.
func (o *output) Name() string { return "output" }

// Start opens the stream.
func (o *output) Start(ctx context.Context) error {
	opened, err := taskoutput.OpenStream(ctx, o.broker.readers, o.broker.cfg.Replicas, o.broker.cfg.keepOutput(),
		o.broker.room)
	o.Store = opened
	return err
}

// Stop does nothing: the broker closes the connection.
func (o *output) Stop(context.Context) error { return nil }

// Ready implements life.Service.
func (o *output) Ready() error { return nil }

// publisher is the module that copies events from the journals of the planes that this
// process holds as a whole to the EVENTS stream. Hosts copy those of their own partitions.
type publisher struct {
	broker  *broker
	planes  []string
	logger  *zap.Logger
	metrics prometheus.Registerer
	running []*bus.Publisher
}

// Name implements life.Service.
func (p *publisher) Name() string { return "publisher" }

// Start creates the EVENTS stream and one publisher per partition.
func (p *publisher) Start(ctx context.Context) error {
	if err := bus.EnsureStream(ctx, p.broker.readers, p.broker.cfg.Replicas, int64(p.broker.cfg.EventsSize)<<20,
		p.broker.room); err != nil {
		return err
	}
	for _, plane := range p.planes {
		sources, err := p.broker.sources(plane)
		if err != nil {
			return joinStop(ctx, err, p)
		}
		for _, src := range sources {
			pub, err := bus.Start(ctx, bus.Config{
				Conn: p.broker.readers, Source: src, Logger: p.logger,
				Metrics: p.metrics, Room: p.broker.room,
			})
			if err != nil {
				return joinStop(ctx, err, p)
			}
			p.running = append(p.running, pub)
		}
	}
	return nil
}

// Stop stops all publishers.
func (p *publisher) Stop(context.Context) error {
	for _, pub := range p.running {
		pub.Stop()
	}
	p.running = nil
	return nil
}

// Ready implements life.Service; events are copied in the background.
func (p *publisher) Ready() error { return nil }

// guard returns the module that restarts the embedded server when a journal could not be
// written for stallRestart. After a restart it waits as long again before the next one.
func guard(broker *broker, stalled func() time.Duration, logger *zap.Logger) life.Service {
	return &life.Periodic{Label: "guard", Period: time.Second, Do: func(ctx context.Context) {
		if broker.embedded == nil || stalled() < stallRestart {
			return
		}
		logger.Error("the journal could not be written; restarting the embedded server",
			zap.Duration("stalled", stalled()))
		if err := broker.embedded.Restart(); err != nil {
			logger.Error("the embedded server did not start; trying again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(stallRestart):
		}
	}}
}
