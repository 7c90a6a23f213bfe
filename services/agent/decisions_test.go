package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/page"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/agent/facts"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
)

const continueCurrent = agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT

func (r *rig) offer(revision int64, d *agentv1.Decision) *agentv1.OfferDecisionResponse {
	r.t.Helper()
	return must.Value(r.service.OfferDecision(r.scheduler(), &agentv1.OfferDecisionRequest{
		AgentId: "keeper", FactsRevision: revision, Decision: d,
	}))(r.t)
}

func tickOf(item string, revision int64) *agentv1.Decision {
	return &agentv1.Decision{
		Action: agentv1.DecisionAction_DECISION_ACTION_TICK, TickReason: continueCurrent,
		Reason: "current_runnable", WorkItemId: item, WorkItemRevision: revision, Explanation: "go on",
	}
}

// Facts that are read ahead of the disk may be lost. Afterwards another event has their revision, but the load of the
// partition tells them apart, so a decision that rests on what never happened is refused.
func TestD1_FactsOfALostFrameAreStale(t *testing.T) {
	r := newRig(t)
	log := r.injectFaults()
	r.spawn("keeper")
	log.Inject(journaltest.HeldRefused)
	lost := make(chan error, 1)
	go func() {
		_, err := r.service.EnqueueMessage(r.operator(), &agentv1.EnqueueMessageRequest{AgentId: "keeper", Text: "lost"})
		lost <- err
	}()
	<-log.Held()
	resp, err := r.service.GetFacts(r.scheduler(), &agentv1.GetFactsRequest{AgentId: "keeper", Ahead: true})
	require.NoError(t, err)
	ahead := resp.GetFacts()[0]
	require.EqualValues(t, 1, ahead.GetQueued())
	log.Release()
	require.Error(t, <-lost)

	_, err = r.service.PauseAgent(r.operator(), &agentv1.PauseAgentRequest{AgentId: "keeper"})
	require.NoError(t, err)
	f := r.facts("keeper")
	require.Equal(t, ahead.GetFactsRevision(), f.GetFactsRevision(), "the events are counted alike")
	require.Zero(t, f.GetQueued())
	require.NotEqual(t, ahead.GetLoadId(), f.GetLoadId())
	offer := func(facts *agentv1.AgentFacts) agentv1.OfferResult {
		resp, err := r.service.OfferDecision(r.scheduler(), &agentv1.OfferDecisionRequest{
			AgentId: "keeper", FactsRevision: facts.GetFactsRevision(), LoadId: facts.GetLoadId(),
			Decision: &agentv1.Decision{Action: agentv1.DecisionAction_DECISION_ACTION_IDLE, Reason: "no_work"},
		})
		require.NoError(t, err)
		return resp.GetResult()
	}
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_STALE, offer(ahead))
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, offer(f))
}

func TestD4_OneTickAtATimeAndOneAKey(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{
				Current: &workv1.WorkItem{WorkItemId: "wi_1", Readiness: workv1.Readiness_READINESS_RUNNABLE},
			}, nil
		}
	})
	now := func() int64 { return r.facts("keeper").GetFactsRevision() }

	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_STALE, r.offer(now()+1, tickOf("wi_1", 1)).GetResult())
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_STALE, r.offer(now()-1, tickOf("wi_1", 1)).GetResult())
	first := r.offer(now(), tickOf("wi_1", 1))
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, first.GetResult())
	m := r.message("keeper", first.GetMessageId())
	require.Equal(t, agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK, m.GetKind())
	require.Equal(t, agentv1.Authority_AUTHORITY_RUNTIME_INSTRUCTION, m.GetAuthority())
	require.Equal(t, "go on", m.GetText())
	require.Equal(t, continueCurrent, m.GetTick().GetReason())
	f := r.facts("keeper")
	require.True(t, f.GetTickPending())
	require.EqualValues(t, 1, f.GetQueued())
	require.Zero(t, f.GetQueuedInput(), "a tick is no input")

	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_PENDING, r.offer(now(), tickOf("wi_2", 5)).GetResult(),
		"one tick at a time, whatever it is about")
	r.restart()
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_PENDING, r.offer(now(), tickOf("wi_2", 5)).GetResult(),
		"also after a restart (upstream: restart ticks)")

	a := r.take("keeper")
	require.True(t, r.facts("keeper").GetTickPending(), "it is pending while its turn is open")
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_PENDING, r.offer(now(), tickOf("wi_1", 1)).GetResult())
	r.finish(a, done)
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(now(), tickOf("wi_1", 1)).GetResult(),
		"another turn ended since: another key")
}

