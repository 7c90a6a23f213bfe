package turns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/tracing"
	"quartet/services/agent/lane"
	"quartet/services/agent/projection"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
)

// defaultWait is how long AcquireTurn waits if the request does not say, and maxWait the longest
// wait that a request may ask for: most clients and proxies give up after 60 s (SPEC X13).
const defaultWait = 30 * time.Second

const maxWait = 55 * time.Second

// commitTimeout bounds the wait until a turn's first frame is stored, and until one is given back whose response could
// not be delivered. A turn for which that took longer is given back by its lease.
const commitTimeout = 20 * time.Second

// retryHint is the pause after which a runner that got no turn should ask again.
const retryHint = 100 * time.Millisecond

// prepareTimeout bounds how long an agent whose context cannot be read delays a runner.
const prepareTimeout = 5 * time.Second

// ErrNotTaken means that the turn was not taken and the caller should look for another one: another
// runner took it, its message is no longer true, or its context could not be prepared. errRepeated
// means that the same request got a turn meanwhile.
var (
	ErrNotTaken = errors.New("agent: the turn was not taken")
	errRepeated = errors.New("agent: the request got a turn already")
)

// AcquireTurn waits for an agent with a message and leases its turn (SPEC A6). If there is none
// within the time that the request waits, the response is pending. A repeated request gets the turn
// that the first one got.
func (s *Service) AcquireTurn(ctx context.Context, req *agentv1.AcquireTurnRequest) (*agentv1.AcquireTurnResponse,
	error,
) {
	actor := rpc.ActorFrom(ctx)
	wait, err := admitAcquire(actor, req)
	if err != nil {
		return nil, err
	}

	var granted <-chan struct{} // signals a turn that any call of the same request got
	if req.GetRequestId() != "" {
		sub := s.deps.Granted.Subscribe(requestOf(actor, req))
		defer sub.Close()
		granted = sub.C()
		if resp, err := s.repeatedAcquire(ctx, actor, req); resp != nil || err != nil {
			return resp, err
		}
	}
	deadline := s.deps.WaitClock.TimerAt(s.deps.WaitClock.Now().Add(wait))
	defer deadline.Stop()

	// A runner that was woken for one agent may take another one's turn. Then it wakes another runner for that agent.
	wakeOthers := map[string]bool{actor.Namespace: true} // namespaces
	timedOut := false
	for {
		// Become a waiter before looking for a turn, so that no agent that becomes ready meanwhile is missed.
		if s.deps.Arrive != nil {
			s.deps.Arrive(ctx, "wait for a turn", "", req.GetRequestId())
		}
		waiter := s.deps.Waiters.Add(actor.Namespace, req.GetAgentIds(), req.GetAllNamespaces(),
			runners.SelectionOf(req))
		resp, err := s.tryAcquire(ctx, actor, req)
		if errors.Is(err, errRepeated) {
			resp, err = s.repeatedAcquire(ctx, actor, req)
		}
		if resp != nil || err != nil {
			s.deps.Waiters.Remove(waiter)
			if resp != nil {
				wakeOthers[resp.GetNamespace()] = true
			}
			for namespace := range wakeOthers {
				s.wakeNext(ctx, namespace)
			}
			return resp, err
		}

		// Wait until there is a reason to look again.
		news, err := s.await(ctx, waiter.Woken, granted, deadline.C(), timedOut)
		s.deps.Waiters.Remove(waiter)
		if err != nil {
			return nil, err
		}
		for _, k := range news.ready {
			wakeOthers[k.Namespace] = true
		}
		if news.granted {
			if resp, err := s.repeatedAcquire(ctx, actor, req); resp != nil || err != nil {
				return resp, err
			}
		}

		// Who was woken looks once more, also if the time is over.
		timedOut = news.timedOut
		if timedOut && len(news.ready) == 0 {
			return &agentv1.AcquireTurnResponse{Pending: true, PollAfter: durationpb.New(retryHint)}, nil
		}
	}
}

// news is what happened while an AcquireTurn waited.
type news struct {
	ready    []plane.Key // agents for which it was woken
	granted  bool        // another call of the same request got a turn
	timedOut bool
}

// await waits until one of the channels has something, and returns an error if ctx or the service ends first. It does
// not wait if timedOut says that the deadline has passed already.
func (s *Service) await(ctx context.Context, woken <-chan plane.Key, granted <-chan struct{},
	deadline <-chan time.Time, timedOut bool,
) (news, error) {
	n := news{timedOut: timedOut}
	if !timedOut {
		select {
		case k := <-woken:
			n.ready = append(n.ready, k)
		case <-granted:
			n.granted = true
		case <-deadline:
			n.timedOut = true
		case <-ctx.Done():
			return n, fault.From(ctx.Err())
		case <-s.deps.Stopping:
			return n, fault.NotReady.New("the service is stopping; ask another instance or again")
		}
	}

	// select chooses at random among ready channels, so read the others too: the result must not depend on the choice.
	select {
	case k := <-woken:
		n.ready = append(n.ready, k)
	default:
	}
	select {
	case <-granted:
		n.granted = true
	default:
	}
	select {
	case <-deadline:
		n.timedOut = true
	default:
	}
	return n, nil
}

