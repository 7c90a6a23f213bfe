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
	"quartet/pkg/rpc"
	"quartet/services/identity"
)

// Planes whose partitions may be held by different instances: whatever they do
// concerns one agent. The others are held as a whole: agents supervise each
// other, and a worker's one stream takes commands and steps of everybody
// (ADR 0022).
var splits = map[string]bool{"work": true, "waiting": true}

// planeService is an instance of a plane over some of its partitions.
type planeService interface {
	life.Service
	Register(srv grpc.ServiceRegistrar)
}

// unit is what one lease is about: a partition of a plane that is split, or all
// of one that is not.
type unit struct {
	service    planeService
	calls      *rpc.Instance
	publishers []*bus.Publisher
}

// host runs a plane where several processes do: of what this one has leases
// for, it has a unit each; calls for the rest go to whoever holds it.
type host struct {
	name   string
	build  func(d plane.Deps, share journal.Share) (planeService, error)
	deps   plane.Deps
	broker *broker
	keeper *lease.Keeper
	copy   bool // events to EVENTS
	logger *zap.Logger

	held    prometheus.Gauge
	taken   prometheus.Counter
	opening prometheus.Observer

	group *lease.Group
	mu    sync.Mutex
	units map[int]*unit
}

func newHost(h *host, metrics prometheus.Registerer) *host {
	h.units = map[int]*unit{}
	h.held = meter.Gauge(metrics, "quartet_partitions_held", "Partitions that this process holds; a plane that is not split is one.", "plane").WithLabelValues(h.name)
	h.taken = meter.Counter(metrics, "quartet_partitions_taken_total", "Partitions that this process took, at a start, from one that left, or from one that was lost.", "plane").WithLabelValues(h.name)
	h.opening = meter.Histogram(metrics, "quartet_partition_open_seconds", "Time from a partition's lease to its first answer.", meter.Work, "plane").WithLabelValues(h.name)
	return h
}

// takeTerm is how long loading a partition may take.
const takeTerm = 2 * time.Minute

func (h *host) Name() string { return h.name }

// route puts the plane on the process's server.
func (h *host) route(server *rpc.Server, network *rpc.Network, newID func(string) string, missing func(context.Context, proto.Message, error) error, search ...string) error {
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

// size is how many units the plane has.
func (h *host) size() int {
	if splits[h.name] {
		return h.broker.partitions(h.name)
	}
	return 1
}

func (h *host) share(n int) journal.Share {
	if splits[h.name] {
		return journal.One(n, h.size())
	}
	return journal.Whole(h.broker.partitions(h.name))
}

// Start declares what there is to hold; the keeper does the rest once this
// process can be reached.
func (h *host) Start(context.Context) error {
	h.group = h.keeper.Group(h.name, h.size(), lease.Hooks{Unused: h.unused, Take: h.take, Drop: h.drop, Over: h.over})
	return nil
}

// Stop does nothing: the keeper has dropped everything by then.
func (h *host) Stop(context.Context) error { return nil }

// Ready is nil while the journals of what is held here can be written.
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

// unused says that nothing was ever written to a unit's journal.
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

func (h *host) take(ctx context.Context, n int, l *lease.Lease) error {
	began := time.Now()
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
	if err := h.publish(ctx, u, share); err != nil {
		h.end(u)
		return err
	}
	h.opening.Observe(time.Since(began).Seconds())
	h.taken.Inc()
	h.held.Inc()
	h.mu.Lock()
	h.units[n] = u
	h.mu.Unlock()
	return nil
}

func (h *host) publish(ctx context.Context, u *unit, share journal.Share) error {
	if !h.copy || h.name == identity.Plane { // who may come in is nobody else's business
		return nil
	}
	if err := bus.EnsureStream(ctx, h.broker.readers, h.broker.cfg.Replicas); err != nil {
		return err
	}
	sources, err := h.broker.sources(h.name)
	if err != nil {
		return err
	}
	for _, src := range sources[share.First : share.First+share.Count] {
		pub, err := bus.Start(ctx, bus.Config{Conn: h.broker.readers, Source: src, Logger: h.logger, Metrics: h.deps.Metrics})
		if err != nil {
			return err
		}
		u.publishers = append(u.publishers, pub)
	}
	return nil
}

// over says that a unit's journal gave itself up. It does where the broker did
// not answer for longer than the lease and left a write in doubt.
func (h *host) over(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.units[n]
	return u != nil && errors.Is(u.service.Ready(), journal.ErrNotHeld)
}

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

// end lets a unit's calls finish, then closes it. Calls that come meanwhile wait
// for the next holder.
func (h *host) end(u *unit) {
	if r, ok := u.service.(interface{ Release() }); ok {
		r.Release()
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTerm)
	u.calls.Drain(ctx)
	cancel()
	for _, p := range u.publishers {
		p.Stop()
	}
	ctx, cancel = context.WithTimeout(context.Background(), drainTerm)
	defer cancel()
	if err := u.service.Stop(ctx); err != nil {
		h.logger.Warn("a plane did not close in time; whoever waited for it is told that the outcome is unknown", zap.String("plane", h.name), zap.Error(err))
	}
}
