package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/bus"
	"quartet/pkg/journal"
	"quartet/pkg/lease"
	"quartet/pkg/life"
	"quartet/pkg/meter"
	"quartet/pkg/plane"
	"quartet/pkg/retry"
	"quartet/pkg/rpc"
	"quartet/services/identity"
)

// splits has true for the planes whose partitions may be held by different instances, because
// each of their operations concerns one agent. One instance holds all partitions of any
// other plane: agents supervise each other, and a worker's stream carries commands and
// steps of all agents (ADR 0022).
var splits = map[string]bool{"work": true, "waiting": true}

// planeService is an instance of a plane over some of its partitions.
type planeService interface {
	life.Service
	Register(srv grpc.ServiceRegistrar)
}

// unit is what one lease covers: a partition of a split plane, or all partitions of
// another one.
type unit struct {
	service planeService
	calls   *rpc.Instance
	unsend  func() // stops copying its events to EVENTS
}

// host is the module that runs a plane which several processes serve. It has a unit for
// each lease that this process holds, and forwards calls about other units to their
// holders.
type host struct {
	name   string
	build  func(d plane.Deps, share journal.Share) (planeService, error)
	deps   plane.Deps
	broker *broker
	keeper *lease.Keeper
	copy   bool // copy the events of units to the EVENTS stream
	logger *zap.Logger

	held    prometheus.Gauge    // units that are held
	taken   prometheus.Counter  // units that were acquired
	opening prometheus.Observer // seconds from a lease to the first answer

	group *lease.Group
	mu    sync.Mutex
	units map[int]*unit // the units that are loaded, by number
}

// newHost completes h, whose fields up to logger are set, and returns it.
func newHost(h *host, metrics prometheus.Registerer) *host {
	h.units = map[int]*unit{}
	h.held = meter.Gauge(metrics, "quartet_partitions_held", "Partitions that this process holds; a plane without "+
		"partitions counts as one.", "plane").WithLabelValues(h.name)
	h.taken = meter.Counter(metrics, "quartet_partitions_taken_total",
		"Partitions that this process acquired: at its start, or from a process that stopped or was lost.", "plane").
		WithLabelValues(h.name)
	h.opening = meter.Histogram(metrics, "quartet_partition_open_seconds",
		"Time from a partition's lease to its first answer.", meter.Work, "plane").WithLabelValues(h.name)
	return h
}

// takeTerm bounds the time in which a unit must be loaded.
const takeTerm = 2 * time.Minute

// Name implements life.Service.
func (h *host) Name() string { return h.name }

// route registers the plane's methods on the process's server, which then passes each call to the
// unit in this process or to the process that holds it. missing and search are those of planeRow.
func (h *host) route(server *rpc.Server, network *rpc.Network, newID func(string) string,
	missing func(context.Context, proto.Message, error) error, search ...string,
) error {
	prototype, err := h.build(h.deps, journal.Share{})
	if err != nil {
		return err
	}
	shape, err := rpc.NewInstance(prototype.Register)
	if err != nil {
		return err
	}
	rpc.Route(server, shape, rpc.Routes{
		Service: h.name, Size: h.size, Search: search, Missing: missing, Where: h.where, NewID: newID,
		Of:   func(namespace, agentID string) int { return journal.PartitionOf(namespace, agentID, h.size()) },
		Left: func(err error) bool { return errors.Is(err, journal.ErrNotHeld) },
		Peer: func(addr, name string) grpc.ClientConnInterface { return network.Peer(addr, name) },
	})
	return nil
}

// size returns how many units the plane has: one for each partition, or a single one for a plane that is not split.
func (h *host) size() int {
	if splits[h.name] {
		return h.broker.partitions(h.name)
	}
	return 1
}

// share returns the partitions of unit n.
func (h *host) share(n int) journal.Share {
	if splits[h.name] {
		return journal.SingleShare(n, h.size())
	}
	return journal.WholeShare(h.broker.partitions(h.name))
}

// Start registers the plane's units with the keeper, which acquires leases once this
// process can be reached.
func (h *host) Start(context.Context) error {
	h.group = h.keeper.Group(h.name, h.size(), lease.Hooks{Unused: h.unused, Take: h.take, Drop: h.drop, Over: h.over})
	return nil
}

// Stop does nothing: the keeper has dropped all units before.
func (h *host) Stop(context.Context) error { return nil }

// Ready returns the error of a unit held here that is not ready. It is nil if no unit is
// held here.
func (h *host) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range h.units {
		if err := u.service.Ready(); err != nil {
			return err
		}
	}
	return nil
}

// Stalled returns for how long the journal of a unit held here could not be written; the
// longest if there are several.
func (h *host) Stalled() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	var most time.Duration
	for _, u := range h.units {
		if j, ok := u.service.(journaled); ok {
			most = max(most, j.Stalled())
		}
	}
	return most
}