// admitAcquire validates a request, and checks that the actor may make it. It returns how long the request waits.
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

	// A runner of all namespaces belongs to the installation.
	if req.GetAllNamespaces() {
		if !actor.HasAny(rpc.RoleInstallationAdmin, rpc.RoleService) {
			return 0, fault.PermissionDenied.Newf("role %s serves its own namespace; all_namespaces takes "+
				"installation_admin or service", actor.Role)
		}
		if len(req.GetAgentIds()) > 0 {
			return 0, fault.Invalid("agent_ids", req.GetAgentIds()[0],
				"must be empty with all_namespaces: agents of several namespaces may have one name")
		}
	}
	if err := runners.ValidateSelection(req); err != nil {
		return 0, err
	}
	if actor.Role == rpc.RoleAgent && len(req.GetAgentIds()) == 0 {
		return 0, fault.Invalid("agent_ids", "", "must name the agent of the credential")
	}

	wait := defaultWait
	if req.GetWait() != nil {
		wait = req.GetWait().AsDuration()
		if !req.GetWait().IsValid() || wait < 0 || wait > maxWait {
			return 0, fault.LimitExceeded.Newf("wait is %s; it must be 0 s to %s", wait, maxWait).
				WithField("wait", "must be 0 s to 55 s")
		}
	}
	return wait, nil
}

// tryAcquire takes one turn if there is one; it returns nil without an error if there is
// none. An agent whose turn cannot be prepared is skipped by every runner for a while, so
// that it delays no other agent (SPEC D5); only a request for that agent alone gets the
// error.
func (s *Service) tryAcquire(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest) (
	*agentv1.AcquireTurnResponse, error,
) {
	oneAgent := len(req.GetAgentIds()) == 1
	for {
		o, done, err := s.NextCandidate(ctx, actor, req)
		if o == nil || err != nil {
			return nil, err
		}
		began := s.deps.Clock.Now()
		resp, err := s.take(ctx, actor, req, o)

		// Skip the agent for a while if its turn cannot be prepared. A request for it alone gets the error instead.
		switch {
		case err == nil:
			s.deps.Backoff.Succeeded(o.Agent)
		case errors.Is(err, ErrNotTaken), errors.Is(err, errRepeated), ctx.Err() != nil, oneAgent:
		default:
			s.deps.Backoff.Failed(o.Agent, s.deps.Clock.Now().Sub(began))
			s.deps.Logger.With(tracing.FieldsOf(o.Message.GetTraceparent())...).
				Warn("a turn could not be prepared; other agents are served",
					zap.String("namespace", o.Agent.Namespace), zap.String("agent_id", o.Agent.ID), zap.Error(err))
			err = ErrNotTaken
		}

		done(resp != nil)
		if !errors.Is(err, ErrNotTaken) {
			return resp, err
		}
	}
}

