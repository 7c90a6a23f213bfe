package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// turnTerm is how long a run holds its agent without a sign of life (SPEC X12).
	turnTerm = 30 * time.Second
	// defaultWait and maxWait bound the long poll: most clients and proxies
	// give up after 60 s (SPEC X13).
	defaultWait = 30 * time.Second
	maxWait     = 55 * time.Second
	// commitTerm bounds the wait for a turn's first frame. A turn that lands
	// later than that is given back by its lease.
	commitTerm = 20 * time.Second
	// retryHint is when a runner that got nothing should ask again.
	retryHint = 100 * time.Millisecond
	// failedPause is when agents are looked at again whose turn could not be prepared.
	failedPause = time.Second
)

// Deadlines are the calls that wait longer than a server's default allows.
func Deadlines() map[string]time.Duration {
	return map[string]time.Duration{
		agentv1.AgentService_AcquireTurn_FullMethodName: maxWait + 10*time.Second,
		agentv1.AgentService_SubmitRound_FullMethodName: roundTerm + 30*time.Second,
	}
}

// errNotTaken says that another runner was first, or the message went stale;
// errRepeated that the same request got a turn while this one waited.
var (
	errNotTaken = errors.New("agent: the turn was not taken")
	errRepeated = errors.New("agent: the request got a turn already")
)

// AcquireTurn waits for an agent with something to do and leases its turn (SPEC A6).
func (s *Service) AcquireTurn(ctx context.Context, req *agentv1.AcquireTurnRequest) (*agentv1.AcquireTurnResponse, error) {
	if err := rpc.RequireRole(ctx, rpc.RoleAdmin, rpc.RoleRunner, rpc.RoleAgent); err != nil {
		return nil, err
	}
	actor := rpc.ActorFrom(ctx)
	wait, err := admitAcquire(actor, req)
	if err != nil {
		return nil, err
	}
	if req.GetRequestId() != "" {
		if resp, err := s.repeatedAcquire(ctx, actor, req); resp != nil || err != nil {
			return resp, err
		}
	}
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		w := s.waiters.add(actor.Namespace, req.GetAgentIds())
		resp, failed, err := s.tryAcquire(ctx, actor, req)
		if errors.Is(err, errRepeated) {
			resp, err = s.repeatedAcquire(ctx, actor, req)
		}
		if resp != nil || err != nil {
			s.waiters.remove(w)
			s.wakeNext(ctx, actor.Namespace)
			return resp, err
		}
		var again <-chan time.Time
		if failed {
			again = time.After(failedPause)
		}
		select {
		case <-w.woken:
		case <-again:
		case <-deadline.C:
			s.waiters.remove(w)
			return &agentv1.AcquireTurnResponse{Pending: true, PollAfter: durationpb.New(retryHint)}, nil
		case <-ctx.Done():
			s.waiters.remove(w)
			return nil, fault.From(ctx.Err())
		case <-s.stopping:
			s.waiters.remove(w)
			return nil, fault.NotReady.New("the service is stopping; ask another instance or again")
		}
		s.waiters.remove(w)
	}
}

func admitAcquire(actor rpc.Actor, req *agentv1.AcquireTurnRequest) (time.Duration, error) {
	if err := fault.RequestID(req.GetRequestId()); err != nil {
		return 0, err
	}
	if err := fault.Text("runner_id", req.GetRunnerId(), 128, false); err != nil {
		return 0, err
	}
	if err := fault.Entries("agent_ids", len(req.GetAgentIds()), 1000); err != nil {
		return 0, err
	}
	for i, agentID := range req.GetAgentIds() {
		if err := fault.Name(fmt.Sprintf("agent_ids[%d]", i), agentID); err != nil {
			return 0, err
		}
		if err := rpc.CheckAgent(actor, agentID); err != nil {
			return 0, err
		}
	}
	if actor.Role == rpc.RoleAgent && len(req.GetAgentIds()) == 0 {
		return 0, fault.Invalid("agent_ids", "", "must name the agent of the credential")
	}
	wait := defaultWait
	if req.GetWait() != nil {
		wait = req.GetWait().AsDuration()
		if !req.GetWait().IsValid() || wait < 0 || wait > maxWait {
			return 0, fault.LimitExceeded.Newf("wait is %s; it must be 0 s to %s", wait, maxWait).WithField("wait", "must be 0 s to 55 s")
		}
	}
	return wait, nil
}

// offer is an agent whose turn may be taken.
type offer struct {
	agent   *agentv1.Agent
	message *agentv1.Message
}

