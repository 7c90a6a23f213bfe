package agent

import (
	"cmp"
	"context"
	"quartet/services/agent/ref"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// retryTerm is the pause before a lost turn that could not be ended is tried
// again: its message should be free soon after what was in the way is gone.
const retryTerm = time.Second

// leaseLost is why a turn ended whose runner fell silent.
const leaseLost = "lease_lost"

// leases are the terms of open turns. They live in memory: a heartbeat writes
// no journal line, and after a restart every open turn gets one full term
// (SPEC X12). A term begins with the turn's first frame, seen by the journal's
// own hooks, so that no turn is ever open without one.
type leases struct {
	clk    clock.Clock
	due    *clock.Due
	expire func(context.Context, key, string)
	ctx    context.Context //nolint:containedctx // ends the expiries that run when the service stops
	cancel context.CancelFunc

	mu      sync.Mutex
	stalled func() time.Duration // how long the journal has stood still in all
	held    map[string]lease     // by due key
	ending  sync.WaitGroup
}

type lease struct {
	agent   key
	runID   string
	stalled time.Duration // the journal's stall when the term began
	calls   int           // SubmitRounds that are under way
}

func newLeases(clk clock.Clock, expire func(context.Context, key, string)) *leases {
	l := &leases{clk: clk, expire: expire, held: map[string]lease{}, stalled: func() time.Duration { return 0 }}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.due = clock.NewDue(clk, l.over)
	return l
}

// start begins to end terms. stalled is asked from then on.
func (l *leases) start(stalled func() time.Duration) {
	l.mu.Lock()
	l.stalled = stalled
	l.mu.Unlock()
	l.due.Start()
}

// stop ends that. What is being ended is left to the next start.
func (l *leases) stop() {
	l.due.Stop()
	l.cancel()
	l.ending.Wait()
}

// over ends the turns whose terms are over, each by itself: the end of one may
// have to wait for another plane, and no other agent should (SPEC D5).
func (l *leases) over(keys []string) {
	for _, k := range keys {
		if ls, over := l.expired(k); over {
			l.ending.Go(func() { l.expire(l.ctx, ls.agent, ls.runID) })
		}
	}
}

func leaseKey(k key, runID string) string {
	return strings.Join([]string{k.Namespace, k.ID, runID}, "\x00")
}

// arm begins a term, or begins it anew.
func (l *leases) arm(k key, runID string) time.Time { return l.armFor(k, runID, turnTerm) }

func (l *leases) armFor(k key, runID string, term time.Duration) time.Time {
	until := l.clk.Now().Add(term)
	dk := leaseKey(k, runID)
	l.mu.Lock()
	ls := l.held[dk]
	ls.agent, ls.runID, ls.stalled = k, runID, l.stalled()
	l.held[dk] = ls
	l.mu.Unlock()
	l.due.Set(dk, until)
	return until
}

// use keeps a term from ending while its runner waits for an answer of ours:
// the calls of a round may take longer than a term, and a runner that holds the
// line is alive.
func (l *leases) use(k key, runID string) (release func()) {
	l.arm(k, runID)
	count := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if ls, ok := l.held[leaseKey(k, runID)]; ok {
			ls.calls += n
			l.held[leaseKey(k, runID)] = ls
		}
	}
	count(1)
	return func() { count(-1) }
}

// until is when the term of a run ends, as known now.
func (l *leases) until(k key, runID string) (time.Time, bool) { return l.due.At(leaseKey(k, runID)) }

// disarm forgets a run that ended.
func (l *leases) disarm(k key, runID string) {
	dk := leaseKey(k, runID)
	l.mu.Lock()
	delete(l.held, dk)
	l.mu.Unlock()
	l.due.Remove(dk)
}

// expired takes a term that is over. Time in which the journal stood still does
// not count: nobody could have renewed (ARCHITECTURE section 3).
func (l *leases) expired(dk string) (lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ls, ok := l.held[dk]
	if !ok {
		return lease{}, false
	}
	if ls.calls > 0 {
		l.due.Set(dk, l.clk.Now().Add(turnTerm))
		return lease{}, false
	}
	if grew := l.stalled() - ls.stalled; grew > 0 {
		ls.stalled += grew
		l.held[dk] = ls
		l.due.Set(dk, l.clk.Now().Add(grew))
		return lease{}, false
	}
	delete(l.held, dk)
	return ls, true
}

// RenewTurn keeps the lease (SPEC A6). It reads and writes no journal line.
func (s *Service) RenewTurn(ctx context.Context, req *agentv1.RenewTurnRequest) (*agentv1.RenewTurnResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRun(actor, req.GetAgentId(), req.GetTurnId(), req.GetRunId()); err != nil {
		return nil, err
	}
	_, _, err := plane.View(ctx, s.engine, req.GetAgentId(), func(st *State) (*agentv1.Turn, error) {
		t, err := st.held(actor.Namespace, req.GetAgentId(), req.GetTurnId(), req.GetRunId())
		if err != nil {
			return nil, err
		}
		return t.rec, nil
	})
	if err != nil {
		return nil, err
	}
	until := s.leases.arm(ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}, req.GetRunId())
	return &agentv1.RenewTurnResponse{LeaseExpiresAt: timestamppb.New(until)}, nil
}