// take prepares the context, then leases the turn in one frame. The context is read
// first, so that the lease does not run while another plane is slow. It returns ErrNotTaken if the
// caller should look for another turn. If the runner has left when the turn is stored, take gives it back.
func (s *Service) take(ctx context.Context, actor rpc.Actor, req *agentv1.AcquireTurnRequest, o *state.Candidate) (
	*agentv1.AcquireTurnResponse, error,
) {
	if o.Agent.Namespace != actor.Namespace {
		ofAgent := actor // as which the shared runner acts in the agent's namespace
		ofAgent.Namespace = o.Agent.Namespace
		ctx = rpc.WithActor(ctx, ofAgent)
	}

	// Read what the turn shows, also what is not durable yet: nothing of this is returned before the turn's frame is on
	// disk, and that follows the frames that are being written now. Drop a message that is no longer true.
	ahead := journal.Ahead(ctx, s.engine.For(o.Agent.Namespace, o.Agent.ID))
	answered, err := s.overQuestion(ahead, o)
	if err != nil {
		return nil, err
	}
	if answered != "" {
		return nil, s.DropStale(ctx, o, answered)
	}
	queue, err := s.prepare(ahead, o)
	if err != nil {
		return nil, err
	}
	if stale := projection.StaleTick(o.Message, queue, o.Record); stale != "" {
		return nil, s.DropStale(ctx, o, stale)
	}

	// Make the turn.
	turnID := s.deps.IDs.New("trn_")
	turn := &agentv1.Turn{
		TurnId: turnID, RunId: id.RunOf(turnID),
		AgentId: o.Record.GetAgentId(), MessageId: o.Message.GetMessageId(), RunnerId: req.GetRunnerId(),
		ShownWaits:       queue.ShownWaits(),
		AcquireRequestId: req.GetRequestId(), AcquiredBy: actor.Principal,
		Traceparent: s.deps.Tracer.Reserve(o.Message.GetTraceparent(), o.NewTrace),
	}
	if actor.Role != rpc.RoleAgent { // all keys of an agent are one caller (journal.Actor.Caller)
		turn.AcquiredByKeyId = actor.KeyID
	}
	item, binding := queue.Item()
	turn.WorkItemId, turn.BoundWorkItemId, turn.Binding = item.GetWorkItemId(), item.GetWorkItemId(), binding
	if o.Agent.Namespace != actor.Namespace {
		turn.AcquiredFrom = actor.Namespace
	}
	shown := queue.Render(o.Message)
	endDelivery := s.deps.Deliveries.Begin(turn.GetRunId())
	defer endDelivery()

	// Store it. From here on it may be stored even if the caller cancels the call, so wait for the outcome.
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.deps.CommitTimeout)
	defer cancel()
	started, err := plane.Do(tracing.Continue(commit, turn.GetTraceparent()), s.engine,
		plane.Command[*state.State, *agentv1.TurnStarted]{
			Method: "AcquireTurn", AgentID: o.Record.GetAgentId(),
			FollowUp: true, // the frame that made the agent ready may wait for it (Service.applied)
			Decide: func(st *state.State, env journal.Env) (journal.Decision[*agentv1.TurnStarted], error) {
				a := st.Lookup(o.Agent)
				if a != nil && a.Wake != o.Wake {
					// The agent was woken after its context was read, which does not show why.
					return journal.Decision[*agentv1.TurnStarted]{}, ErrNotTaken
				}
				return DecideAcquire(st, env, turn)
			},
			Answer: answerAcquire,
		})
	if err != nil {
		if fault.From(err).Code() == codes.Unavailable {
			s.deps.Deliveries.MarkUndelivered(turn.GetRunId()) // the frame may still be stored
		}
		return nil, err
	}

	// Respond. If the caller has left, nobody receives the response, unless the same request was repeated and got it.
	// The attempt is not counted, so that a runner that keeps reconnecting cannot quarantine the message.
	resp, err := s.response(ctx, o.Agent.Namespace, started.GetTurn(), o.Message, shown)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if s.deps.Deliveries.Abandon(turn.GetRunId()) {
			s.giveUp(context.WithoutCancel(ctx), o.Agent.Namespace, started.GetTurn())
		}
		return nil, fault.From(err)
	}
	return resp, nil
}

// prepare reads the projection that the turn will show.
func (s *Service) prepare(ctx context.Context, o *state.Candidate) (*projection.Projection, error) {
	ctx, cancel := context.WithTimeout(ctx, s.deps.PrepareTimeout)
	defer cancel()
	return s.deps.Projections.Read(ctx, o)
}

// overQuestion returns why the question of a child is no longer open, "" if it is or the
// message is none.
func (s *Service) overQuestion(ctx context.Context, o *state.Candidate) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.deps.PrepareTimeout)
	defer cancel()
	return s.deps.Projections.OverQuestion(ctx, o.Agent, o.Message)
}

// DecideAcquire is the rule of AcquireTurn: it starts a turn with the first message of its
// agent. It returns ErrNotTaken if the agent cannot take one or its first message is another one
// by now, and errRepeated if the same request has acquired a turn.
func DecideAcquire(s *state.State, env journal.Env, turn *agentv1.Turn) (journal.Decision[*agentv1.TurnStarted],
	error,
) {
	var none journal.Decision[*agentv1.TurnStarted]
	a, err := s.Find(env.Actor.Namespace, turn.GetAgentId())
	if err != nil {
		return none, err
	}
	if turn.GetAcquireRequestId() != "" {
		_, acquired := s.AcquiredTurns[state.RequestOf(env.Actor.Namespace, turn)]
		if acquired {
			return none, errRepeated
		}
	}
	if !a.CanTakeTurn() || a.Lane.Head().GetMessageId() != turn.GetMessageId() {
		return none, ErrNotTaken
	}

	// Lease the turn.
	t := proto.CloneOf(turn)
	t.State = agentv1.TurnState_TURN_STATE_OPEN
	t.StartedAt = timestamppb.New(env.Now)
	t.LeaseGeneration = a.LeaseGeneration() + 1

	// Take the message, with those that interject, and acknowledge the brief.
	m := lane.WithState(a.Lane.Head(), env, agentv1.MessageState_MESSAGE_STATE_DEQUEUED, "")
	m.Attempts++
	m.TurnId = t.GetTurnId()
	events := []*journal.Event{
		lane.Event(m, &agentv1.MessageDequeued{Message: m}),
		state.TurnEvent(t, &agentv1.TurnStarted{Turn: t}),
	}
	events, _ = a.Interject(env, t, m.GetMessageId(), events)
	events = append(events, a.AckBrief(env, t, m)...)
	return journal.Decision[*agentv1.TurnStarted]{Events: events}, nil
}

var answerAcquire = journal.AnswerOf(func(p *agentv1.TurnStarted) *agentv1.TurnStarted { return p })
