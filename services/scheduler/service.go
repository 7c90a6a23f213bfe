package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
)

// Agents is the part of the agent plane that the scheduler uses.
type Agents interface {
	GetFacts(ctx context.Context, in *agentv1.GetFactsRequest, opts ...grpc.CallOption) (*agentv1.GetFactsResponse,
		error)
	OfferDecision(ctx context.Context, in *agentv1.OfferDecisionRequest, opts ...grpc.CallOption) (
		*agentv1.OfferDecisionResponse, error)
	ListDecisions(ctx context.Context, in *agentv1.ListDecisionsRequest, opts ...grpc.CallOption) (
		*agentv1.ListDecisionsResponse, error)
}

// Work is the part of the work plane that the scheduler uses.
type Work interface {
	GetWorkQueue(ctx context.Context, in *workv1.GetWorkQueueRequest, opts ...grpc.CallOption) (
		*workv1.GetWorkQueueResponse, error)
	ListPendingAgents(ctx context.Context, in *workv1.ListPendingAgentsRequest, opts ...grpc.CallOption) (
		*workv1.ListPendingAgentsResponse, error)
	ConsumeRecheck(ctx context.Context, in *workv1.ConsumeRecheckRequest, opts ...grpc.CallOption) (
		*workv1.ConsumeRecheckResponse, error)
}

// Config is what an operator sets.
type Config struct {
	// Sweep is how often all agents that may need a decision are evaluated, whether or not an
	// event was about them. Events only make it faster (SPEC D1). The default is 30 s; a sweep
	// takes at least sweepPace for each agent that it marks.
	Sweep time.Duration
	// Lookers is how many agents are evaluated at a time, not counting evaluations that a
	// plane delays (see evaluators). The default is 8.
	Lookers int
}

// Deps is what the scheduler needs of its process and of other planes.
type Deps struct {
	// Sources returns the partitions of a plane, to follow.
	Sources func(plane string) ([]journal.Source, error)
	Agents  Agents
	Work    Work
	Waiting Waiting
	Clock   clock.Clock
	Logger  *zap.Logger
	// Tracer records evaluations as spans. Optional.
	Tracer *tracing.Tracer
	// Metrics registers the scheduler's metrics. Optional.
	Metrics prometheus.Registerer
}

// Service is the scheduler.
type Service struct {
	schedulerv1.UnsafeSchedulerServiceServer

	cfg        Config
	deps       Deps
	dirty      *dirty
	metrics    *metrics
	evaluators evaluators
	rechecks   *clock.Due // timers of reminders and of retries, by alarmKey
	// workPartitions is how many partitions the work plane has.
	workPartitions int
	stop           context.CancelFunc
	running        sync.WaitGroup

	swept atomic.Bool // the first sweep has marked every agent that may need a decision

	mu    sync.Mutex
	fails map[plane.Key]int // evaluations in a row that failed, by agent
}

// New checks the configuration and fills in its defaults.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Sources == nil || deps.Agents == nil || deps.Work == nil || deps.Waiting == nil {
		return nil, errors.New("scheduler: Deps needs Sources, Agents, Work and Waiting")
	}
	cfg.Sweep = cmp.Or(cfg.Sweep, 30*time.Second)
	cfg.Lookers = cmp.Or(cfg.Lookers, 8)
	deps.Clock = cmp.Or(deps.Clock, clock.System())
	deps.Logger = cmp.Or(deps.Logger, zap.NewNop())
	return &Service{
		cfg: cfg, deps: deps, dirty: newDirty(), fails: map[plane.Key]int{},
		metrics: newMetrics(deps.Metrics),
	}, nil
}

// Name returns the module's name.
func (s *Service) Name() string { return "scheduler" }

// Register puts the service on a server.
func (s *Service) Register(srv grpc.ServiceRegistrar) {
	schedulerv1.RegisterSchedulerServiceServer(srv, s)
}