// A failed turn frees the key: the tick comes again (SPEC D4).
func TestD4_AFailedTurnFreesTheKey(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	wake := &agentv1.Decision{
		Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
		TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered",
	}
	for range 3 {
		require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(r.facts("keeper").GetFactsRevision(), wake).
			GetResult())
		r.finish(r.take("keeper"), fatal)
		require.False(t, r.facts("keeper").GetTickPending())
	}
	// One that may be tried again is queued itself.
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(r.facts("keeper").GetFactsRevision(), wake).
		GetResult())
	r.finish(r.take("keeper"), retryable)
	require.True(t, r.facts("keeper").GetTickPending())
	require.EqualValues(t, 1, r.facts("keeper").GetQueued())
}

func TestD6_AnUnchangedDecisionIsNotWrittenAgain(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	idle := &agentv1.Decision{
		Action: agentv1.DecisionAction_DECISION_ACTION_IDLE, Reason: "no_work_items", Explanation: "idle: nothing",
	}
	require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(1, idle).GetResult())
	before := len(r.events())
	for range 3 {
		require.Equal(t, agentv1.OfferResult_OFFER_RESULT_UNCHANGED, r.offer(r.facts("keeper").GetFactsRevision(),
			idle).GetResult())
	}
	require.Len(t, r.events(), before)
	require.Equal(t, "no_work_items", r.facts("keeper").GetLastDecision().GetReason())
	require.Zero(t, r.facts("keeper").GetQueued(), "idling queues nothing")

	l := must.Value(r.service.ListDecisions(r.operator(), &agentv1.ListDecisionsRequest{AgentId: "keeper"}))(t)
	require.Len(t, l.GetDecisions(), 1)
	_, err := r.service.ListDecisions(r.operator(), &agentv1.ListDecisionsRequest{AgentId: "keeper", PageSize: 101})
	require.ErrorIs(t, err, fault.LimitExceeded)

	for i := range state.KeptDecisions + 5 {
		r.offer(r.facts("keeper").GetFactsRevision(),
			&agentv1.Decision{Action: agentv1.DecisionAction_DECISION_ACTION_IDLE, Reason: fmt.Sprint(i)})
	}
	l = must.Value(r.service.ListDecisions(r.operator(), &agentv1.ListDecisionsRequest{
		AgentId: "keeper", PageSize: state.KeptDecisions,
	}))(t)
	require.Len(t, l.GetDecisions(), state.KeptDecisions)
	require.Equal(t, fmt.Sprint(state.KeptDecisions+4), l.GetDecisions()[0].GetReason(), "newest first")
	require.Empty(t, l.GetNextPageToken())
}

func TestD1_NobodyHasNoFacts(t *testing.T) {
	r := newRig(t)
	must.Refuse(r.service.GetFacts(r.scheduler(), &agentv1.GetFactsRequest{AgentId: "nobody"}))(t, fault.NotFound)
}

