package app

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/keyfile"
	"quartet/pkg/life"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

const (
	// processBucket is the key-value bucket in which the processes of an installation report
	// themselves. It is in memory: after a loss they report themselves again.
	processBucket = "quartet-processes"
	// reportPeriod is how often a process reports itself, and reportTerm how long a report
	// is valid. A process that was killed counts as running for that long.
	reportPeriod = 10 * time.Second
	reportTerm   = time.Minute
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
	failed bool
}

// newProcesses returns the module of a process with an id. It reports the process every
// reportPeriod, and when its keys change.
func newProcesses(w *wiring, edge *edge) *processes {
	p := &processes{cfg: w.cfg, broker: w.broker, edge: edge, keys: w.keys, logger: w.logger}
	host, _ := os.Hostname() // "" if unknown
	p.self = &identityv1.Process{
		ProcessId: w.deps.IDs.New("prc_"), Host: host, Services: slices.Clone(w.cfg.Serve), Version: w.version, StartedAt: timestamppb.Now(),
	}
	p.Periodic = &life.Periodic{Label: "processes", Period: reportPeriod, Do: p.report}
	return p
}

// Start begins to report.
func (p *processes) Start(ctx context.Context) error {
	addr, err := p.cfg.advertisedAddr(p.edge.Addr())
	if err != nil {
		return err
	}
	p.self.Address = addr
	return p.Periodic.Start(ctx)
}

// Stop withdraws the report, so that a process that was stopped does not count as running.
func (p *processes) Stop(ctx context.Context) error {
	err := p.Periodic.Stop(ctx)
	if kv, open := p.open(ctx); open == nil {
		_ = kv.Delete(ctx, p.self.GetProcessId()) // it expires anyway
	}
	return err
}

// report writes the report, and again whenever the keys change before the next one is due.
func (p *processes) report(ctx context.Context) {
	changed := p.keys.Changed()
	ring := p.keys.Ring()
	report := proto.CloneOf(p.self)
	for _, err := range p.broker.feeds.Damage.All() {
		report.Damage = append(report.Damage, err.Error())
	}
	report.InstallationKeyIds, report.ActiveInstallationKeyId = ring.IDs(), ring.Active().ID
	term, cancel := context.WithTimeout(ctx, reportPeriod)
	defer cancel()
	err := p.put(term, report)
	if err != nil && ctx.Err() == nil && !p.failed {
		p.logger.Warn("this process could not be reported to the others of the installation; trying again", zap.Error(err))
	}
	p.failed = err != nil
	select {
	case <-changed:
		p.report(ctx)
	case <-term.Done():
	}
}

func (p *processes) put(ctx context.Context, report *identityv1.Process) error {
	kv, err := p.open(ctx)
	if err != nil {
		return err
	}
	raw, err := proto.Marshal(report)
	if err != nil {
		return err
	}
	_, err = kv.Put(ctx, report.GetProcessId(), raw)
	return err
}

// open returns the bucket, which it creates if there is none.
func (p *processes) open(ctx context.Context) (jetstream.KeyValue, error) {
	if p.broker.readers == nil {
		return nil, errNoBroker
	}
	js, err := jetstream.New(p.broker.readers)
	if err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, processBucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: processBucket, Description: "Quartet: which processes run", TTL: reportTerm,
		Storage: jetstream.MemoryStorage, Replicas: max(p.cfg.Replicas, 1), History: 1,
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		kv, err = js.KeyValue(ctx, processBucket)
	}
	return kv, err
}

// list returns the processes that run.
func (p *processes) list(ctx context.Context) ([]*identityv1.Process, error) {
	kv, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := kv.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*identityv1.Process
	for _, id := range ids {
		entry, err := kv.Get(ctx, id)
		if errors.Is(err, jetstream.ErrKeyNotFound) { // it has stopped meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		report := &identityv1.Process{}
		if err := proto.Unmarshal(entry.Value(), report); err != nil {
			return nil, err
		}
		report.ReportedAt = timestamppb.New(entry.Created())
		all = append(all, report)
	}
	return all, nil
}

// followKeyFile returns the module that reads the key file again every keyfile.PollPeriod. If it
// cannot be used, the keys stay as they are, and the error is logged once.
func followKeyFile(keys *keyfile.Source, logger *zap.Logger) life.Service {
	last := ""
	return &life.Periodic{Label: "key-file", Period: keyfile.PollPeriod, Do: func(context.Context) {
		changed, err := keys.Poll()
		switch {
		case err != nil && err.Error() != last:
			last = err.Error()
			logger.Error("the key file cannot be used; the keys stay as they are", zap.Error(err))
		case err == nil:
			last = ""
		}
		if changed {
			logger.Info("the installation's keys have changed", zap.Strings("keys", keys.Ring().IDs()), zap.String("active", keys.Ring().Active().ID))
		}
	}}
}
