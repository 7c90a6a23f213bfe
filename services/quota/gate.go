package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/meter"
	"quartet/pkg/rpc"
)

// makes are the methods that add one of what is counted.
var makes = map[string]string{
	"/quartet.agent.v1.AgentService/SpawnAgent":   Agents,
	"/quartet.work.v1.WorkService/CreateWorkItem": OpenItems,
}

// writes are the methods that a namespace which has written its share may not
// call any more. What ends, completes or removes something is not among them,
// nor what goes on inside a turn that has begun.
var writes = map[string]bool{
	"/quartet.agent.v1.AgentService/SpawnAgent": true, "/quartet.agent.v1.AgentService/EnqueueMessage": true, "/quartet.agent.v1.AgentService/AcquireTurn": true,
	"/quartet.work.v1.WorkService/CreateWorkItem": true, "/quartet.work.v1.WorkService/UpdateWorkItem": true,
	"/quartet.work.v1.HomeService/WriteFile": true, "/quartet.work.v1.HomeService/EditFile": true,
	"/quartet.task.v1.TaskService/ExecCommand":      true,
	"/quartet.waiting.v1.WaitingService/CreateWait": true, "/quartet.waiting.v1.WaitingService/CreateTimer": true,
	"/quartet.waiting.v1.WaitingService/CreateExternalTrigger": true,
	"/quartet.board.v1.BoardService/CreateBoard":               true, "/quartet.board.v1.BoardService/UpdateBoard": true,
	"/quartet.board.v1.BoardService/DispatchWorker": true, "/quartet.board.v1.BoardService/OpenStandingDispatch": true,
}

// repeats are those of them that take a request to the journal under its id, so
// that a repetition can be told by asking for what it was answered (rpc.Recall).
var repeats = map[string]bool{
	"/quartet.agent.v1.AgentService/SpawnAgent": true, "/quartet.agent.v1.AgentService/EnqueueMessage": true,
	"/quartet.work.v1.WorkService/CreateWorkItem": true, "/quartet.work.v1.WorkService/UpdateWorkItem": true,
	"/quartet.task.v1.TaskService/ExecCommand":       true,
	"/quartet.waiting.v1.WaitingService/CreateTimer": true, "/quartet.waiting.v1.WaitingService/CreateExternalTrigger": true,
}

const (
	catchUpTerm = 5 * time.Second
	// retryFull is when a full namespace is worth another try: somebody has to
	// remove something first.
	retryFull = 30 * time.Second
)

// Config of a Gate.
type Config struct {
	Limits  *Limits
	Sources func(plane string) ([]journal.Source, error)
	// Serves tells which planes' methods come to this process.
	Serves func(plane string) bool
	Logger *zap.Logger
	// Metrics gets quartet_quota_refusals_total; nil counts nothing that anybody sees.
	Metrics prometheus.Registerer
}

// Gate lets requests through, or refuses them. It is a life.Service.
type Gate struct {
	cfg      Config
	counts   *counts
	refusals *prometheus.CounterVec

	mu      sync.Mutex
	tallies map[tallyKey]*tally
	rates   map[string]*rate.Limiter
	ready   bool
}

type tallyKey struct{ namespace, kind string }

// tally is how many more of a kind a namespace may have made since its journal
// was last read to the end.
type tally struct {
	mu      sync.Mutex
	base    int64 // then
	since   int64 // let through since then
	running int64 // of those, still on their way
}