// A sweep sees every agent of every namespace once, page by page (SPEC X14).
func TestX14_ASweepSeesEveryAgent(t *testing.T) {
	r := newRig(t)
	const each = 600
	for _, ns := range []string{"acme", "umbrella"} {
		ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: ns, Principal: "op", Role: rpc.RoleOperator})
		for i := range each {
			must.Value(r.service.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
				AgentId: fmt.Sprintf("a%04d", i),
				Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
			}))(t)
		}
	}
	seen := map[string]int{}
	req := &agentv1.GetFactsRequest{}
	pages := 0
	for {
		resp := must.Value(r.service.GetFacts(r.scheduler(), req))(t)
		for _, f := range resp.GetFacts() {
			seen[f.GetNamespace()+"/"+f.GetAgent().GetAgentId()]++
		}
		pages++
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	require.Len(t, seen, 2*each)
	require.Equal(t, 3, pages)
	for _, bad := range []string{"x", req.GetPageToken() + "y"} {
		require.Error(t, must.Err(r.service.GetFacts(r.scheduler(), &agentv1.GetFactsRequest{PageToken: bad})))
	}
}

// With pending_only, a sweep reads the agents about which something is to be decided, whatever their work, and no
// other.
func TestX14_ASweepOfPendingDecisions(t *testing.T) {
	r := newRig(t)
	pending := func() (found []string) {
		t.Helper()
		req := &agentv1.GetFactsRequest{PendingOnly: true}
		for {
			resp := must.Value(r.service.GetFacts(r.scheduler(), req))(t)
			for _, f := range resp.GetFacts() {
				found = append(found, f.GetAgent().GetAgentId())
			}
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				return found
			}
		}
	}
	idle := func() {
		t.Helper()
		d := &agentv1.Decision{Action: agentv1.DecisionAction_DECISION_ACTION_IDLE, Reason: "all_waiting"}
		require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(r.facts("keeper").GetFactsRevision(), d).
			GetResult())
	}
	r.spawn("keeper")
	require.Equal(t, []string{"keeper"}, pending(), "no decision was ever made")
	idle()
	require.Empty(t, pending())
	r.send("keeper", "x", normal)
	require.Empty(t, pending(), "a message gives it a turn in any case")
	a := r.take("keeper")
	require.Empty(t, pending(), "it has a turn")
	r.finish(a, done)
	require.Equal(t, []string{"keeper"}, pending(), "a turn has ended")
	idle()
	require.Empty(t, pending())
	r.hear(said(&waitingv1.TriggerDelivered{Trigger: &waitingv1.Trigger{TriggerId: "trg_1"}, WakeAgent: true}))
	require.Equal(t, []string{"keeper"}, pending(), "a wait has woken it")
	must.Value(r.service.PauseAgent(r.operator(), &agentv1.PauseAgentRequest{AgentId: "keeper"}))(t)
	require.Empty(t, pending(), "it is paused")
	must.Value(r.service.ResumeAgent(r.operator(), &agentv1.ResumeAgentRequest{AgentId: "keeper"}))(t)
	require.Equal(t, []string{"keeper"}, pending())
}

// The triggers that completed turns were shown are facts until the waiting plane knows.
func TestP7_FactsNameWhatTurnsWereShown(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	count := int64(0)
	r.others.set(func() {
		r.others.waits = []*waitingv1.Wait{{WaitId: "wt_1"}}
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			count++
			return &workv1.GetWorkQueueResponse{
				TriggeredBlocked: []*workv1.WorkItem{
					{WorkItemId: "wi_1", Waits: []*workv1.AttachedWait{{WaitId: "wt_1", TriggerCount: count}}},
				},
			}, nil
		}
	})
	turn := func(outcome agentv1.TurnOutcome) {
		r.send("keeper", "x", normal)
		resp := must.Value(r.service.AcquireTurn(r.runner(), &agentv1.AcquireTurnRequest{Wait: durationpb.New(0)}))(t)
		r.finish(resp, outcome)
	}
	turn(fatal)
	require.Empty(t, r.facts("keeper").GetShownWaits(), "a failed turn has seen nothing")
	turn(done)
	require.EqualValues(t, 2, r.facts("keeper").GetShownWaits()[0].GetTriggerCount())
	for range 5 {
		turn(done)
	}
	require.Len(t, r.facts("keeper").GetShownWaits(), state.RecentTurns)
}