// Start begins to follow, to evaluate, and to sweep.
func (s *Service) Start(ctx context.Context) error {
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.rechecks = clock.NewDue(s.deps.Clock, func(keys []string) {
		for _, k := range keys { // see alarmKey: whatever the kind, the agent is evaluated
			if parts := strings.Split(k, "\x00"); len(parts) == 3 {
				s.dirty.mark(plane.KeyOf(parts[1], parts[2]))
			}
		}
	})
	s.rechecks.Start()

	// Follow the planes.
	for plane := range wakes {
		sources, err := s.deps.Sources(plane)
		if err != nil {
			return errors.Join(err, s.Stop(ctx))
		}
		if plane == "work" {
			s.workPartitions = len(sources)
		}
		for _, src := range sources {
			// The end is read before the first sweep begins: later events are received,
			// earlier ones are covered by the sweep.
			end, err := src.End(ctx)
			if err != nil {
				return errors.Join(fmt.Errorf("scheduler: the end of the journal of %s: %w", plane, err), s.Stop(ctx))
			}
			s.running.Add(1)
			go s.listen(ctx, src, end)
		}
	}

	s.startEvaluators(ctx)
	s.running.Add(1)
	go s.sweep(ctx)
	return nil
}

// Stop ends following, evaluating and sweeping, and waits until all of it has ended. It is
// idempotent.
func (s *Service) Stop(context.Context) error {
	if s.stop == nil {
		return nil
	}
	s.stop()
	s.dirty.close()
	s.rechecks.Stop()
	s.running.Wait()
	return nil
}

// Ready returns nil once the first sweep has marked every agent that may need a decision, so that
// none depends on an event to be evaluated.
func (s *Service) Ready() error {
	if !s.swept.Load() {
		return errors.New("scheduler: the first sweep is not done")
	}
	return nil
}

// decide decides about one agent, and offers a tick or idle to the agent plane; it repeats
// both if the facts have changed meanwhile, a few times. busy reports that the agent has a
// turn or a message: until the agent plane reports the end of that, no event of another plane
// needs a decision.
//
// ahead is set for an evaluation that a hint caused: it reads what is not durable yet, and
// its offer is stored after that.
func (s *Service) decide(ctx context.Context, k plane.Key, ahead bool) (busy bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ctx = rpc.WithActor(ctx, rpc.Actor{Namespace: k.Namespace, Principal: "scheduler", Role: rpc.RoleService})
	const tries = 5
	for range tries {
		f, err := s.facts(ctx, k, ahead)
		if err != nil {
			return false, err
		}
		v := Plan(f)
		note(ctx, v)
		s.metrics.decided(v)
		s.scheduleReminder(k, f)

		// Only ticks and idleness are recorded, and not twice.
		if v.Action != ActionTick && v.Action != ActionIdle {
			return v.Reason == "run_open" || v.Reason == "message_queued", nil // otherwise it may not run
		}
		if v.Action == ActionIdle && recorded(f.Agent, v) {
			return false, nil // what a sweep finds for almost every agent
		}

		// The tick of a reminder may have been queued by a process that died before it marked the reminder as given.
		if v.Recheck != nil && sameTick(f.Agent.GetLastDecision(), v) {
			if ahead {
				ahead = false // other planes are called only for what is durable
				continue
			}
			return false, s.consumeRecheck(ctx, k, v)
		}

		// Offer the decision.
		offer, err := s.deps.Agents.OfferDecision(ctx, &agentv1.OfferDecisionRequest{
			AgentId: k.ID, FactsRevision: f.Agent.GetFactsRevision(), LoadId: f.Agent.GetLoadId(),
			Decision: &agentv1.Decision{
				Action: v.Action, TickReason: v.Tick, Reason: v.Reason,
				WorkItemId: v.ItemID, WorkItemRevision: v.Revision, Explanation: sentence(v, f),
			},
		})
		if err != nil {
			return false, err
		}
		if offer.GetResult() == agentv1.OfferResult_OFFER_RESULT_STALE {
			continue
		}
		tickQueued := v.Action == ActionTick && offer.GetMessageId() != ""
		if tickQueued && v.Recheck != nil {
			err = s.consumeRecheck(ctx, k, v)
		}
		return tickQueued, err
	}
	return false, fmt.Errorf("scheduler: the facts of agent %s changed %d times while it was decided", k.ID, tries)
}