// NewGate makes a Gate. nil: there is nothing to keep.
func NewGate(cfg Config) *Gate {
	if !slices.ContainsFunc(Kinds, cfg.Limits.any) {
		return nil
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	refusals := meter.Counter(cfg.Metrics, "quartet_quota_refusals_total", "Requests refused because of a quota of their namespace.", "quota")
	return &Gate{cfg: cfg, refusals: refusals, counts: newCounts(cfg.Logger), tallies: map[tallyKey]*tally{}, rates: map[string]*rate.Limiter{}}
}

// Name is the module's name.
func (g *Gate) Name() string { return "quota" }

// Start counts what there is.
func (g *Gate) Start(ctx context.Context) error {
	var kinds []string
	for _, kind := range Kinds {
		if g.cfg.Limits.any(kind) && slices.ContainsFunc(planes[kind], g.cfg.Serves) {
			kinds = append(kinds, kind)
		}
	}
	if err := g.counts.start(ctx, g.cfg.Sources, kinds); err != nil {
		g.counts.close()
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready = true
	return nil
}

// Stop ends counting. It is idempotent.
func (g *Gate) Stop(context.Context) error {
	g.counts.close()
	return nil
}

// Ready is nil once everything is counted.
func (g *Gate) Ready() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ready {
		return errors.New("quota: not counted yet")
	}
	return nil
}

// Unary wraps the handler of every unary call (rpc.Config.Around).
func (g *Gate) Unary(ctx context.Context, method string, req any, handle grpc.UnaryHandler) (any, error) {
	a := rpc.ActorFrom(ctx)
	err := g.written(a.Namespace, method)
	if kind := makes[method]; err == nil && kind != "" {
		var done func()
		if done, err = g.room(ctx, a.Namespace, kind); err == nil {
			defer done()
		}
	}
	if err == nil {
		return handle(ctx, req)
	}
	if r, ok := req.(interface{ GetRequestId() string }); ok && r.GetRequestId() != "" && repeats[method] {
		// Full or not, a repeated request has its first answer (SPEC X2).
		resp, e := handle(rpc.AskRecall(ctx), req)
		if e == nil || !errors.Is(e, fault.NotFound) {
			return resp, e
		}
	}
	return nil, err
}

// Request counts one request of a namespace.
func (g *Gate) Request(namespace string) error {
	limit := g.cfg.Limits.limit(namespace, Requests)
	if limit == 0 {
		return nil
	}
	g.mu.Lock()
	l := g.rates[namespace]
	if l == nil {
		l = rate.NewLimiter(rate.Limit(limit), int(limit)) // a second's worth at once
		g.rates[namespace] = l
	}
	g.mu.Unlock()
	r := l.Reserve()
	wait := r.Delay()
	if wait == 0 {
		return nil
	}
	r.Cancel()
	g.refusals.WithLabelValues(Requests).Inc()
	n := strconv.FormatInt(limit, 10)
	return fault.RateLimited.New("namespace "+namespace+" sends more than its "+n+" requests a second; repeat this one in "+wait.Round(time.Millisecond).String()+", with the same request_id",
		"quota", Requests, "limit", n, "namespace", namespace).WithRetryAfter(wait)
}

// written refuses more of a namespace that has written its share.
func (g *Gate) written(namespace, method string) error {
	limit := g.cfg.Limits.limit(namespace, MiB)
	if limit == 0 || !writes[method] {
		return nil
	}
	if bytes := g.counts.get(namespace, MiB); bytes >= limit<<20 {
		g.refusals.WithLabelValues(MiB).Inc()
		return full(namespace, MiB, limit, bytes>>20, "journals keep everything, so an admin has to raise the quota").With("bytes", strconv.FormatInt(bytes, 10))
	}
	return nil
}

// room lets one more of a kind be made, or refuses it; done is called when it
// was.
func (g *Gate) room(ctx context.Context, namespace, kind string) (done func(), err error) {
	limit := g.cfg.Limits.limit(namespace, kind)
	if limit == 0 {
		return func() {}, nil
	}
	g.mu.Lock()
	t := g.tallies[tallyKey{namespace, kind}]
	if t == nil {
		t = &tally{base: limit} // read the journal first
		g.tallies[tallyKey{namespace, kind}] = t
	}
	g.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.base+t.since >= limit {
		// Some that were let through were refused or repetitions, others went
		// since. Those on their way may be counted or not: they count.
		ctx, cancel := context.WithTimeout(ctx, catchUpTerm)
		defer cancel()
		if err := g.counts.catchUp(ctx, kind); err != nil {
			return nil, fault.NotReady.New("how many " + kind + " the namespace has cannot be told now; repeat the request in a moment").WithCause(err)
		}
		t.base, t.since = g.counts.get(namespace, kind), t.running
	}
	if t.base+t.since >= limit {
		g.refusals.WithLabelValues(kind).Inc()
		mend := map[string]string{Agents: "delete an agent", OpenItems: "complete an item"}[kind]
		return nil, full(namespace, kind, limit, t.base+t.since, mend+", or have an admin raise the quota")
	}
	t.since++
	t.running++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running--
	}, nil
}

func full(namespace, kind string, limit, value int64, mend string) *fault.Error {
	return fault.QuotaExceeded.New(fmt.Sprintf("namespace %s has %d of its %d %s; %s", namespace, value, limit, kind, mend),
		"quota", kind, "limit", strconv.FormatInt(limit, 10), "value", strconv.FormatInt(value, 10), "namespace", namespace).WithRetryAfter(retryFull)
}
