package agent

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
	"quartet/services/agent/turns"
)

func TestA6_AcquireGivesEverythingARunnerNeeds(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
		return &workv1.GetWorkQueueResponse{
			AgentId: "keeper", Revision: 7, Counts: &workv1.WorkQueueCounts{Open: 2},
			Current: &workv1.WorkItem{WorkItemId: "wi_1", Objective: "ship it", Waits: []*workv1.AttachedWait{
				{WaitId: "wt_1", TriggerCount: 3, ConsumedCount: 1},
			}},
			TriggeredBlocked: []*workv1.WorkItem{
				{WorkItemId: "wi_2", Objective: "review it", Waits: []*workv1.AttachedWait{
					{WaitId: "wt_2", TriggerCount: 1}, {WaitId: "wt_3", TriggerCount: 1, ConsumedCount: 1},
				}},
			},
		}, nil
	}
	messageID := r.send("keeper", "hello", normal)
	a := r.take("keeper")
	require.Equal(t, messageID, a.GetMessage().GetMessageId())
	require.Equal(t, "keeper", a.GetAgent().GetAgentId())
	require.Equal(t, a.GetTurn().GetRunId(), a.GetAgent().GetCurrentRunId())
	require.Equal(t, "token/acme/keeper/"+a.GetTurn().GetRunId(), a.GetRunToken())
	require.Equal(t, "wi_1", a.GetTurn().GetBoundWorkItemId())
	require.Equal(t, epoch.Add(30*time.Second), a.GetTurn().GetLeaseExpiresAt().AsTime())
	require.EqualValues(t, 1, a.GetTurn().GetLeaseGeneration())
	require.Len(t, a.GetContext().GetShownWaits(), 2, "what was not consumed yet")
	require.EqualValues(t, 7, a.GetContext().GetWorkRevision())
	for _, part := range []string{"hello", "operator_instruction", "ship it", "review it"} {
		require.Contains(t, a.GetContext().GetText(), part)
	}
	require.Contains(t, a.GetTools(), "CreateWorkItem")
	require.Equal(t, []string{"agent_spawned", "message_queued", "message_dequeued", "turn_started", "brief_written"},
		planetest.Types(r.events()))
	require.True(t, r.poll("keeper").GetPending(), "one open run per agent")

	r.finish(a, done)
	r.send("keeper", "again", normal)
	require.EqualValues(t, 2, r.take("keeper").GetTurn().GetLeaseGeneration(), "a generation only grows (SPEC X12)")
}

func TestX13_NothingToDoIsPendingAtOnce(t *testing.T) {
	r := newRig(t)
	resp := r.poll()
	require.True(t, resp.GetPending())
	require.Positive(t, resp.GetPollAfter().AsDuration())
	for _, wait := range []*durationpb.Duration{
		durationpb.New(-1), durationpb.New(56 * time.Second),
		{Seconds: 1, Nanos: -1},
	} {
		must.Refuse(r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{Wait: wait}))(t, fault.LimitExceeded)
	}
}

func TestX15_WhoMayAcquire(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.spawn("other")
	r.send("other", "x", normal)
	wait := durationpb.New(0)
	// An agent's credential is for its own turns.
	own := planetest.AsAgent(t.Context(), "keeper")
	must.Refuse(r.service.AcquireTurn(own, &agentv1.AcquireTurnRequest{Wait: wait}))(t, fault.InvalidArgument)
	_, err := r.service.AcquireTurn(own, &agentv1.AcquireTurnRequest{Wait: wait, AgentIds: []string{"other"}})
	require.ErrorIs(t, err, fault.PermissionDenied)
	resp, err := r.service.AcquireTurn(own, &agentv1.AcquireTurnRequest{Wait: wait, AgentIds: []string{"keeper"}})
	require.NoError(t, err)
	require.True(t, resp.GetPending())
	// Another tenant's runner finds nothing.
	ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: "umbrella", Principal: "runner", Role: rpc.RoleRunner})
	resp = must.Value(r.service.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{Wait: wait}))(t)
	require.True(t, resp.GetPending())
}

func TestD7_TheAgentThatWaitedLongestIsFirst(t *testing.T) {
	r := newRig(t)
	for _, agentID := range []string{"a", "b", "c"} {
		r.spawn(agentID)
	}
	for _, agentID := range []string{"c", "a", "b"} {
		r.clk.Advance(time.Second)
		r.send(agentID, "x", normal)
	}
	r.send("c", "more", interject)
	var order []string
	for range 3 {
		order = append(order, r.take().GetTurn().GetAgentId())
	}
	require.Equal(t, []string{"c", "a", "b"}, order)

	// The same among the agents that a runner names, and after a restart.
	r2 := newRig(t)
	for _, agentID := range []string{"a", "b", "c"} {
		r2.spawn(agentID)
	}
	for _, agentID := range []string{"c", "b", "a"} {
		r2.clk.Advance(time.Second)
		r2.send(agentID, "x", normal)
	}
	r2.restart()
	require.Equal(t, "b", r2.take("a", "b", "nobody").GetTurn().GetAgentId())
	require.Equal(t, "c", r2.take().GetTurn().GetAgentId())
}

