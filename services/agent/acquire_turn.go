package agent

import (
	"context"
	"errors"
	"fmt"
	"quartet/services/agent/lane"
	"quartet/services/agent/ref"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"

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
	// prepareTerm bounds how long a runner is held up by an agent whose context
	// cannot be read. It is longer than settleTerm, which is no failure.
	prepareTerm = 5 * time.Second
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
	var granted <-chan struct{} // to the same request, whichever call of it
	if req.GetRequestId() != "" {
		var forget func()
		granted, forget = s.asking.add(ref.Request{Namespace: actor.Namespace, Principal: actor.Principal, RequestID: req.GetRequestId()})
		defer forget()
		if resp, err := s.repeatedAcquire(ctx, actor, req); resp != nil || err != nil {
			return resp, err
		}
	}
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	// A runner that was woken for one agent may take another one's turn: whom it
	// was woken for is passed on.
	passOn := map[string]bool{actor.Namespace: true}
	for {
		w := s.waiters.add(actor.Namespace, req.GetAgentIds(), req.GetAllNamespaces(), choiceOf(req))
		resp, err := s.tryAcquire(ctx, actor, req)
		if errors.Is(err, errRepeated) {
			resp, err = s.repeatedAcquire(ctx, actor, req)
		}
		if resp != nil || err != nil {
			s.waiters.remove(w)
			if resp != nil {
				passOn[resp.GetNamespace()] = true
			}
			for namespace := range passOn {
				s.wakeNext(ctx, namespace)
			}
			return resp, err
		}
		select {
		case k := <-w.woken:
			passOn[k.Namespace] = true
		case <-granted:
			if resp, err := s.repeatedAcquire(ctx, actor, req); resp != nil || err != nil {
				s.waiters.remove(w)
				return resp, err
			}
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
	if req.GetAllNamespaces() {
		if actor.Role != rpc.RoleAdmin && actor.Role != rpc.RoleService {
			return 0, fault.PermissionDenied.Newf("role %s serves its own namespace; all_namespaces takes admin or service", actor.Role)
		}
		if len(req.GetAgentIds()) > 0 {
			return 0, fault.Invalid("agent_ids", req.GetAgentIds()[0], "must be empty with all_namespaces: agents of several namespaces may have one name")
		}
	}
	if err := admitChoice(req); err != nil {
		return 0, err
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
	key     key
	since   time.Time // ready since
	agent   *agentv1.Agent
	message *agentv1.Message
	woken   *agentv1.AgentWoken // what woke the agent itself
	fresh   bool                // its turn has a trace of its own
}

// tryAcquire takes one turn if there is one. Neither answer nor error: nothing
// to do yet. One agent's trouble keeps a runner from no other (SPEC D5): an
// agent whose turn cannot be prepared is passed over for a while by every
// runner; only who asks for it alone is told why.
func (s *Service) tryAcquire(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest) (*agentv1.AcquireTurnResponse, error) {
	alone := len(req.GetAgentIds()) == 1
	for {
		o, done, err := s.nextOffer(ctx, actor, req)
		if o == nil || err != nil {
			return nil, err
		}
		began := s.deps.Clock.Now()
		resp, err := s.take(ctx, actor, req, o)
		switch {
		case err == nil:
			s.ailing.taken(o.key)
		case errors.Is(err, errNotTaken), errors.Is(err, errRepeated), ctx.Err() != nil, alone:
		default:
			s.ailing.failed(o.key, s.deps.Clock.Now().Sub(began))
			s.deps.Logger.With(tracing.FieldsOf(o.message.GetTraceparent())...).Warn("a turn could not be prepared; other agents are served", zap.String("namespace", o.key.Namespace), zap.String("agent_id", o.key.ID), zap.Error(err))
			err = errNotTaken
		}
		done(resp != nil)
		if !errors.Is(err, errNotTaken) {
			return resp, err
		}
	}
}

// nextOffer finds the agent that has been ready longest and reserves it in
// this process, so that runners which ask at once do not all prepare a context
// for the same one. A shared runner serves the namespace whose turn it is
// (SPEC D7). done gives the agent free, and says whether its turn was taken.
func (s *Service) nextOffer(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest) (o *offer, done func(taken bool), err error) {
	for {
		namespace, mark := actor.Namespace, uint64(0)
		if req.GetAllNamespaces() {
			var ok bool
			if namespace, mark, ok = s.shares.next(); !ok {
				return nil, nil, nil
			}
		}
		o, err := s.oldest(ctx, namespace, req)
		switch {
		case err != nil:
			return nil, nil, err
		case o == nil && !req.GetAllNamespaces():
			return nil, nil, nil
		case o == nil:
			s.shares.leave(namespace, mark)
			continue
		case !s.reserve(o.key):
			continue // another runner was quicker
		}
		if req.GetAllNamespaces() {
			s.shares.charge(namespace)
		}
		return o, func(taken bool) {
			s.unreserve(o.key)
			if req.GetAllNamespaces() && !taken {
				s.shares.refund(namespace)
			}
			// While it was reserved, nobody could see that it is ready.
			s.shares.touch(namespace)
		}, nil
	}
}

// oldest is the ready agent of longest standing that no other runner of this
// process is about to take, over all partitions.
func (s *Service) oldest(ctx context.Context, namespace string, req *agentv1.AcquireTurnRequest) (*offer, error) {
	agentIDs, wanted := req.GetAgentIds(), choiceOf(req)
	alone := len(agentIDs) == 1
	var first *offer
	for _, p := range s.engine.All() {
		// Whose message is still being written may be taken: see take.
		o, _, err := journal.View(journal.Ahead(ctx, p), p, func(st *State) (*offer, error) {
			return st.firstReady(namespace, agentIDs, func(k key) bool {
				return !s.reserved(k) && (alone || !s.ailing.passed(k)) && wanted.admits(st.lookup(k).rec)
			}), nil
		})
		if err != nil {
			return nil, err
		}
		if o != nil && (first == nil || o.since.Before(first.since)) {
			first = o
		}
	}
	return first, nil
}

// firstReady is the ready agent of longest standing that accept lets pass.
func (s *State) firstReady(namespace string, agentIDs []string, accept func(key) bool) *offer {
	try := func(a *agentState) *offer {
		if a == nil || !a.takeable() || !accept(ref.Agent{Namespace: namespace, ID: a.rec.GetAgentId()}) {
			return nil
		}
		return &offer{key: ref.Agent{Namespace: namespace, ID: a.rec.GetAgentId()}, since: a.readyAt, agent: a.rec, message: a.lane.Head(), woken: a.woken, fresh: a.tracedBefore(a.lane.Head())}
	}
	var found *offer
	if len(agentIDs) > 0 {
		for _, agentID := range agentIDs {
			if o := try(s.lookup(ref.Agent{Namespace: namespace, ID: agentID})); o != nil && (found == nil || o.since.Before(found.since)) {
				found = o
			}
		}
		return found
	}
	if t := s.ready[namespace]; t != nil {
		t.Ascend(func(r readyAgent) bool {
			found = try(s.lookup(ref.Agent{Namespace: namespace, ID: r.id}))
			return found == nil
		})
	}
	return found
}

// take prepares the context, then leases the turn in one frame. What the
// runner will be told is fetched first, so that the lease does not run while
// another plane is slow.
func (s *Service) take(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest, o *offer) (*agentv1.AcquireTurnResponse, error) {
	if o.key.Namespace != actor.Namespace {
		own := actor
		own.Namespace = o.key.Namespace
		ctx = rpc.WithActor(ctx, own)
	}
	// Nothing of this is told before the turn's frame is on disk, which comes behind
	// those that are being written now.
	queue, err := s.prepare(journal.Ahead(ctx, s.engine.For(o.key.Namespace, o.key.ID)), o)
	if err != nil {
		return nil, err
	}
	if reason := staleTick(o.message, queue, o.agent); reason != "" {
		return nil, s.drop(ctx, o, reason)
	}
	turnID := s.deps.IDs.New("trn_")
	turn := &agentv1.Turn{
		TurnId: turnID, RunId: id.RunOf(turnID),
		AgentId: o.agent.GetAgentId(), MessageId: o.message.GetMessageId(), RunnerId: req.GetRunnerId(),
		WorkItemId: queue.GetCurrent().GetWorkItemId(), ShownWaits: queue.shown(),
		AcquireRequestId: req.GetRequestId(), AcquiredBy: actor.Principal,
		Traceparent: s.deps.Tracer.Reserve(o.message.GetTraceparent(), o.fresh),
	}
	turn.BoundWorkItemId = turn.GetWorkItemId()
	if o.key.Namespace != actor.Namespace {
		turn.AcquiredFrom = actor.Namespace
	}
	shown := queue.context(o.message)
	defer s.handovers.begin(turn.GetRunId())()
	// From here on the turn may be on disk whatever becomes of the caller, so
	// the outcome is waited for.
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.commitTerm)
	defer cancel()
	started, err := plane.Do(tracing.Continue(commit, turn.GetTraceparent()), s.engine, plane.Command[*State, *agentv1.TurnStarted]{
		Method: "AcquireTurn", AgentID: o.agent.GetAgentId(), Sequel: true,
		Decide: func(st *State, env journal.Env) (journal.Decision[*agentv1.TurnStarted], error) {
			if a := st.lookup(o.key); a != nil && a.woken != o.woken {
				// It was woken since its context was read, which does not show why.
				return journal.Decision[*agentv1.TurnStarted]{}, errNotTaken
			}
			return decideAcquire(st, env, turn)
		},
		Answer: answerAcquire,
	})
	if err != nil {
		if fault.From(err).Code() == codes.Unavailable {
			s.handovers.unheard(turn.GetRunId()) // it may land yet
		}
		return nil, err
	}
	resp, err := s.granted(ctx, o.key.Namespace, started.GetTurn(), o.message, shown)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		// Nobody is there to hear the answer, unless the same request was sent
		// again and got it. The message goes back without an attempt counted, so
		// that a flapping runner cannot poison it.
		if s.handovers.giveBack(turn.GetRunId()) {
			s.undeliver(context.WithoutCancel(ctx), o.key.Namespace, started.GetTurn())
		}
		return nil, fault.From(err)
	}
	return resp, nil
}

// prepare reads what the turn will show, within its term.
func (s *Service) prepare(ctx context.Context, o *offer) (*projection, error) {
	ctx, cancel := context.WithTimeout(ctx, s.prepareTerm)
	defer cancel()
	return s.projection(ctx, o.key.Namespace, o)
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
	if !a.takeable() || a.lane.Head().GetMessageId() != turn.GetMessageId() {
		return none, errNotTaken
	}
	t := proto.CloneOf(turn)
	t.State = agentv1.TurnState_TURN_STATE_OPEN
	t.StartedAt = timestamppb.New(env.Now)
	t.LeaseGeneration = a.generation() + 1
	m := lane.WithState(a.lane.Head(), env, agentv1.MessageState_MESSAGE_STATE_DEQUEUED, "")
	m.Attempts++
	m.TurnId = t.GetTurnId()
	events := []*journal.Event{
		lane.Event(m, &agentv1.MessageDequeued{Message: m}),
		turnEvent(t, &agentv1.TurnStarted{Turn: t}),
	}
	events, _ = a.interject(env, t, m.GetMessageId(), events)
	events = append(events, a.acknowledged(env, t, m)...)
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
func (s *Service) granted(ctx context.Context, namespace string, turn *agentv1.Turn, m *agentv1.Message, shown *agentv1.ContextProjection) (*agentv1.AcquireTurnResponse, error) {
	until := s.leases.arm(ref.Agent{Namespace: namespace, ID: turn.GetAgentId()}, turn.GetRunId())
	view, _, err := plane.View(ctx, s.engine, turn.GetAgentId(), func(st *State) (*agentv1.AcquireTurnResponse, error) {
		ag, err := st.agent(namespace, turn.GetAgentId())
		if err != nil {
			return nil, err
		}
		resp := &agentv1.AcquireTurnResponse{Agent: ag.rec, Namespace: namespace}
		if t := ag.find(turn.GetTurnId()); t != nil {
			for _, id := range t.rec.GetInterjectedMessageIds() {
				resp.Interjections = append(resp.Interjections, ag.lane.Get(id))
			}
		}
		return resp, nil
	})
	if err != nil {
		return nil, err
	}
	view.Turn = withLease(turn, until)
	view.Message = m
	view.Context = shown
	view.Tools = profile(view.GetAgent().GetToolFamilies()).names()
	view.RunToken = s.deps.MintRun(namespace, turn.GetAgentId(), turn.GetRunId())
	return view, nil
}

func withLease(t *agentv1.Turn, until time.Time) *agentv1.Turn {
	t = proto.CloneOf(t)
	t.LeaseExpiresAt = timestamppb.New(until)
	return t
}

// reused says whether a request that got a turn could not have got this one.
func reused(req *agentv1.AcquireTurnRequest, t *agentv1.Turn) bool {
	return req.GetRunnerId() != t.GetRunnerId() || t.GetAcquiredFrom() != "" && !req.GetAllNamespaces() ||
		len(req.GetAgentIds()) > 0 && !slices.Contains(req.GetAgentIds(), t.GetAgentId())
}

// repeatedAcquire answers a request id that got a turn before: the answer may
// have been lost on the way (SPEC X2). Of a turn that has ended it answers the
// record alone. A turn that was given back unheard answers nothing: the request
// waits for the next one.
func (s *Service) repeatedAcquire(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest) (*agentv1.AcquireTurnResponse, error) {
	type found struct {
		offer
		turn *agentv1.Turn
	}
	for _, p := range s.engine.All() {
		f, _, err := journal.View(ctx, p, func(st *State) (*found, error) {
			at, ok := st.acquired[ref.Request{Namespace: actor.Namespace, Principal: actor.Principal, RequestID: req.GetRequestId()}]
			if !ok {
				return nil, nil
			}
			a := st.lookup(at.agent)
			t := a.find(at.turnID)
			return &found{offer{key: at.agent, agent: a.rec, message: a.lane.Get(t.rec.GetMessageId())}, t.rec}, nil
		})
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		if reused(req, f.turn) || !choiceOf(req).admits(f.agent) {
			return nil, fault.RequestIDReused.Newf("request_id %q acquired a turn of agent %q for runner %q before", req.GetRequestId(), f.turn.GetAgentId(), f.turn.GetRunnerId()).
				With("request_id", req.GetRequestId())
		}
		if !s.handovers.repeat(f.turn.GetRunId()) {
			return nil, nil
		}
		s.handovers.heard(f.turn.GetRunId())
		rpc.Replayed(ctx)
		if f.turn.GetState() != agentv1.TurnState_TURN_STATE_OPEN {
			return &agentv1.AcquireTurnResponse{Turn: f.turn, Message: f.message, Agent: f.agent, Namespace: f.key.Namespace}, nil
		}
		queue, err := s.prepare(ctx, &f.offer)
		if err != nil {
			return nil, err
		}
		own := actor
		own.Namespace = f.key.Namespace
		return s.granted(rpc.WithActor(ctx, own), f.key.Namespace, f.turn, f.message, queue.context(f.message))
	}
	return nil, nil
}