// where returns the holder of unit n, and a channel that is closed when that changes. The
// place is zero while nobody holds the unit, and while it is being loaded here. Before Start,
// the channel is nil.
func (h *host) where(n int) (rpc.Place, <-chan struct{}) {
	if h.group == nil {
		return rpc.Place{}, nil
	}
	at, changed := h.group.Where(n)
	if !at.Here {
		return rpc.Place{Addr: at.Peer.Addr, Name: at.Peer.Name, Lives: at.Lives}, changed
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if u := h.units[n]; u != nil {
		return rpc.Place{Local: u.calls}, changed
	}
	return rpc.Place{}, changed
}

// unused reports whether nothing was ever written to the journals of unit n.
func (h *host) unused(ctx context.Context, n int) (bool, error) {
	share := h.share(n)
	for i := share.First; i < share.First+share.Count; i++ {
		log, err := h.broker.log(h.name, i)
		if err != nil {
			return false, err
		}
		if _, seq, err := log.Tail(ctx); err != nil || seq > 0 {
			return false, err
		}
	}
	return true, nil
}

// take loads unit n under a lease and starts to serve it. After an error nothing of it
// runs.
func (h *host) take(ctx context.Context, n int, l *lease.Lease) error {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, takeTerm)
	defer cancel()
	d := h.deps
	d.Lease = l
	share := h.share(n)
	service, err := h.build(d, share)
	if err != nil {
		return err
	}
	u := &unit{service: service}
	if u.calls, err = rpc.NewInstance(service.Register); err != nil {
		return err
	}
	if err := service.Start(ctx); err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	u.unsend = h.publish(n, share)
	h.opening.Observe(time.Since(started).Seconds())
	h.taken.Inc()
	h.held.Inc()
	h.mu.Lock()
	h.units[n] = u
	h.mu.Unlock()
	return nil
}

// publish copies the events of unit n to the EVENTS stream until it is stopped, if the process does that. The unit does
// not wait for the stream: in a cluster that elects a leader, callers would wait for as long.
func (h *host) publish(n int, share journal.Share) (stop func()) {
	if !h.copy || h.name == identity.Plane { // events of API keys are not published
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pacer := retry.New(100*time.Millisecond, 5*time.Second)
		for {
			running, err := h.publishers(ctx, share)
			if err == nil {
				<-ctx.Done()
			} else if ctx.Err() == nil {
				h.logger.Warn("events are not copied to EVENTS yet; trying again", zap.String("plane", h.name),
					zap.Int("partition", n), zap.Error(err))
			}
			for _, p := range running {
				p.Stop()
			}
			if err == nil || pacer.Wait(ctx) != nil {
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// publishers starts the publishers of a share. It returns those that it started, also after an error.
func (h *host) publishers(ctx context.Context, share journal.Share) (running []*bus.Publisher, err error) {
	if err := bus.EnsureStream(ctx, h.broker.readers, h.broker.cfg.Replicas, int64(h.broker.cfg.EventsSize)<<20,
		h.broker.room); err != nil {
		return nil, err
	}
	sources, err := h.broker.sources(h.name)
	if err != nil {
		return nil, err
	}
	for _, src := range sources[share.First : share.First+share.Count] {
		p, err := bus.Start(ctx, bus.Config{
			Conn: h.broker.readers, Source: src, Logger: h.logger,
			Metrics: h.deps.Metrics, Room: h.broker.room,
		})
		if err != nil {
			return running, err
		}
		running = append(running, p)
	}
	return running, nil
}

// over reports whether the journal of unit n has given up its partition before its lease ended: the
// broker did not answer for longer than the lease, so the outcome of a write is unknown.
func (h *host) over(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.units[n]
	return u != nil && errors.Is(u.service.Ready(), journal.ErrNotHeld)
}

// drop ends unit n, because its lease ends. It returns when the unit is closed.
func (h *host) drop(n int) {
	h.mu.Lock()
	u := h.units[n]
	delete(h.units, n)
	h.mu.Unlock()
	if u != nil {
		h.held.Dec()
		h.end(u)
	}
}

// end ends a unit's long polls, waits for its calls in flight, at most drainTerm, and
// closes it, which may take drainTerm again. Calls that arrive meanwhile wait for the next
// holder.
func (h *host) end(u *unit) {
	if r, ok := u.service.(interface{ Release() }); ok {
		r.Release()
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTerm)
	u.calls.Drain(ctx)
	cancel()
	u.unsend()
	ctx, cancel = context.WithTimeout(context.Background(), drainTerm)
	defer cancel()
	if err := u.service.Stop(ctx); err != nil {
		h.logger.Warn("a plane did not stop in time; its waiting callers get outcome=unknown",
			zap.String("plane", h.name), zap.Error(err))
	}
}