func TestA6_ManyRunnersOneTurn(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	var wg sync.WaitGroup
	var mu sync.Mutex
	turns := map[string]int{}
	for i := range 8 {
		wg.Go(func() {
			resp, err := r.service.AcquireTurn(planetest.As(context.Background(), rpc.RoleRunner),
				&agentv1.AcquireTurnRequest{
					RunnerId: fmt.Sprint("runner-", i), Wait: durationpb.New(300 * time.Millisecond),
				})
			if err == nil && resp.GetTurn() != nil {
				mu.Lock()
				turns[resp.GetTurn().GetTurnId()]++
				mu.Unlock()
			}
		})
	}
	r.send("keeper", "x", normal)
	wg.Wait()
	require.Len(t, turns, 1)
	for _, n := range turns {
		require.Equal(t, 1, n)
	}
}

// A runner that is woken finds the turn at once, long before its own deadline.
func TestX13_AWaitingRunnerIsWoken(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	got := make(chan *agentv1.AcquireTurnResponse, 1)
	go func() {
		resp, _ := r.service.AcquireTurn(planetest.As(context.Background(), rpc.RoleRunner),
			&agentv1.AcquireTurnRequest{Wait: durationpb.New(50 * time.Second)})
		got <- resp
	}()
	r.eventually(func() bool {
		return r.service.waiters.Count(plane.Key{Namespace: "acme", ID: "keeper"}, nil) == 1
	})
	r.send("keeper", "x", normal)
	select {
	case resp := <-got:
		require.NotNil(t, resp.GetTurn())
	case <-time.After(40 * time.Second):
		require.FailNow(t, "not woken")
	}
}

func TestX2_ARepeatedAcquireIsTheSameTurn(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.spawn("other")
	r.send("keeper", "x", normal)
	r.clk.Advance(time.Second)
	r.send("other", "y", normal)
	req := &agentv1.AcquireTurnRequest{RequestId: "r1", RunnerId: "me", Wait: durationpb.New(0)}
	first := must.Value(r.service.AcquireTurn(r.runner(), req))(t)
	for range 2 {
		again := must.Value(r.service.AcquireTurn(r.runner(), req))(t)
		require.Equal(t, first.GetTurn().GetTurnId(), again.GetTurn().GetTurnId())
		require.Equal(t, first.GetRunToken(), again.GetRunToken())
		require.Equal(t, first.GetMessage().GetMessageId(), again.GetMessage().GetMessageId())
		r.restart()
	}
	must.Refuse(r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
		RequestId: "r1", RunnerId: "somebody else", Wait: durationpb.New(0),
	}))(t, fault.RequestIDReused)
	must.Refuse(r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
		RequestId: "r1", RunnerId: "me", AgentIds: []string{"other"}, Wait: durationpb.New(0),
	}))(t, fault.RequestIDReused)

	r.finish(first, done)
	again := must.Value(r.service.AcquireTurn(r.runner(), req))(t)
	require.Equal(t, agentv1.TurnState_TURN_STATE_COMPLETED, again.GetTurn().GetState(),
		"of a turn that has ended the record alone")
	require.Empty(t, again.GetRunToken())
	require.EqualValues(t, 1, r.facts("other").GetQueued(), "no second turn")
}

// The same request that comes again while the first still waits is one turn.
func TestX2_TwoAcquiresUnderWayAreOneTurn(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.spawn("other")
	ids := make(chan string, 2)
	for range 2 {
		go func() {
			resp, _ := r.service.AcquireTurn(planetest.As(context.Background(), rpc.RoleRunner),
				&agentv1.AcquireTurnRequest{RequestId: "r1", Wait: durationpb.New(5 * time.Second)})
			ids <- resp.GetTurn().GetTurnId()
		}()
	}
	r.eventually(func() bool {
		return r.service.waiters.Count(plane.Key{Namespace: "acme", ID: "keeper"}, nil) == 2
	})
	r.send("keeper", "x", normal)
	r.send("other", "y", normal)
	a, b := <-ids, <-ids
	require.NotEmpty(t, a)
	require.Equal(t, a, b)
	started := 0
	for _, ev := range r.events() {
		if ev.Type == "turn_started" {
			started++
		}
	}
	require.Equal(t, 1, started)
}

// A caller that is gone when its turn is granted costs the message no attempt.
func TestA6_AnUndeliveredTurnIsGivenBackUncounted(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	messageID := r.send("keeper", "x", normal)
	for range lane.MaxAttempts + 2 {
		ctx, cancel := context.WithCancel(r.runner())
		// The runner goes away while its turn is being written.
		r.others.set(func() {
			r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
				cancel()
				return &workv1.GetWorkQueueResponse{AgentId: "keeper"}, nil
			}
		})
		require.Error(t, must.Err(r.service.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{Wait: durationpb.New(0)})))
		cancel()
	}
	r.others.set(func() { r.others.queue = nil })
	m := r.message("keeper", messageID)
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, m.GetState())
	require.Zero(t, m.GetAttempts())
	require.Equal(t, messageID, r.take("keeper").GetMessage().GetMessageId())
}

