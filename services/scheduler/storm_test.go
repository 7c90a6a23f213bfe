package scheduler_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/scheduler"
)

const wakeHint = agentv1.TickReason_TICK_REASON_WAKE_HINT

func (s *site) fail(a *agentv1.AcquireTurnResponse) {
	s.t.Helper()
	must.Value(s.agents.FinishTurn(s.as(rpc.RoleRunner), &agentv1.FinishTurnRequest{
		AgentId: a.GetTurn().GetAgentId(), TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(),
		Outcome: agentv1.TurnOutcome_TURN_OUTCOME_FATAL, Message: "the model refused",
	}))(s.t)
}

func (s *site) decided(agentID, reason string) {
	s.t.Helper()
	s.eventually(func() bool { return s.facts(agentID).GetLastDecision().GetReason() == reason })
}

// Agents for which a plane does not answer are more than there are lookers, and
// every other agent is decided all the same (SPEC D5).
func TestD5_HungAgentsDelayNoOther(t *testing.T) {
	s := newSite(t)
	const each = 12
	for i := range each {
		s.hung.Store(fmt.Sprint("hung-", i), true)
		s.spawn(fmt.Sprint("hung-", i))
	}
	sc := must.Value(scheduler.New(scheduler.Config{Lookers: 2}, scheduler.Deps{
		Sources: s.sources, Agents: s.agents, Work: flaky{s.works, s}, Waiting: s.waits, Clock: s.clk,
	}))(t)
	require.NoError(t, sc.Start(context.Background()))
	t.Cleanup(func() { require.NoError(t, sc.Stop(context.Background())) })
	s.eventually(func() bool {
		s.clk.Advance(time.Second) // so that looks count as slow
		return s.hanging.Load() == each
	})
	for i := range each {
		agentID := fmt.Sprint("sound-", i)
		s.spawn(agentID)
		s.create(agentID, "ship")
	}
	for i := range each {
		require.Equal(t, pickQueued, s.take(fmt.Sprint("sound-", i)).GetMessage().GetTick().GetReason())
	}
	require.EqualValues(t, each, s.hanging.Load(), "all of them hang still")
}

// Turns that always fail come to an end, whatever their tick was about: a runner that is
// broken must not get the same work in a tight loop.
func TestD4_FailingTurnsComeToAnEnd(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	own := planetest.AsAgent(t.Context(), "keeper")
	itemID := s.create("keeper", "ship")
	create := func(item string) *waitingv1.CreateExternalTriggerResponse {
		return must.Value(s.waits.CreateExternalTrigger(own, &waitingv1.CreateExternalTriggerRequest{
			AgentId: "keeper", WorkItemId: item,
		}))(t)
	}
	ofItem, ofAgent := create(itemID), create("")
	deliver := func(trg *waitingv1.CreateExternalTriggerResponse) {
		s.clk.Advance(time.Second)
		_, err := s.waits.DeliverTrigger(s.as(rpc.RoleService), &waitingv1.DeliverTriggerRequest{Token: trg.GetToken()})
		require.NoError(t, err)
		s.clk.Advance(time.Second)
	}
	must.Value(s.waits.WaitFor(own, &waitingv1.WaitForRequest{
		AgentId: "keeper", WorkItemId: itemID, Reason: "a reply",
		Wake: waitingv1.Wake_WAKE_EXTERNAL, Resource: ofItem.GetTrigger().GetTriggerId(),
	}))(t)
	s.schedule()
	s.decided("keeper", "all_waiting")

	deliver(ofItem)
	for range 3 {
		s.fail(s.take("keeper"))
	}
	s.decided("keeper", "no_progress")
	require.Equal(t, map[agentv1.TickReason]int{reviewTriggered: 3}, s.ticks("keeper"))
	deliver(ofAgent) // news: worth one more attempt
	s.fail(s.take("keeper"))
	s.decided("keeper", "no_progress")
	require.Equal(t, map[agentv1.TickReason]int{reviewTriggered: 3, wakeHint: 1}, s.ticks("keeper"))
	require.True(t, s.facts("keeper").GetWakeHint(), "nobody was told yet")

	must.Value(s.agents.EnqueueMessage(s.as(rpc.RoleOperator), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "mended",
	}))(t)
	a := s.take("keeper")
	require.Len(t, a.GetContext().GetShownWaits(), 2,
		"the turn shows what was not told: for the item, and for the agent")
	s.finish(a)
	s.decided("keeper", "all_waiting")
	require.False(t, s.facts("keeper").GetWakeHint())
	it := must.Value(s.works.GetWorkItem(own, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: itemID}))(t)
	require.Equal(t, "a reply", it.GetWorkItem().GetBlockedBy(), "a failed turn leaves the item")
}

