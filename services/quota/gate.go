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

// makes has the methods that create one of a kind.
var makes = map[string]string{
	"/quartet.agent.v1.AgentService/SpawnAgent":   Agents,
	"/quartet.work.v1.WorkService/CreateWorkItem": OpenItems,
}

// writes has the methods that a namespace may not call once it has written its limit.
// Methods that end, complete or delete something are not among them, nor those of a turn
// that has started.
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

// repeats has those of makes and writes that store their request id, so that a repetition
// is recognised by recalling its response (rpc.AskRecall).
var repeats = map[string]bool{
	"/quartet.agent.v1.AgentService/SpawnAgent": true, "/quartet.agent.v1.AgentService/EnqueueMessage": true,
	"/quartet.work.v1.WorkService/CreateWorkItem": true, "/quartet.work.v1.WorkService/UpdateWorkItem": true,
	"/quartet.task.v1.TaskService/ExecCommand":       true,
	"/quartet.waiting.v1.WaitingService/CreateTimer": true, "/quartet.waiting.v1.WaitingService/CreateExternalTrigger": true,
}

const (
	// catchUpTerm is how long a request near a limit may wait until the journal is read.
	catchUpTerm = 5 * time.Second
	// retryFull is the time after which a request that was refused because of a limit may
	// be repeated: somebody has to remove something first.
	retryFull = 30 * time.Second
)

// Config holds the settings and dependencies of a Gate.
type Config struct {
	Limits  *Limits
	Sources func(plane string) ([]journal.Source, error)
	// Serves reports whether this process serves a plane.
	Serves func(plane string) bool
	Logger *zap.Logger
	// Metrics gets quartet_quota_refusals_total. Optional.
	Metrics prometheus.Registerer
}

// Gate admits or refuses requests by the quotas of their namespaces. It is a life.Service.
type Gate struct {
	cfg      Config
	counts   *counts
	refusals *prometheus.CounterVec

	mu      sync.Mutex
	tallies map[tallyKey]*tally      // of the kinds that makes has
	rates   map[string]*rate.Limiter // of requests, by namespace
	ready   bool                     // Start has counted everything
}

// tallyKey names a tally.
type tallyKey struct{ namespace, kind string }

// tally is an upper bound of what a namespace holds of a kind: what the journal said when it
// was last read to its end, and the requests admitted since then.
type tally struct {
	mu      sync.Mutex
	base    int64 // what the journal said
	since   int64 // requests admitted since then
	running int64 // of those, still being executed
}

// NewGate returns a Gate that has not started, or nil if there are no limits.
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

// Name implements life.Service.
func (g *Gate) Name() string { return "quota" }

// Start counts what the journals hold, and begins to follow them.
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

// Stop stops counting. It is idempotent.
func (g *Gate) Stop(context.Context) error {
	g.counts.close()
	return nil
}

// Ready returns nil once everything is counted.
func (g *Gate) Ready() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ready {
		return errors.New("quota: not counted yet")
	}
	return nil
}

// Unary wraps the handler of every unary call (rpc.Config.Around). It calls handle unless a
// quota refuses the call. A refused request that was executed before still gets its first
// response, which handle then only recalls.
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
		// A repeated request gets its first response also beyond the limit (SPEC X2).
		resp, e := handle(rpc.AskRecall(ctx), req)
		if e == nil || !errors.Is(e, fault.NotFound) {
			return resp, e
		}
	}
	return nil, err
}

// Request counts a request of a namespace, and refuses it beyond the limit per second.
func (g *Gate) Request(namespace string) error {
	limit := g.cfg.Limits.limit(namespace, Requests)
	if limit == 0 {
		return nil
	}
	g.mu.Lock()
	l := g.rates[namespace]
	if l == nil {
		l = rate.NewLimiter(rate.Limit(limit), int(limit)) // the burst is one second's number
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

// written refuses the methods in writes for a namespace whose journals hold as many bytes as
// its limit. The bytes are those counted so far, so a few requests more may pass.
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

// room admits the creation of one more of a kind, or returns QUOTA_EXCEEDED; NOT_READY if the
// journal must be read to its end and that takes longer than catchUpTerm. The caller calls
// done when the request was executed.
func (g *Gate) room(ctx context.Context, namespace, kind string) (done func(), err error) {
	limit := g.cfg.Limits.limit(namespace, kind)
	if limit == 0 {
		return func() {}, nil
	}
	g.mu.Lock()
	t := g.tallies[tallyKey{namespace, kind}]
	if t == nil {
		t = &tally{base: limit} // so that the journal is read first
		g.tallies[tallyKey{namespace, kind}] = t
	}
	g.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.base+t.since >= limit {
		// Some of the admitted requests were refused or repetitions, and others were
		// deleted or completed since. Requests that are being executed may be in the
		// journal or not, so they are added.
		ctx, cancel := context.WithTimeout(ctx, catchUpTerm)
		defer cancel()
		if err := g.counts.catchUp(ctx, kind); err != nil {
			return nil, fault.NotReady.New("how many " + kind + " the namespace has cannot be counted now; repeat the request in a moment").WithCause(err)
		}
		t.base, t.since = g.counts.get(namespace, kind), t.running
	}
	if t.base+t.since >= limit {
		g.refusals.WithLabelValues(kind).Inc()
		remedy := map[string]string{Agents: "delete an agent", OpenItems: "complete an item"}[kind]
		return nil, full(namespace, kind, limit, t.base+t.since, remedy+", or have an admin raise the quota")
	}
	t.since++
	t.running++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running--
	}, nil
}

// full returns QUOTA_EXCEEDED for a namespace that has value of its limit of a kind. remedy says what
// makes room.
func full(namespace, kind string, limit, value int64, remedy string) *fault.Error {
	return fault.QuotaExceeded.New(fmt.Sprintf("namespace %s has %d of its %d %s; %s", namespace, value, limit, kind, remedy),
		"quota", kind, "limit", strconv.FormatInt(limit, 10), "value", strconv.FormatInt(value, 10), "namespace", namespace).WithRetryAfter(retryFull)
}
