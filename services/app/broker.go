package app

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/bus"
	"quartet/pkg/journal"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd"
	taskoutput "quartet/services/task/output"
)

// stallRestart is how long a journal may stand still before the embedded
// server is started anew: after a full disk it stays wedged although space was
// freed (ARCHITECTURE section 3).
const stallRestart = 30 * time.Second

// broker is the process's way to NATS: an embedded server, or one elsewhere.
type broker struct {
	cfg      *Config
	logger   *zap.Logger
	embedded *natsd.Server
	unlock   func() error
	conns    []*nats.Conn

	// Journals have a connection of their own: a burst of events or of output
	// must not stand in front of a frame.
	journals *nats.Conn
	readers  *nats.Conn

	counts map[string]int // how many partitions each plane has

	// feeds are a short cut past NATS to the partitions held in this process.
	feeds *journal.Feeds
}

func (b *broker) Name() string { return "nats" }

func (b *broker) Start(ctx context.Context) error {
	connect := func(name string) (*nats.Conn, error) { return b.cfg.remote().Connect(ctx, name, b.logger) }
	if b.cfg.NATSURL == "" {
		unlock, err := lockDir(b.cfg.DataDir)
		if err != nil {
			return err
		}
		b.unlock = unlock
		b.embedded, err = natsd.Start(natsd.Config{
			StoreDir: filepath.Join(b.cfg.DataDir, "nats"), MaxStore: int64(b.cfg.MaxStore) << 20,
			Port: natsd.InProcess, Logger: b.logger.Named("nats"),
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
	}
	b.counts = map[string]int{}
	for _, plane := range planes {
		if err := b.openJournal(ctx, plane); err != nil {
			return joinStop(ctx, err, b)
		}
	}
	return nil
}

func (b *broker) openJournal(ctx context.Context, plane string) error {
	want, asked, err := b.cfg.partitions(plane)
	if err != nil {
		return err
	}
	n, err := jetlog.EnsureStream(ctx, b.journals, plane, b.cfg.Replicas, want)
	if err != nil {
		return err
	}
	if asked && n != want {
		return fmt.Errorf("partitions: the journal of %s has %d, not %d; what is in it is spread by that number, so it stays: leave the setting out, or give %d", plane, n, want, n)
	}
	b.counts[plane] = n
	return nil
}

// partitions is how many partitions a plane has, once the broker was started.
func (b *broker) partitions(plane string) int { return max(b.counts[plane], 1) }

func (b *broker) Stop(context.Context) error {
	for _, nc := range b.conns {
		nc.Close()
	}
	b.conns = nil
	if b.embedded != nil {
		b.embedded.Stop()
	}
	if b.unlock != nil {
		unlock := b.unlock
		b.unlock = nil
		return unlock()
	}
	return nil
}

func (b *broker) Ready() error {
	if b.journals == nil || !b.journals.IsConnected() {
		return errNoBroker
	}
	return nil
}

// split are the planes with more than one partition.
func (b *broker) split() map[string]int {
	out := maps.Clone(b.counts)
	maps.DeleteFunc(out, func(_ string, n int) bool { return n == 1 })
	return out
}

// log opens the log of a partition.
func (b *broker) log(plane string, partition int) (journal.Log, error) {
	return jetlog.New(b.journals, plane, partition)
}

// sources are the partitions of a plane, to follow.
func (b *broker) sources(plane string) ([]journal.Source, error) {
	all := make([]journal.Source, b.partitions(plane))
	for i := range all {
		src, err := bus.Source(b.readers, plane, i)
		if err != nil {
			return nil, err
		}
		all[i] = b.feeds.Source(src)
	}
	return all, nil
}

// output is the store of what commands write, opened once there is a broker.
type output struct {
	taskoutput.Store
	broker *broker
}

func (o *output) Name() string { return "output" }

func (o *output) Start(ctx context.Context) error {
	opened, err := taskoutput.OpenStream(ctx, o.broker.readers, o.broker.cfg.Replicas)
	o.Store = opened
	return err
}

func (o *output) Stop(context.Context) error { return nil }

func (o *output) Ready() error { return nil }

// publisher copies the journals of the planes that this process serves.
type publisher struct {
	broker  *broker
	planes  []string
	logger  *zap.Logger
	metrics prometheus.Registerer
	running []*bus.Publisher
}

func (p *publisher) Name() string { return "publisher" }

func (p *publisher) Start(ctx context.Context) error {
	if err := bus.EnsureStream(ctx, p.broker.readers, p.broker.cfg.Replicas); err != nil {
		return err
	}
	for _, plane := range p.planes {
		sources, err := p.broker.sources(plane)
		if err != nil {
			return joinStop(ctx, err, p)
		}
		for _, src := range sources {
			pub, err := bus.Start(ctx, bus.Config{Conn: p.broker.readers, Source: src, Logger: p.logger, Metrics: p.metrics})
			if err != nil {
				return joinStop(ctx, err, p)
			}
			p.running = append(p.running, pub)
		}
	}
	return nil
}

func (p *publisher) Stop(context.Context) error {
	for _, pub := range p.running {
		pub.Stop()
	}
	p.running = nil
	return nil
}

func (p *publisher) Ready() error { return nil }

// guard starts the embedded server anew when a journal cannot be written for
// too long.
type guard struct {
	broker  *broker
	stalled func() time.Duration
	logger  *zap.Logger
	stop    context.CancelFunc
	done    chan struct{}
}

func (g *guard) Name() string { return "guard" }

func (g *guard) Start(ctx context.Context) error {
	ctx, g.stop = context.WithCancel(context.WithoutCancel(ctx))
	g.done = make(chan struct{})
	go func() {
		defer close(g.done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if g.broker.embedded == nil || g.stalled() < stallRestart {
				continue
			}
			g.logger.Error("the journal has stood still; starting the embedded server anew", zap.Duration("stalled", g.stalled()))
			if err := g.broker.embedded.Restart(); err != nil {
				g.logger.Error("the embedded server did not start; trying again", zap.Error(err))
			}
			// Give it a full term before the next attempt.
			select {
			case <-ctx.Done():
				return
			case <-time.After(stallRestart):
			}
		}
	}()
	return nil
}

func (g *guard) Stop(context.Context) error {
	g.stop()
	<-g.done
	return nil
}

func (g *guard) Ready() error { return nil }