// A quiet system writes nothing: no tick, no decision, no heartbeat, over an
// hour of sweeps, and no sweep marks an agent that it does not look at.
func TestD4_AQuietSystemIsSilent(t *testing.T) {
	s := newSite(t)
	agents := []string{"idle", "waits", "blocked", "asks", "no-progress", "queued", "runs", "reminded"}
	for _, agentID := range agents {
		s.spawn(agentID)
	}
	own := func(agentID string) context.Context { return planetest.AsAgent(t.Context(), agentID) }
	must.Value(s.waits.WaitFor(own("waits"), &waitingv1.WaitForRequest{
		AgentId: "waits", WorkItemId: s.create("waits", "x"), Reason: "a reply", Wake: waitingv1.Wake_WAKE_EXTERNAL,
	}))(t)
	why, asks := "no key", workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT
	must.Value(s.works.UpdateWorkItem(own("blocked"), &workv1.UpdateWorkItemRequest{
		AgentId: "blocked", WorkItemId: s.create("blocked", "x"), BlockedBy: &why,
	}))(t)
	must.Value(s.works.UpdateWorkItem(own("reminded"), &workv1.UpdateWorkItemRequest{
		AgentId:    "reminded",
		WorkItemId: s.create("reminded", "x"), BlockedBy: &why, RecheckAt: timestamppb.New(epoch.Add(100 * time.Hour)),
	}))(t)
	must.Value(s.works.UpdateWorkItem(own("asks"), &workv1.UpdateWorkItemRequest{
		AgentId: "asks", WorkItemId: s.create("asks", "x"), PlanStatus: asks,
	}))(t)
	s.create("no-progress", "x")
	s.create("queued", "x") // its tick waits for a runner all the time
	sc := s.schedule()
	for range 3 {
		s.finish(s.take("no-progress"))
	}
	s.decided("no-progress", "no_progress")
	s.eventually(func() bool { return s.facts("queued").GetTickPending() })
	for agentID, reason := range map[string]string{
		"idle": "no_work_items", "waits": "all_waiting",
		"blocked": "all_waiting", "asks": "waiting_for_operator", "reminded": "all_waiting", "runs": "no_work_items",
	} {
		s.decided(agentID, reason)
	}
	require.NoError(t, sc.Ready())
	sc.Quiesce()

	before := s.ends()
	for range 120 { // one hour of sweeps of 30 s
		n := s.sweeps.Load()
		s.eventually(func() bool {
			s.clk.Advance(30 * time.Second)
			return s.sweeps.Load() > n
		})
	}
	require.Equal(t, before, s.ends(), "no journal line")
	require.GreaterOrEqual(t, s.clk.Now().Sub(epoch), time.Hour)
}

// ends returns the positions of all journals.
func (s *site) ends() map[string]uint64 {
	s.t.Helper()
	out := map[string]uint64{}
	for _, plane := range []string{"agent", "work", "waiting"} {
		out[plane] = must.Value(must.Value(s.journals.Sources(plane))(s.t)[0].End(s.t.Context()))(s.t).Seq
	}
	return out
}

// Thousands of agents become ready at once; each gets its one tick, and an agent
// that comes last is not lost among them (SPEC D5).
func TestD5_ThousandsReadyAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	s := newSite(t)
	s.schedule()
	const agents = 2000
	for i := range agents {
		agentID := fmt.Sprint("agent-", i)
		s.spawn(agentID)
		s.create(agentID, "ship")
	}
	s.eventually(func() bool { return s.facts(fmt.Sprint("agent-", agents-1)).GetTickPending() })
	for i := range agents {
		s.eventually(func() bool { return s.facts(fmt.Sprint("agent-", i)).GetTickPending() })
	}
	require.Len(t, s.ticks("agent-0"), 1)
}
