package datadir

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/life"
	"quartet/pkg/meter"
	"quartet/pkg/natsd"
)

const (
	// period is how often the store is measured. What this process writes in between is counted.
	period = time.Second
	// term bounds one measurement.
	term = 5 * time.Second
)

// FillSource returns how much of the store is in use, and how much it can hold.
type FillSource func(ctx context.Context) (framelog.RoomState, error)

// errNoUsage is returned while there is nothing to measure.
var errNoUsage = errors.New("the broker does not run")

// EmbeddedFill measures an embedded server with a data directory. What other programs leave of the disk bounds the
// store as well as max-store-mib.
func EmbeddedFill(server func() *natsd.Server, dir string) FillSource {
	return func(context.Context) (framelog.RoomState, error) {
		s := server()
		if s == nil {
			return framelog.RoomState{}, errNoUsage
		}
		used, limit, err := s.Usage()
		if err != nil {
			return framelog.RoomState{}, err
		}
		state := framelog.RoomState{Used: used, Limit: limit}
		var disk syscall.Statfs_t
		if err := syscall.Statfs(dir, &disk); err == nil {
			free := int64(disk.Bavail) * int64(disk.Bsize) //nolint:unconvert // their types differ by system
			if state.Limit <= 0 || used+free < state.Limit {
				state.Limit = used + free
			}
		}
		return state, nil
	}
}

// AccountFill measures what the account of a connection uses. If the account has no limit of its own, only the servers
// know how much they have, and they tell nobody but their system account: the limit is then not known.
func AccountFill(conn func() *nats.Conn, replicas int) FillSource {
	return func(ctx context.Context) (framelog.RoomState, error) {
		nc := conn()
		if nc == nil {
			return framelog.RoomState{}, errNoUsage
		}
		js, err := jetstream.New(nc)
		if err != nil {
			return framelog.RoomState{}, err
		}
		info, err := js.AccountInfo(ctx)
		if err != nil {
			return framelog.RoomState{}, err
		}
		if tier, ok := info.Tiers[fmt.Sprintf("R%d", max(replicas, 1))]; ok {
			return framelog.RoomState{Used: int64(tier.Store), Limit: max(tier.Limits.MaxStore, 0)}, nil
		}
		return framelog.RoomState{Used: int64(info.Store), Limit: max(info.Limits.MaxStore, 0)}, nil
	}
}

// FillGauge is the module that measures.
type FillGauge struct {
	*life.Periodic
	room    *framelog.Room
	source  FillSource
	logger  *zap.Logger
	used    prometheus.Gauge
	limit   prometheus.Gauge
	level   framelog.RoomLevel
	failed  bool
	warning atomic.Pointer[string]
	now     func() time.Time
	trend   trend
	fullIn  atomic.Int64 // a time.Duration; see FullIn
	full    prometheus.Gauge
}

// NewFillGauge returns a module that measures with source and records in r.
func NewFillGauge(r *framelog.Room, source FillSource, logger *zap.Logger, metrics prometheus.Registerer) *FillGauge {
	g := &FillGauge{
		room: r, source: source, logger: logger, now: clock.System().Now,
		used: meter.Gauge(metrics, "quartet_store_used_bytes", "How much of the store of the journals is in use: "+
			"journals, events and output.").WithLabelValues(),
		limit: meter.Gauge(metrics, "quartet_store_limit_bytes", "How much the store of the journals can hold; 0 if "+
			"the NATS servers do not tell. Near it new records are refused with STORAGE_FULL.").WithLabelValues(),
		full: meter.Gauge(metrics, "quartet_store_full_seconds", "When the store of the journals will be full at "+
			"the rate of the last hours, six at most; 0 if it is full, +Inf if it does not grow, or if that is "+
			"not known.").WithLabelValues(),
	}
	g.Periodic = &life.Periodic{Label: "fill", Period: period, Do: g.Measure}
	return g
}

// Start measures once, so that the first request finds a store that is full, and then periodically.
func (g *FillGauge) Start(ctx context.Context) error {
	g.Measure(ctx)
	if g.room.Now().Limit == 0 {
		g.logger.Info("how much the store of the journals can hold is not known: the account at the NATS servers has "+
			"no limit max_file, so there are no warnings before it is full", zap.Int64("used_bytes", g.room.Now().Used))
	}
	return g.Periodic.Start(ctx)
}

// Measure measures once. It logs when the level changes.
func (g *FillGauge) Measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	err := g.room.Measure(func() (framelog.RoomState, error) { return g.source(ctx) })
	if err != nil {
		if !g.failed {
			g.logger.Warn("how full the store of the journals is cannot be measured; trying again", zap.Error(err))
		}
		g.failed = true
		return
	}
	g.failed = false
	now := g.room.Now()
	g.used.Set(float64(now.Used))
	g.limit.Set(float64(now.Limit))
	g.forecast(now)
	level := now.Level()
	if level <= framelog.RoomEnough {
		g.warning.Store(nil)
	} else {
		text := g.text(now)
		g.warning.Store(&text)
	}
	if level == g.level {
		return
	}
	was := g.level
	g.level = level
	switch fields := []zap.Field{
		zap.Int("percent", now.Percent()), zap.Int64("used_bytes", now.Used),
		zap.Int64("limit_bytes", now.Limit), zap.String("remedy", g.room.Remedy),
	}; {
	case level == framelog.RoomFull:
		g.logger.Error("the store of the journals is full: new records are refused with STORAGE_FULL", fields...)
	case level > framelog.RoomEnough && level > was:
		g.logger.Warn("the store of the journals is filling up", fields...)
	case was > framelog.RoomEnough:
		g.logger.Info("the store of the journals has more room again", fields...)
	}
}

// forecast computes how long it will take until the store is full.
func (g *FillGauge) forecast(now framelog.RoomState) {
	at, in := g.now(), time.Duration(0)
	g.trend.add(at, now.Used)
	free := now.Limit - framelog.RoomReserve(now.Limit) - now.Used // of new records, which may not use the reserve
	full := now.Refusing || now.Limit > 0 && free <= 0
	if !full && now.Limit > 0 {
		in = g.trend.full(at, now.Used, free)
	}
	g.fullIn.Store(int64(in))
	if full || in > 0 {
		g.full.Set(in.Seconds())
	} else {
		g.full.Set(math.Inf(1))
	}
}

// FullIn returns how long it will take until the store is full, so that new records are refused, at the rate of the
// last hours; 0 if it is full, or if that is not known or not to be expected.
func (g *FillGauge) FullIn() time.Duration { return time.Duration(g.fullIn.Load()) }

// text returns the warning about a store that is filling up or full.
func (g *FillGauge) text(now framelog.RoomState) string {
	if now.Refusing {
		return fmt.Sprintf("the NATS servers refuse to store more, because their store is full (%d MiB in use): new "+
			"records are refused with STORAGE_FULL. %s", now.Used>>20, g.room.Remedy)
	}
	what := fmt.Sprintf("the store of the journals is %d %% full (%d of %d MiB)", now.Percent(), now.Used>>20,
		now.Limit>>20)
	if now.Level() == framelog.RoomFull {
		what += ": new records are refused with STORAGE_FULL"
	}
	return what + ". " + g.room.Remedy
}

// Warning returns the warning of the last measurement, "" if the store has enough room.
func (g *FillGauge) Warning() string {
	if text := g.warning.Load(); text != nil {
		return *text
	}
	return ""
}