// admitRun checks the ids that fence a runner's call.
func admitRun(actor rpc.Actor, agentID, turnID, runID string) error {
	for _, err := range []error{
		fault.Name("agent_id", agentID),
		fault.ID("turn_id", turnID, "trn_"),
		fault.ID("run_id", runID, "run_"),
		rpc.CheckAgent(actor, agentID),
	} {
		if err != nil {
			return err
		}
	}
	if actor.Role == rpc.RoleOperator || actor.Role == rpc.RoleIntegration || actor.Role == rpc.RoleWorker {
		return fault.PermissionDenied.Newf("role %s does not run turns", actor.Role)
	}
	if actor.RunID != "" && actor.RunID != runID {
		return fault.RunStale.Newf("the credential is of run %s, not of %s", actor.RunID, runID).With("run_id", runID)
	}
	return nil
}

// held gives the open turn that a run holds: RUN_STALE for another run,
// TURN_ENDED when this very run has ended.
func (s *State) held(namespace, agentID, turnID, runID string) (*turnState, error) {
	a, err := s.agent(namespace, agentID)
	if err != nil {
		return nil, err
	}
	t := a.find(turnID)
	switch {
	case t == nil && !a.lives():
		return nil, stale(&agentv1.Turn{TurnId: turnID, EndReason: agentDeleted}, runID)
	case t == nil:
		return nil, fault.NotFound.Newf("agent %q has no turn %q", agentID, turnID).With("turn_id", turnID)
	case t.rec.GetRunId() != runID:
		return nil, stale(t.rec, runID)
	case t.rec.GetState() == agentv1.TurnState_TURN_STATE_INTERRUPTED, t.rec.GetState() == agentv1.TurnState_TURN_STATE_ABORTED:
		return nil, stale(t.rec, runID)
	case t.rec.GetState() != agentv1.TurnState_TURN_STATE_OPEN:
		return nil, fault.TurnEnded.Newf("turn %q has ended (%s); acquire the next one", turnID, t.rec.GetEndReason()).
			With("turn_id", turnID).With("end_reason", t.rec.GetEndReason())
	}
	return t, nil
}

// stale says why a run does not hold a turn: how the turn ended, or that
// another run holds it.
func stale(t *agentv1.Turn, runID string) error {
	why := cmp.Or(t.GetEndReason(), "another_run")
	return fault.RunStale.Newf("run %q does not hold turn %q (%s); stop working on it", runID, t.GetTurnId(), why).
		With("run_id", runID).With("turn_id", t.GetTurnId()).With("stale_reason", why)
}

// expire ends a turn whose runner gave no sign of life.
func (s *Service) expire(ctx context.Context, k key, runID string) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ctx = rpc.WithActor(ctx, rpc.Actor(*plane.System(k.Namespace)))
	turn, _, err := s.recoverRound(ctx, k, runID)
	if err == nil && turn != nil {
		how := ending{state: agentv1.TurnState_TURN_STATE_INTERRUPTED, reason: leaseLost, requeue: true}
		if s.handovers.isUnheard(runID) {
			how.reason, how.uncounted = undelivered, true
		}
		err = s.endTurn(ctx, k, turn, how)
	}
	if err == nil {
		s.handovers.heard(runID)
	}
	if err != nil {
		s.deps.Logger.Warn("a lost turn could not be ended; trying again", zap.String("agent_id", k.ID), zap.String("run_id", runID), zap.Error(err))
		s.leases.armFor(k, runID, retryTerm)
	}
}

// undelivered is the end of a turn whose caller never heard of it: its request
// got nothing and may come again (SPEC X2).
const undelivered = "undelivered"

// undeliver gives a turn back whose answer could not be delivered. Should that
// fail, its term ends it.
func (s *Service) undeliver(ctx context.Context, namespace string, turn *agentv1.Turn) {
	k := ref.Agent{Namespace: namespace, ID: turn.GetAgentId()}
	ctx, cancel := context.WithTimeout(rpc.WithActor(ctx, rpc.Actor(*plane.System(namespace))), commitTerm)
	defer cancel()
	err := s.endTurn(ctx, k, turn, ending{state: agentv1.TurnState_TURN_STATE_INTERRUPTED, reason: undelivered, requeue: true, uncounted: true})
	if err != nil {
		s.handovers.unheard(turn.GetRunId())
		s.deps.Logger.Warn("a turn could not be given back; its lease ends it", zap.String("agent_id", k.ID), zap.Error(err))
	}
}

// loaded gives every open turn of a state one full term: after a restart, and
// after another writer had the partition.
func (s *Service) loaded(st *State) {
	for namespace := range st.ready {
		s.shares.touch(namespace)
	}
	s.supervision.recall(st)
	for k, a := range st.agents {
		if a.turn != nil {
			s.leases.arm(k, a.turn.rec.GetRunId())
		}
	}
}