// A request that is sent again while the first call loses its caller has the
// turn that it is answered, or waits for another: never one that is being given
// back (SPEC X2).
func TestX2_ARepeatedAcquireHoldsWhatItIsAnswered(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	messageID := r.send("keeper", "x", normal)
	for i := range 300 {
		req := &agentv1.AcquireTurnRequest{RequestId: fmt.Sprintf("r%d", i), Wait: durationpb.New(20 * time.Second)}
		first, leave := context.WithCancel(r.runner())
		left := make(chan struct{})
		r.others.set(func() {
			r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
				time.AfterFunc(time.Duration(i)*time.Microsecond, leave)
				return &workv1.GetWorkQueueResponse{AgentId: "keeper"}, nil
			}
		})
		go func() {
			defer close(left)
			_, _ = r.service.AcquireTurn(first, req)
		}()
		again := must.Value(r.service.AcquireTurn(r.runner(), req))(t)
		<-left
		require.Equal(t, agentv1.TurnState_TURN_STATE_OPEN, again.GetTurn().GetState())
		must.Value(r.tryRenew(again))(t)
		require.Equal(t, messageID, again.GetMessage().GetMessageId())
		r.finish(again, done)
		leave()
		messageID = r.send("keeper", "x", normal)
	}
}

// A look that fails after it reserved an agent keeps it from nobody.
func TestD5_AFailedLookReservesNothing(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.send("keeper", "x", normal)
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) { return nil, fault.NotReady.New("starting") }
	})
	must.Refuse(r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{
		AgentIds: []string{"keeper"},
		Wait:     durationpb.New(0),
	}))(t, fault.NotReady, "who asks for one agent is told")
	got := must.Value(r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{Wait: durationpb.New(0)}))(t)
	require.True(t, got.GetPending(), "who serves all waits for another")
	ctx, cancel := context.WithCancel(r.runner())
	cancel()
	o, release, err := r.service.NextCandidate(ctx, rpc.ActorFrom(ctx), &agentv1.AcquireTurnRequest{
		AgentIds: []string{"keeper"},
	})
	if err == nil && o != nil {
		release(false)
	}
	require.Zero(t, r.service.reservations.Len())
	r.others.set(func() { r.others.queue = nil })
	r.take("keeper")
	require.Zero(t, r.service.reservations.Len())
}

// A tick that is no longer true is dropped with its reason, and its key is free (SPEC D4).
func TestD4_AStaleTickIsDropped(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	f := r.facts("keeper")
	dec := &agentv1.Decision{
		Action: agentv1.DecisionAction_DECISION_ACTION_TICK, TickReason: agentv1.TickReason_TICK_REASON_PICK_QUEUED,
		Reason: "queued_runnable", WorkItemId: "wi_1", WorkItemRevision: 1,
	}
	offer := func() agentv1.OfferResult {
		return must.Value(r.service.OfferDecision(r.scheduler(), &agentv1.OfferDecisionRequest{
			AgentId: "keeper", FactsRevision: r.facts("keeper").GetFactsRevision(), Decision: dec,
		}))(t).GetResult()
	}
	require.EqualValues(t, 1, f.GetFactsRevision())
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, offer())
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_PENDING, offer())
	require.True(t, r.poll("keeper").GetPending(), "no runnable item is queued")
	require.False(t, r.facts("keeper").GetTickPending())
	last := r.events()[len(r.events())-1]
	require.Equal(t, "message_dropped", last.Type)
	require.Contains(t, last.Payload.(*agentv1.MessageDropped).GetMessage().GetStateReason(), "stale_tick")
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, offer(), "the same tick may be offered again")
}

func TestX12_TheTurnIsLeasedHoweverItsAnswerWasLost(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.send("keeper", "x", normal)
	// The frame is committed by another instance's hand: only the hook saw it.
	p := r.service.engine.For("acme", "keeper")
	_, _, err := journal.Do(context.Background(), p, journal.Op[*state.State, struct{}]{
		Method: "AcquireTurn", Actor: journal.Actor{Namespace: "acme"}, AgentID: "keeper",
		Decide: func(st *state.State, env journal.Env) (journal.Decision[struct{}], error) {
			head := st.Lookup(plane.Key{Namespace: "acme", ID: "keeper"}).Lane.Head()
			d, err := turns.DecideAcquire(st, env, &agentv1.Turn{
				TurnId: "trn_1", RunId: "run_1", AgentId: "keeper", MessageId: head.GetMessageId(),
			})
			return journal.Decision[struct{}]{Events: d.Events}, err
		},
	})
	require.NoError(t, err)
	require.Equal(t, "run_1", r.facts("keeper").GetAgent().GetCurrentRunId())
	r.clk.Advance(runners.Term)
	r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
	require.EqualValues(t, 1, r.facts("keeper").GetQueued())
}