// tryAcquire takes one turn if there is one. Neither answer nor error: nothing
// to do yet.
func (s *Service) tryAcquire(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest) (resp *agentv1.AcquireTurnResponse, failed bool, err error) {
	// One agent's trouble keeps a runner from no other (SPEC D5): an agent whose
	// turn cannot be prepared is passed over and tried again later.
	skip := map[key]bool{}
	for {
		o, release, err := s.nextOffer(ctx, actor, req.GetAgentIds(), skip)
		if o == nil || err != nil {
			return nil, len(skip) > 0, err
		}
		resp, err := s.take(ctx, actor, req, o)
		release()
		switch {
		case errors.Is(err, errNotTaken):
		case err == nil, errors.Is(err, errRepeated), ctx.Err() != nil, len(req.GetAgentIds()) == 1:
			return resp, false, err
		default:
			skip[key{actor.Namespace, o.agent.GetAgentId()}] = true
			s.deps.Logger.Warn("a turn could not be prepared; another agent is served", zap.String("agent_id", o.agent.GetAgentId()), zap.Error(err))
		}
	}
}

// nextOffer finds the agent that has been ready longest and reserves it in
// this process, so that runners which ask at once do not all prepare a context
// for the same one.
func (s *Service) nextOffer(ctx context.Context, actor rpc.Actor, agentIDs []string, skip map[key]bool) (*offer, func(), error) {
	for _, p := range s.engine.All() {
		// The look may run twice, and fail after it ran: what it reserved in
		// vain would be kept from every runner until a restart.
		var held *key
		release := func() {
			if held != nil {
				s.unreserve(*held)
				held = nil
			}
		}
		o, _, err := journal.View(ctx, p, func(st *State) (*offer, error) {
			release()
			return st.firstReady(actor.Namespace, agentIDs, func(k key) bool {
				if skip[k] || !s.reserve(k) {
					return false
				}
				held = &k
				return true
			}), nil
		})
		if err != nil {
			release()
			return nil, nil, err
		}
		if o != nil {
			return o, release, nil
		}
	}
	return nil, nil, nil
}

// firstReady is the ready agent of longest standing that reserve accepts.
func (s *State) firstReady(namespace string, agentIDs []string, reserve func(key) bool) *offer {
	accept := func(agentID string) *offer {
		a := s.agents[key{namespace, agentID}]
		if a == nil || !a.takeable() || !reserve(key{namespace, agentID}) {
			return nil
		}
		return &offer{agent: a.rec, message: a.head()}
	}
	if len(agentIDs) > 0 {
		known := make([]*agentState, 0, len(agentIDs))
		for _, agentID := range agentIDs {
			if a := s.agents[key{namespace, agentID}]; a != nil && a.takeable() {
				known = append(known, a)
			}
		}
		slices.SortStableFunc(known, func(x, y *agentState) int { return x.readyAt.Compare(y.readyAt) })
		for _, a := range known {
			if o := accept(a.rec.GetAgentId()); o != nil {
				return o
			}
		}
		return nil
	}
	t := s.ready[namespace]
	if t == nil {
		return nil
	}
	var found *offer
	t.Ascend(func(r readyAgent) bool {
		found = accept(r.id)
		return found == nil
	})
	return found
}

// take prepares the context, then leases the turn in one frame. What the
// runner will be told is fetched first, so that the lease does not run while
// another plane is slow.
func (s *Service) take(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest, o *offer) (*agentv1.AcquireTurnResponse, error) {
	queue, err := s.projection(ctx, actor.Namespace, o)
	if err != nil {
		return nil, err
	}
	if reason := staleTick(o.message, queue, o.agent); reason != "" {
		return nil, s.drop(ctx, actor, o, reason)
	}
	turn := &agentv1.Turn{
		TurnId: s.deps.IDs.New("trn_"), RunId: s.deps.IDs.New("run_"),
		AgentId: o.agent.GetAgentId(), MessageId: o.message.GetMessageId(), RunnerId: req.GetRunnerId(),
		WorkItemId: queue.GetCurrent().GetWorkItemId(), ShownWaits: queue.shown(),
		AcquireRequestId: req.GetRequestId(), AcquiredBy: actor.Principal,
	}
	turn.BoundWorkItemId = turn.GetWorkItemId()
	// From here on the turn may be on disk whatever becomes of the caller, so
	// the outcome is waited for.
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTerm)
	defer cancel()
	started, err := plane.Do(commit, s.engine, plane.Command[*State, *agentv1.TurnStarted]{
		Method: "AcquireTurn", AgentID: o.agent.GetAgentId(),
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.TurnStarted], error) {
			return decideAcquire(st, env, turn)
		},
		Answer: answerAcquire,
	})
	if err != nil {
		return nil, err
	}
	resp, err := s.granted(ctx, actor, started.GetTurn(), o.message, queue)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		// Nobody is there to hear the answer. The message goes back without an
		// attempt counted, so that a flapping runner cannot poison it.
		s.undeliver(context.WithoutCancel(ctx), actor.Namespace, started.GetTurn())
		return nil, fault.From(err)
	}
	return resp, nil
}

