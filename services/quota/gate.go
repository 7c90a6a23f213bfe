package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"quartet/pkg/admission"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/meter"
	"quartet/pkg/rpc"
)

// makes has, by method, the kind of record that it creates, for the kinds whose number is limited.
var makes = map[string]string{
	"/quartet.agent.v1.AgentService/SpawnAgent":   Agents,
	"/quartet.work.v1.WorkService/CreateWorkItem": OpenItems,
}

// writes has the methods that a namespace may not call when its journals have reached their
// limit, or when memory is short. Methods that end, complete or delete something are not among
// them, nor those of a turn that has started. A method whose value is recalled stores its request id,
// so that a refused repetition is still answered: the gate recalls its first response (rpc.AskRecall).
// Recalling one that stores none would execute it.
var writes = map[string]bool{
	"/quartet.agent.v1.AgentService/SpawnAgent":                recalled,
	"/quartet.agent.v1.AgentService/EnqueueMessage":            recalled,
	"/quartet.agent.v1.AgentService/AcquireTurn":               !recalled,
	"/quartet.work.v1.WorkService/CreateWorkItem":              recalled,
	"/quartet.work.v1.WorkService/UpdateWorkItem":              recalled,
	"/quartet.work.v1.HomeService/WriteFile":                   !recalled,
	"/quartet.work.v1.HomeService/EditFile":                    !recalled,
	"/quartet.task.v1.TaskService/ExecCommand":                 recalled,
	"/quartet.waiting.v1.WaitingService/CreateWait":            recalled,
	"/quartet.waiting.v1.WaitingService/CreateTimer":           recalled,
	"/quartet.waiting.v1.WaitingService/CreateExternalTrigger": recalled,
	"/quartet.board.v1.BoardService/CreateBoard":               recalled,
	"/quartet.board.v1.BoardService/UpdateBoard":               recalled,
	"/quartet.board.v1.BoardService/DispatchWorker":            recalled,
	"/quartet.board.v1.BoardService/OpenStandingDispatch":      recalled,
}

// recalled is the value of the methods in writes that store their request id.
const recalled = true

const (
	// catchUpTerm is how long a request near a limit may wait until the journal is read.
	catchUpTerm = 5 * time.Second
	// retryFull is after which time a client should repeat a request that was refused because of
	// a limit. It is long, since somebody has to remove something first.
	retryFull = 30 * time.Second
)

// Config holds the settings and dependencies of a Gate.
type Config struct {
	Limits  *Limits
	Sources func(plane string) ([]journal.Source, error)
	// Serves reports whether this process serves a plane.
	Serves func(plane string) bool
	// Archived says from which journals events were removed. The bytes of these events are subtracted a few minutes
	// later. nil: nothing is removed from journals.
	Archived Archived
	Logger   *zap.Logger
	// Memory is the memory that the process may use, in bytes; 0: not bounded. See Observe.
	Memory uint64
	// Metrics gets quartet_quota_refusals_total. Optional.
	Metrics prometheus.Registerer
}

// Gate admits or refuses requests by the quotas of their namespaces. It is a life.Service.
type Gate struct {
	cfg      Config
	counts   *counts
	refusals *prometheus.CounterVec
	// deliveries and bodies are the rates of deliveries and of the KiB of their bodies.
	deliveries, bodies deliveryRates
	streams            *admission.Held
	turns              *admission.Turns
	turnLimit          prometheus.Gauge // of turns
	live               atomic.Uint64    // see Observe

	mu      sync.Mutex
	tallies map[tallyKey]*tally      // of the kinds in makes
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
	since   int64 // requests admitted since then, and those that were being executed then
	running int64 // admitted requests that are still being executed
}

// NewGate returns a Gate that has not started.
func NewGate(cfg Config) *Gate {
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	refusals := meter.Counter(cfg.Metrics, "quartet_quota_refusals_total",
		"Requests refused because of a quota of their namespace.", "quota")
	return &Gate{
		cfg: cfg, refusals: refusals, counts: newCounts(cfg.Logger, cfg.Archived), tallies: map[tallyKey]*tally{},
		streams: admission.NewHeld(streamsTotal),
		turns:   admission.NewTurns(delayTarget), rates: map[string]*rate.Limiter{},
		turnLimit: meter.Gauge(cfg.Metrics, "quartet_turn_limit", "Calls of a namespace that run at a time, because "+
			"the process is short of processor time; 0: no limit.").WithLabelValues(),
	}
}

// Name returns the module's name.
func (g *Gate) Name() string { return "quota" }