// Pages of decisions neither repeat nor skip while others are recorded (SPEC D6, X9).
func TestD6_DecisionsArePaged(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	record := func(i int) {
		require.Equal(t, agentv1.OfferResult_OFFER_RESULT_RECORDED, r.offer(r.facts("keeper").GetFactsRevision(),
			&agentv1.Decision{Action: agentv1.DecisionAction_DECISION_ACTION_IDLE, Reason: fmt.Sprint(i)}).GetResult())
	}
	for i := range 25 {
		record(i)
	}
	var got []string
	req := &agentv1.ListDecisionsRequest{AgentId: "keeper", PageSize: 10}
	for {
		l := must.Value(r.service.ListDecisions(r.operator(), req))(t)
		for _, d := range l.GetDecisions() {
			got = append(got, d.GetReason())
		}
		record(100 + len(got))
		if req.PageToken = l.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	require.Len(t, got, 25)
	require.Equal(t, "24", got[0])
	require.Equal(t, "0", got[24])
	l := must.Value(r.service.ListDecisions(r.operator(), &agentv1.ListDecisionsRequest{AgentId: "keeper"}))(t)
	require.Len(t, l.GetDecisions(), facts.DefaultDecisions)
	for _, bad := range []string{"x", page.Token("facts", "1"), page.Token("decisions", "x")} {
		must.Refuse(r.service.ListDecisions(r.operator(), &agentv1.ListDecisionsRequest{
			AgentId: "keeper", PageToken: bad,
		}))(t, fault.CursorInvalid, bad)
	}
}

// What a person wants to know of a busy or a ready agent is among its facts.
func TestD6_FactsNameTheRunAndTheLine(t *testing.T) {
	r := newRig(t)
	for _, agentID := range []string{"a", "b", "keeper"} {
		r.spawn(agentID)
		r.clk.Advance(time.Second)
		r.send(agentID, "x", normal)
	}
	f := r.facts("keeper")
	require.EqualValues(t, 2, f.GetReadyAhead())
	require.Zero(t, r.facts("a").GetReadyAhead())
	require.Nil(t, f.GetOpenTurn())
	w := r.service.waiters.Add("acme", nil, false, runners.Selection{})
	require.EqualValues(t, 1, r.facts("keeper").GetRunnersWaiting())
	r.service.waiters.Remove(w)
	r.take("keeper")
	r.clk.Advance(10 * time.Second)
	f = r.facts("keeper")
	require.Equal(t, epoch.Add(33*time.Second), f.GetOpenTurn().GetLeaseExpiresAt().AsTime(), "as known now")
	require.Zero(t, f.GetReadyAhead())
}

// What woke the agent counts as told by a turn that completed, and a tick that
// no turn survives is counted (SPEC P7, D4).
func TestP7_AWakeThatNoTurnSurvivedComesBack(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.hear(said(&waitingv1.TriggerDelivered{Trigger: &waitingv1.Trigger{TriggerId: "trg_1"}, WakeAgent: true}))
	wake := &agentv1.Decision{
		Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
		TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered",
	}
	for i := range int32(2) {
		require.Equal(t, i, r.facts("keeper").GetFailedTicks())
		require.Equal(t, epoch, r.facts("keeper").GetWokenAt().AsTime())
		r.offer(r.facts("keeper").GetFactsRevision(), wake)
		a := r.take("keeper")
		require.False(t, r.facts("keeper").GetWakeHint(), "a turn that begins is awake")
		r.finish(a, fatal)
		require.True(t, r.facts("keeper").GetWakeHint(), "and if it fails nobody is")
	}
	r.restart()
	require.EqualValues(t, 2, r.facts("keeper").GetFailedTicks())
	r.offer(r.facts("keeper").GetFactsRevision(), wake)
	r.finish(r.take("keeper"), done)
	require.False(t, r.facts("keeper").GetWakeHint())
	require.Zero(t, r.facts("keeper").GetFailedTicks())
}