// recorded reports whether an idle verdict is the last recorded decision, and no turn has ended since. OfferDecision
// would then record nothing, so it need not be called. Ticks are different: one that was dropped may be offered again.
func recorded(a *agentv1.AgentFacts, v Verdict) bool {
	last := a.GetLastDecision()
	return last.GetAction() == v.Action && last.GetReason() == v.Reason && sameTick(last, v) &&
		last.GetLastTurnId() == a.GetAgent().GetLastTurnId()
}

// sameTick reports whether the last recorded decision has the tick, the item and the revision
// of a verdict.
func sameTick(last *agentv1.Decision, v Verdict) bool {
	return last.GetTickReason() == v.Tick && last.GetWorkItemId() == v.ItemID &&
		last.GetWorkItemRevision() == v.Revision
}

// consumeRecheck marks the reminder of a recheck verdict as given.
func (s *Service) consumeRecheck(ctx context.Context, k plane.Key, v Verdict) error {
	_, err := s.deps.Work.ConsumeRecheck(ctx, &workv1.ConsumeRecheckRequest{
		AgentId: k.ID, WorkItemId: v.ItemID, RecheckAt: v.Recheck.GetRecheckAt(),
	})
	return err
}

// facts reads what a decision rests on, with ahead also what the agent plane has not made
// durable yet. It reads the agent plane first: a later change there makes the offer stale, so
// a decision never rests on a queue that is older than a turn. It returns NOT_FOUND if there
// is no such agent.
func (s *Service) facts(ctx context.Context, k plane.Key, ahead bool) (Facts, error) {
	a, err := s.deps.Agents.GetFacts(ctx, &agentv1.GetFactsRequest{AgentId: k.ID, Ahead: ahead})
	if err != nil {
		return Facts{}, err
	}
	if len(a.GetFacts()) != 1 {
		return Facts{}, fault.NotFound.Newf("agent %q does not exist", k.ID).With("agent_id", k.ID)
	}
	q, err := s.deps.Work.GetWorkQueue(ctx, &workv1.GetWorkQueueRequest{
		AgentId: k.ID, OmitPlans: true, WorkItemIds: tickedItem(a.GetFacts()[0].GetHeadTick()),
		PassedOver: passedOver(a.GetFacts()[0]),
	})
	if err != nil {
		return Facts{}, err
	}
	return Facts{Agent: a.GetFacts()[0], Queue: q, Now: s.deps.Clock.Now()}, nil
}

// passedOver returns the stalled items of an agent. The queue shows others in their places,
// unless they were written since.
func passedOver(f *agentv1.AgentFacts) []*workv1.PassedOver {
	var items []*workv1.PassedOver
	for _, stalled := range f.GetStalledItems() {
		items = append(items, &workv1.PassedOver{
			WorkItemId: stalled.GetWorkItemId(), UnlessWrittenAfter: stalled.GetSince(),
			UnlessRevisionAfter: stalled.GetRevision(),
		})
	}
	return items
}

// tickedItem returns the item that a tick is about in the form of
// GetWorkQueueRequest.work_item_ids: nil if there is none. The queue then shows how the item is
// now, from which staletick.Reason finds out whether the tick is still true.
func tickedItem(t *agentv1.Tick) []string {
	if t.GetWorkItemId() == "" {
		return nil
	}
	return []string{t.GetWorkItemId()}
}

// alarmKey returns the key of an agent's timer of a kind.
func alarmKey(kind string, k plane.Key) string {
	return strings.Join([]string{kind, k.Namespace, k.ID}, "\x00")
}

// scheduleReminder sets the timer for the agent's next reminder that lies ahead, or removes
// it if there is none.
func (s *Service) scheduleReminder(k plane.Key, f Facts) {
	key := alarmKey("recheck", k)
	for _, it := range f.Queue.GetRechecks() {
		reminder := it.GetRecheckAt().AsTime()
		if reminder.After(f.Now) {
			s.rechecks.Set(key, reminder)
			return
		}
	}
	s.rechecks.Remove(key)
}