// Start counts what the journals hold, for the kinds that have a limit and that this process enforces,
// and continues to follow these journals. It blocks until everything is counted.
func (g *Gate) Start(ctx context.Context) error {
	var kinds []string
	for _, kind := range Kinds {
		serves := slices.ContainsFunc(planes[kind], g.cfg.Serves)
		if kind == OpenItems {
			serves = g.cfg.Serves("work")
		}
		if g.cfg.Limits.any(kind) && serves {
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

// Ready returns an error until Start has counted what the journals hold, and nil from then on.
func (g *Gate) Ready() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ready {
		return errors.New("quota: not counted yet")
	}
	return nil
}

// Unary wraps the handler of every unary call (see rpc.Admission). It calls handle unless a
// quota refuses the call. If a refused request repeats one that was executed before, it
// returns the first response: it calls handle with a context in which handle only recalls that.
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
	if r, ok := req.(interface{ GetRequestId() string }); ok && r.GetRequestId() != "" && writes[method] {
		// A repeated request gets its first response also beyond the limit (SPEC X2).
		resp, e := handle(rpc.AskRecall(ctx), req)
		if e == nil || !errors.Is(e, fault.NotFound) {
			return resp, e
		}
	}
	return nil, err
}

// Request counts a request of a namespace, or returns RATE_LIMITED if the namespace sends more per second than its
// limit.
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
	return fault.RateLimited.New("namespace "+namespace+" sends more than its "+n+
		" requests a second; repeat this one in "+wait.Round(time.Millisecond).String()+", with the same request_id",
		"quota", Requests, "limit", n, "namespace", namespace).WithRetryAfter(wait)
}

// written returns the error of stored for the methods in writes, and nil for others. The
// bytes are those that were counted so far, so a few requests beyond the limit may pass.
func (g *Gate) written(namespace, method string) error {
	if _, limited := writes[method]; !limited {
		return nil
	}
	return g.stored(namespace)
}

// Shares of Config.Memory. The live heap is about half of what a busy process uses.
const (
	// fairShare is the share from which namespaces that have written more than the average may add nothing.
	fairShare = 0.45
	// allShare is the share from which no namespace may add anything.
	allShare = 0.55
	// memoryAfter is after which time a client should repeat what was refused for lack of memory.
	memoryAfter = 5 * time.Second
)

// Observe sets the size of the live heap of the process, in bytes. The process should call it a few times per second.
func (g *Gate) Observe(live uint64) { g.live.Store(live) }

// memory returns OVERLOADED while the live heap is large: from fairShare of Config.Memory for a namespace that
// has written more than the average, and from allShare for every namespace.
func (g *Gate) memory(namespace string) error {
	live, most := float64(g.live.Load()), float64(g.cfg.Memory)
	if most == 0 || live < fairShare*most || live < allShare*most && !g.counts.aboveShare(namespace) {
		return nil
	}
	g.refusals.WithLabelValues("memory").Inc()
	return fault.Overloaded.New("the server has little memory left and takes nothing new now; delete or complete "+
		"something, or repeat the request later", "bound", "memory").WithRetryAfter(memoryAfter)
}

// stored returns OVERLOADED if memory is short (see memory), QUOTA_EXCEEDED if the journals hold as many bytes of the
// namespace as its limit or more, and otherwise nil.
func (g *Gate) stored(namespace string) error {
	if err := g.memory(namespace); err != nil {
		return err
	}
	limit := g.cfg.Limits.limit(namespace, MiB)
	if limit == 0 {
		return nil
	}
	if bytes := g.counts.get(namespace, MiB); bytes >= limit<<20 {
		g.refusals.WithLabelValues(MiB).Inc()
		return full(namespace, MiB, limit, bytes>>20, "journals keep everything that history-days and erase-after do "+
			"not remove, so an admin has to raise the quota").With("bytes", strconv.FormatInt(bytes, 10))
	}
	return nil
}

// room admits the creation of one more record of a kind, or returns QUOTA_EXCEEDED; NOT_READY if
// the journal must be read to its end and that takes longer than catchUpTerm. If the error is
// nil, the caller must call done once the request was executed.
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
		// The tally may be too high: some of the admitted requests were refused later or
		// were repetitions, and records were deleted or completed since. So the journal is
		// counted again. It may or may not contain the requests that are being executed
		// now, so these are added to its count.
		ctx, cancel := context.WithTimeout(ctx, catchUpTerm)
		defer cancel()
		if err := g.counts.catchUp(ctx, kind); err != nil {
			return nil, fault.NotReady.New("how many " + kind + " the namespace has cannot be counted now; repeat " +
				"the request in a moment").WithCause(err)
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

// full returns QUOTA_EXCEEDED for a namespace that holds value of a kind, of which it may hold limit.
// remedy tells the caller how to make room.
func full(namespace, kind string, limit, value int64, remedy string) *fault.Error {
	return fault.QuotaExceeded.New(fmt.Sprintf("namespace %s has %d of its %d %s; %s", namespace, value, limit, kind,
		remedy),
		"quota", kind, "limit", strconv.FormatInt(limit, 10), "value", strconv.FormatInt(value, 10), "namespace",
		namespace).WithRetryAfter(retryFull)
}