func decideAcquire(s *State, env journal.Env, turn *agentv1.Turn) (journal.Decision[*agentv1.TurnStarted], error) {
	var none journal.Decision[*agentv1.TurnStarted]
	a, err := s.agent(env.Actor.Namespace, turn.GetAgentId())
	if err != nil {
		return none, err
	}
	if turn.GetAcquireRequestId() != "" {
		if _, done := s.acquired[acquireOf(env.Actor.Namespace, turn)]; done {
			return none, errRepeated
		}
	}
	if !a.takeable() || a.head().GetMessageId() != turn.GetMessageId() {
		return none, errNotTaken
	}
	t := proto.CloneOf(turn)
	t.State = agentv1.TurnState_TURN_STATE_OPEN
	t.StartedAt = timestamppb.New(env.Now)
	t.LeaseGeneration = a.generation() + 1
	m := moved(a.head(), env, agentv1.MessageState_MESSAGE_STATE_DEQUEUED, "")
	m.Attempts++
	m.TurnId = t.GetTurnId()
	events := []*journal.Event{
		messageEvent(m, &agentv1.MessageDequeued{Message: m}),
		turnEvent(t, &agentv1.TurnStarted{Turn: t}),
	}
	events, _ = a.interject(env, t, m.GetMessageId(), events)
	return journal.Decision[*agentv1.TurnStarted]{Events: events}, nil
}

// generation is that of the newest lease; it only grows (SPEC X12).
func (a *agentState) generation() int64 {
	if n := len(a.turns); n > 0 {
		return a.turns[n-1].rec.GetLeaseGeneration()
	}
	return 0
}

func answerAcquire(events []*journal.Event) (*agentv1.TurnStarted, error) {
	for _, ev := range events {
		if p, ok := ev.Payload.(*agentv1.TurnStarted); ok {
			return p, nil
		}
	}
	return nil, fmt.Errorf("agent: no turn_started among %d events", len(events))
}

func turnEvent(t *agentv1.Turn, payload proto.Message) *journal.Event {
	return &journal.Event{AgentID: t.GetAgentId(), WorkItemID: t.GetBoundWorkItemId(), Payload: payload}
}

// granted is the answer for a turn that is held.
func (s *Service) granted(ctx context.Context, actor rpc.Actor, turn *agentv1.Turn, m *agentv1.Message, queue *projection) (*agentv1.AcquireTurnResponse, error) {
	until := s.leases.arm(key{actor.Namespace, turn.GetAgentId()}, turn.GetRunId())
	view, _, err := plane.View(ctx, s.engine, turn.GetAgentId(), func(st *State) (*agentv1.AcquireTurnResponse, error) {
		ag, err := st.agent(actor.Namespace, turn.GetAgentId())
		if err != nil {
			return nil, err
		}
		resp := &agentv1.AcquireTurnResponse{Agent: ag.rec}
		if t := ag.find(turn.GetTurnId()); t != nil {
			for _, id := range t.rec.GetInterjectedMessageIds() {
				resp.Interjections = append(resp.Interjections, ag.messages[id])
			}
		}
		return resp, nil
	})
	if err != nil {
		return nil, err
	}
	view.Turn = withLease(turn, until)
	view.Message = m
	view.Context = queue.context(m)
	view.Tools = toolNames()
	view.RunToken = s.deps.MintRun(actor.Namespace, turn.GetAgentId(), turn.GetRunId())
	return view, nil
}

func withLease(t *agentv1.Turn, until time.Time) *agentv1.Turn {
	t = proto.CloneOf(t)
	t.LeaseExpiresAt = timestamppb.New(until)
	return t
}

// reused says whether a request that got a turn could not have got this one.
func reused(req *agentv1.AcquireTurnRequest, t *agentv1.Turn) bool {
	return req.GetRunnerId() != t.GetRunnerId() ||
		len(req.GetAgentIds()) > 0 && !slices.Contains(req.GetAgentIds(), t.GetAgentId())
}

// repeatedAcquire answers a request id that got a turn before: the answer may
// have been lost on the way (SPEC X2). Of a turn that has ended it answers the
// record alone.
func (s *Service) repeatedAcquire(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest) (*agentv1.AcquireTurnResponse, error) {
	type found struct {
		offer
		turn *agentv1.Turn
	}
	for _, p := range s.engine.All() {
		f, _, err := journal.View(ctx, p, func(st *State) (*found, error) {
			at, ok := st.acquired[acquireKey{actor.Namespace, actor.Principal, req.GetRequestId()}]
			if !ok {
				return nil, nil
			}
			a := st.agents[key{actor.Namespace, at.agentID}]
			t := a.find(at.turnID)
			return &found{offer{a.rec, a.messages[t.rec.GetMessageId()]}, t.rec}, nil
		})
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		if reused(req, f.turn) {
			return nil, fault.RequestIDReused.Newf("request_id %q acquired a turn of agent %q for runner %q before", req.GetRequestId(), f.turn.GetAgentId(), f.turn.GetRunnerId()).
				With("request_id", req.GetRequestId())
		}
		rpc.Replayed(ctx)
		if f.turn.GetState() != agentv1.TurnState_TURN_STATE_OPEN {
			return &agentv1.AcquireTurnResponse{Turn: f.turn, Message: f.message, Agent: f.agent}, nil
		}
		queue, err := s.projection(ctx, actor.Namespace, &f.offer)
		if err != nil {
			return nil, err
		}
		return s.granted(ctx, actor, f.turn, f.message, queue)
	}
	return nil, nil
}
