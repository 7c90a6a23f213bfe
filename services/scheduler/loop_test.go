package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent"
	"quartet/services/scheduler"
	"quartet/services/waiting"
	"quartet/services/work"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// site is agent, work and waiting over memory, with as many schedulers as a
// test starts.
type site struct {
	t        *testing.T
	clk      *clock.Fake
	journals *planetest.Journals
	net      *planetest.Net
	agents   agentv1.AgentServiceClient
	works    workv1.WorkServiceClient
	waits    waitingv1.WaitingServiceClient
	workDown atomic.Bool
	refused  atomic.Int32 // looks at the work plane while it was down
	hung     sync.Map     // agents for which the work plane does not answer
	hanging  atomic.Int32
	sweeps   atomic.Int32 // first pages of all agents that were read
	listDown atomic.Bool  // the work plane cannot list the agents with pending work
	looks    sync.Map     // how often each agent was evaluated, an *atomic.Int32
	sources  func(plane string) ([]journal.Source, error)
	agentLog *journaltest.FaultLog
	// looking, if armed, holds the next look at an agent up until it is let go.
	looking held
}

// held is one call that a test holds up.
type held struct {
	armed  atomic.Bool
	begun  chan struct{}
	let    chan struct{}
	aheads atomic.Int32 // looks that read what is not durable
}

func (h *held) arm() {
	h.begun, h.let = make(chan struct{}), make(chan struct{})
	h.armed.Store(true)
}

// quiet answers what the planes ask of the task plane.
type quiet struct{}

func (quiet) RunningTasks(context.Context, string, string) ([]work.RunningTask, error) {
	return nil, nil
}

func (quiet) AgentExists(context.Context, string) error { return nil }
func (quiet) LaneRoom(context.Context, string) error    { return nil }

func (quiet) Supervision(context.Context, string) (string, []string, error) { return "", nil, nil }

func (quiet) GetTask(context.Context, *taskv1.GetTaskRequest, ...grpc.CallOption) (*taskv1.GetTaskResponse, error) {
	return nil, fault.NotFound.New("no tasks here")
}

func newSite(t *testing.T) *site {
	s := &site{t: t, clk: clock.NewFake(epoch), journals: planetest.NewJournals(), net: planetest.NewNet(t)}
	s.journals.Wrap = func(plane string, log framelog.Log) framelog.Log {
		if plane == "agent" {
			s.agentLog = journaltest.NewFaultLog(log)
			return s.agentLog
		}
		return log
	}
	feeds := journal.NewFeeds()
	s.sources = func(plane string) ([]journal.Source, error) {
		all, err := s.journals.Sources(plane)
		for i := range all {
			all[i] = feeds.Source(all[i])
		}
		return all, err
	}
	deps := plane.Deps{Log: s.journals.Log, Sources: s.sources, Feeds: feeds, Clock: s.clk}
	conn := func(name string) grpc.ClientConnInterface {
		return must.Value(s.net.Conn(name))(t)
	}
	s.agents, s.works, s.waits = agentv1.NewAgentServiceClient(conn("agent")),
		workv1.NewWorkServiceClient(conn("work")), waitingv1.NewWaitingServiceClient(conn("waiting"))
	a := must.Value(agent.New(agent.Config{}, agent.Deps{
		Deps: deps, Work: s.works, Waiting: s.waits, Conn: s.net.Conn, MintRun: func(string, string, string) string {
			return "token"
		},
	}))(t)
	wk, err := work.New(work.Config{Home: t.TempDir()}, work.Deps{Deps: deps, Tasks: quiet{}, Agents: quiet{}})
	require.NoError(t, err)
	wt := must.Value(waiting.New(waiting.Config{}, waiting.Deps{
		Deps: deps, Work: s.works, Tasks: quiet{}, Agents: quiet{}, Keys: keyfile.Fixed(keyfile.Of([]byte("key"))),
	}))(t)
	for _, p := range []interface {
		Name() string
		Start(context.Context) error
		Stop(context.Context) error
		Register(grpc.ServiceRegistrar)
	}{a, wk, wt} {
		require.NoError(t, p.Start(context.Background()))
		stop := s.net.Serve(p.Name(), func(r grpc.ServiceRegistrar) { p.Register(r) })
		t.Cleanup(func() {
			require.NoError(t, p.Stop(context.Background()))
			stop()
		})
	}
	return s
}

// flaky is the work plane as a scheduler reaches it.
type flaky struct {
	workv1.WorkServiceClient
	site *site
}

func (f flaky) GetWorkQueue(ctx context.Context, in *workv1.GetWorkQueueRequest, opts ...grpc.CallOption) (
	*workv1.GetWorkQueueResponse, error,
) {
	if f.site.workDown.Load() {
		f.site.refused.Add(1)
		return nil, fault.NotReady.New("starting")
	}
	if _, hung := f.site.hung.Load(in.GetAgentId()); hung {
		f.site.hanging.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.WorkServiceClient.GetWorkQueue(ctx, in, opts...)
}

func (f flaky) ListPendingAgents(ctx context.Context, in *workv1.ListPendingAgentsRequest, opts ...grpc.CallOption) (
	*workv1.ListPendingAgentsResponse, error,
) {
	if f.site.listDown.Load() {
		return nil, fault.Storage.New("the journal is damaged")
	}
	return f.WorkServiceClient.ListPendingAgents(ctx, in, opts...)
}

// counted is the agent plane as a scheduler reaches it.
type counted struct {
	agentv1.AgentServiceClient
	site *site
}

func (c counted) GetFacts(ctx context.Context, in *agentv1.GetFactsRequest, opts ...grpc.CallOption) (
	*agentv1.GetFactsResponse, error,
) {
	if in.GetAgentId() == "" && in.GetPageToken() == "" {
		c.site.sweeps.Add(1)
	}
	if in.GetAgentId() != "" {
		n, _ := c.site.looks.LoadOrStore(in.GetAgentId(), new(atomic.Int32))
		n.(*atomic.Int32).Add(1) //nolint:forcetypeassert // stored above
	}
	if in.GetAhead() {
		c.site.looking.aheads.Add(1)
	}
	if h := &c.site.looking; in.GetAgentId() != "" && h.armed.CompareAndSwap(true, false) {
		close(h.begun)
		<-h.let
	}
	return c.AgentServiceClient.GetFacts(ctx, in, opts...)
}

func (s *site) schedule() *scheduler.Service {
	s.t.Helper()
	sc := must.Value(scheduler.New(scheduler.Config{}, scheduler.Deps{
		Sources: s.sources, Agents: counted{s.agents, s}, Work: flaky{s.works, s}, Waiting: s.waits, Clock: s.clk,
	}))(s.t)
	require.NoError(s.t, sc.Start(context.Background()))
	s.t.Cleanup(func() {
		require.NoError(s.t, sc.Stop(context.Background()))
		require.NoError(s.t, sc.Stop(context.Background()))
	})
	s.eventually(func() bool { return sc.Ready() == nil })
	return sc
}

func (s *site) eventually(ok func() bool) {
	s.t.Helper()
	require.Eventually(s.t, ok, time.Minute, 2*time.Millisecond)
}

func (s *site) as(role string) context.Context { return planetest.As(s.t.Context(), role) }

func (s *site) spawn(agentID string) {
	s.t.Helper()
	must.Value(s.agents.SpawnAgent(s.as(rpc.RoleOperator), &agentv1.SpawnAgentRequest{
		AgentId: agentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(s.t)
}

func (s *site) create(agentID, objective string) string {
	s.t.Helper()
	return must.Value(s.works.CreateWorkItem(planetest.AsAgent(s.t.Context(), agentID), &workv1.CreateWorkItemRequest{
		AgentId: agentID, Objective: objective,
	}))(s.t).GetWorkItem().GetWorkItemId()
}

func (s *site) take(agentID string) *agentv1.AcquireTurnResponse {
	s.t.Helper()
	resp := must.Value(s.agents.AcquireTurn(s.as(rpc.RoleRunner), &agentv1.AcquireTurnRequest{
		AgentIds: []string{agentID},
		Wait:     durationpb.New(10 * time.Second),
	}))(s.t)
	require.NotNil(s.t, resp.GetTurn(), "no turn of %s", agentID)
	return resp
}

func (s *site) finish(a *agentv1.AcquireTurnResponse) {
	s.t.Helper()
	must.Value(s.agents.FinishTurn(s.as(rpc.RoleRunner), &agentv1.FinishTurnRequest{
		AgentId: a.GetTurn().GetAgentId(), TurnId: a.GetTurn().GetTurnId(), RunId: a.GetTurn().GetRunId(),
	}))(s.t)
}

func (s *site) facts(agentID string) *agentv1.AgentFacts {
	s.t.Helper()
	resp := must.Value(s.agents.GetFacts(s.as(rpc.RoleService), &agentv1.GetFactsRequest{AgentId: agentID}))(s.t)
	return resp.GetFacts()[0]
}

// ticks counts the ticks that were ever queued for an agent, by reason.
func (s *site) ticks(agentID string) map[agentv1.TickReason]int {
	n := map[agentv1.TickReason]int{}
	for _, ev := range s.journals.Events(s.t, "agent",
		journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto)) {
		if p, ok := ev.Payload.(*agentv1.MessageQueued); ok && ev.AgentID == agentID &&
			p.GetMessage().GetTick() != nil {
			n[p.GetMessage().GetTick().GetReason()]++
		}
	}
	return n
}

const (
	pickQueued      = agentv1.TickReason_TICK_REASON_PICK_QUEUED
	continueCurrent = agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT
	reviewTriggered = agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED
	recheck         = agentv1.TickReason_TICK_REASON_RECHECK
)

// Two schedulers see the same events at the same time; one tick comes of it.
func TestD4_TwoSchedulersOneTick(t *testing.T) {
	s := newSite(t)
	s.schedule()
	s.schedule()
	for i := range 5 {
		agentID := fmt.Sprint("agent-", i)
		s.spawn(agentID)
		s.create(agentID, "ship")
		a := s.take(agentID)
		require.Equal(t, pickQueued, a.GetMessage().GetTick().GetReason())
		require.Contains(t, a.GetMessage().GetText(), "ship")
		s.finish(a)
	}
	for i := range 5 {
		agentID := fmt.Sprint("agent-", i)
		// The turn changed nothing, so the tick comes again: once for each turn.
		s.eventually(func() bool { return s.ticks(agentID)[pickQueued] == 2 })
		require.EqualValues(t, 1, s.facts(agentID).GetQueued())
	}
}

// A scheduler that starts later finds what it missed (SPEC D1, X14), and a
// restarted one emits no second tick (upstream: restart ticks).
func TestD1_WhatWasMissedIsSwept(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	s.create("keeper", "ship")
	first := s.schedule()
	s.eventually(func() bool { return s.facts("keeper").GetTickPending() })
	require.NoError(t, first.Stop(context.Background()))
	s.schedule()
	require.Equal(t, map[agentv1.TickReason]int{pickQueued: 1}, s.ticks("keeper"))
}

// looked returns how often an agent was evaluated so far.
func (s *site) looked(agentID string) int {
	n, has := s.looks.Load(agentID)
	if !has {
		return 0
	}
	return int(n.(*atomic.Int32).Load()) //nolint:forcetypeassert // see counted
}

// A sweep evaluates the agents that have something pending, and reads no other: not at the start, and not later.
// Reminders ahead are timers. Where the work plane cannot say whose work is pending, all agents are evaluated (SPEC
// D1).
func TestD1_ASweepReadsWhoHasSomethingPending(t *testing.T) {
	s := newSite(t)
	settled := func(agentID, reason string) {
		t.Helper()
		s.eventually(func() bool { return s.facts(agentID).GetLastDecision().GetReason() == reason })
	}
	first := s.schedule()
	for _, agentID := range []string{"asleep", "reminded", "stuck", "late"} {
		s.spawn(agentID)
		settled(agentID, "no_work_items")
	}
	reminded, why := s.create("reminded", "ship"), "no key"
	must.Value(s.works.UpdateWorkItem(planetest.AsAgent(t.Context(), "reminded"), &workv1.UpdateWorkItemRequest{
		AgentId: "reminded", WorkItemId: reminded, BlockedBy: &why, RecheckAt: timestamppb.New(epoch.Add(time.Hour)),
	}))(t)
	// It was runnable for a moment, and may have a tick, which is dropped.
	if a, err := s.agents.AcquireTurn(s.as(rpc.RoleRunner), &agentv1.AcquireTurnRequest{
		AgentIds: []string{"reminded"},
		Wait:     durationpb.New(time.Millisecond),
	}); err == nil && a.GetTurn() != nil {
		s.finish(a)
	}
	settled("reminded", "all_waiting")
	s.create("stuck", "ship")
	for range 3 {
		s.finish(s.take("stuck"))
	}
	settled("stuck", "no_progress")
	first.Quiesce()
	require.NoError(t, first.Stop(context.Background()))
	s.create("late", "ship") // nobody is told

	before := map[string]int{}
	for _, agentID := range []string{"asleep", "reminded", "stuck", "late"} {
		before[agentID] = s.looked(agentID)
	}
	sc := s.schedule()
	sc.Quiesce()
	require.True(t, s.facts("late").GetTickPending(), "what was missed is found")
	require.Greater(t, s.looked("stuck"), before["stuck"], "its work is pending")
	require.Equal(t, before["asleep"], s.looked("asleep"))
	require.Equal(t, before["reminded"], s.looked("reminded"))

	sweeps := s.sweeps.Load()
	s.eventually(func() bool {
		s.clk.Advance(10 * time.Second)
		return s.sweeps.Load() > sweeps
	})
	sc.Quiesce()
	require.Equal(t, before["asleep"], s.looked("asleep"))
	require.Equal(t, before["reminded"], s.looked("reminded"))
	s.clk.Advance(time.Hour)
	require.Equal(t, recheck, s.take("reminded").GetMessage().GetTick().GetReason())

	s.listDown.Store(true)
	s.eventually(func() bool {
		s.clk.Advance(10 * time.Second)
		return s.looked("asleep") > before["asleep"]
	})
}

// Three turns without a call leave the agent alone until something new comes (SPEC D4).
func TestD4_NoProgressEndsTheLoop(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	s.create("keeper", "ship")
	sc := s.schedule()
	for range 3 {
		s.finish(s.take("keeper"))
	}
	s.eventually(func() bool { return s.facts("keeper").GetLastDecision().GetReason() == "no_progress" })
	require.Equal(t, map[agentv1.TickReason]int{pickQueued: 3}, s.ticks("keeper"))
	e, err := sc.Explain(planetest.As(t.Context(), rpc.RoleOperator), &schedulerv1.ExplainRequest{AgentId: "keeper"})
	require.NoError(t, err)
	require.Equal(t, agentv1.DecisionAction_DECISION_ACTION_IDLE, e.GetVerdict().GetAction())
	require.Contains(t, e.GetVerdict().GetExplanation(), "no_progress after 3 turns in a row")
	require.Len(t, e.GetCandidates(), 1)
	require.NotEmpty(t, e.GetRecent())

	must.Value(s.agents.EnqueueMessage(s.as(rpc.RoleOperator), &agentv1.EnqueueMessageRequest{
		AgentId: "keeper", Text: "try this",
	}))(t)
	s.finish(s.take("keeper"))
	require.Equal(t, pickQueued, s.take("keeper").GetMessage().GetTick().GetReason(), "input wakes it")
}

// A trigger is reviewed once: the turn that was shown it consumes it, also when
// that turn waits for the next one, which is what most do.
func TestP2_ATriggerIsReviewedOnce(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	own := planetest.AsAgent(t.Context(), "keeper")
	itemID := s.create("keeper", "ship")
	trg, err := s.waits.CreateExternalTrigger(own, &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", WorkItemId: itemID,
	})
	require.NoError(t, err)
	wait := func(request string) {
		must.Value(s.waits.WaitFor(own, &waitingv1.WaitForRequest{
			AgentId: "keeper", WorkItemId: itemID,
			RequestId: request, Reason: "a reply", Wake: waitingv1.Wake_WAKE_EXTERNAL,
		}))(t)
	}
	wait("w0")
	s.schedule()
	for i := range 3 {
		_, err = s.waits.DeliverTrigger(s.as(rpc.RoleService), &waitingv1.DeliverTriggerRequest{Token: trg.GetToken()})
		require.NoError(t, err)
		a := s.take("keeper")
		require.Equal(t, reviewTriggered, a.GetMessage().GetTick().GetReason())
		require.Len(t, a.GetContext().GetShownWaits(), 1)
		if i > 0 {
			wait(fmt.Sprint("w", i)) // the first turn only looks
		}
		s.finish(a)
		s.eventually(func() bool {
			q, err := s.works.GetWorkQueue(own, &workv1.GetWorkQueueRequest{AgentId: "keeper"})
			return err == nil && q.GetCounts().GetTriggeredBlocked() == 0
		})
		s.eventually(func() bool {
			return s.facts("keeper").GetLastDecision().GetAction() == agentv1.DecisionAction_DECISION_ACTION_IDLE
		})
		require.Equal(t, map[agentv1.TickReason]int{reviewTriggered: i + 1}, s.ticks("keeper"))
	}
}

// A due reminder wakes an idle agent once; the item stays as it was (SPEC P5).
func TestP5_AReminderIsGivenOnce(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	own := planetest.AsAgent(t.Context(), "keeper")
	itemID, why := s.create("keeper", "ship"), "no key"
	must.Value(s.works.UpdateWorkItem(own, &workv1.UpdateWorkItemRequest{
		AgentId: "keeper", WorkItemId: itemID, BlockedBy: &why, RecheckAt: timestamppb.New(epoch.Add(time.Hour)),
	}))(t)
	s.schedule()
	s.eventually(func() bool {
		return s.facts("keeper").GetLastDecision().GetAction() == agentv1.DecisionAction_DECISION_ACTION_IDLE
	})
	require.Empty(t, s.ticks("keeper"))
	s.clk.Advance(time.Hour)
	a := s.take("keeper")
	require.Equal(t, recheck, a.GetMessage().GetTick().GetReason())
	s.eventually(func() bool {
		it, err := s.works.GetWorkItem(own, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: itemID})
		return err == nil && it.GetWorkItem().GetRecheckConsumedAt() != nil && it.GetWorkItem().GetBlockedBy() == why
	})
	s.finish(a)
	s.eventually(func() bool {
		return s.facts("keeper").GetLastDecision().GetAction() == agentv1.DecisionAction_DECISION_ACTION_IDLE
	})
	require.Equal(t, map[agentv1.TickReason]int{recheck: 1}, s.ticks("keeper"))
}

// Blocked work gets no tick, and what is runnable beside it does.
func TestD5_ABlockedItemStarvesNoOther(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	own := planetest.AsAgent(t.Context(), "keeper")
	itemID, why := s.create("keeper", "stuck"), "no key"
	pick := func(id string) {
		must.Value(s.works.PickWorkItem(own, &workv1.PickWorkItemRequest{
			AgentId: "keeper", WorkItemId: id, Reason: "look",
		}))(t)
	}
	must.Value(s.works.UpdateWorkItem(own, &workv1.UpdateWorkItemRequest{
		AgentId: "keeper", WorkItemId: itemID, BlockedBy: &why,
	}))(t)
	pick(itemID)
	s.schedule()
	s.eventually(func() bool { return s.facts("keeper").GetLastDecision().GetReason() == "all_waiting" })
	require.Empty(t, s.ticks("keeper"))
	next := s.create("keeper", "next")
	a := s.take("keeper")
	require.Equal(t, pickQueued, a.GetMessage().GetTick().GetReason())
	pick(next)
	s.finish(a)
	require.Equal(t, continueCurrent, s.take("keeper").GetMessage().GetTick().GetReason())
	it := must.Value(s.works.GetWorkItem(own, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: next}))(t)
	require.True(t, it.GetWorkItem().GetIsCurrent(), "the agent's focus is the agent's (SPEC D3)")
}

// A look that failed is repeated soon, without an event and before the sweep.
func TestD1_AFailedLookIsRepeated(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	s.schedule()
	s.eventually(func() bool { return s.facts("keeper").GetLastDecision().GetReason() == "no_work_items" })
	s.workDown.Store(true)
	s.create("keeper", "ship")
	s.eventually(func() bool { return s.refused.Load() > 0 })
	s.workDown.Store(false)
	s.eventually(func() bool {
		s.clk.Advance(time.Second)
		return s.facts("keeper").GetTickPending()
	})
}

func TestX15_ExplainIsForWhoMaySee(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	sc := s.schedule()
	_, err := sc.Explain(planetest.AsAgent(t.Context(), "other"), &schedulerv1.ExplainRequest{AgentId: "keeper"})
	require.ErrorIs(t, err, fault.PermissionDenied)
	_, err = sc.Explain(s.as(rpc.RoleOperator), &schedulerv1.ExplainRequest{AgentId: "No Name"})
	require.ErrorIs(t, err, fault.InvalidArgument)
	must.Refuse(sc.Explain(s.as(rpc.RoleOperator), &schedulerv1.ExplainRequest{AgentId: "nobody"}))(t, fault.NotFound)
	before := s.facts("keeper").GetFactsRevision()
	e := must.Value(sc.Explain(s.as(rpc.RoleOperator), &schedulerv1.ExplainRequest{AgentId: "keeper"}))(t)
	require.Equal(t, "no_work_items", e.GetVerdict().GetReason())
	require.GreaterOrEqual(t, s.facts("keeper").GetFactsRevision(), before, "explaining changes nothing")
}

// A wait of the agent itself is nobody's item, but it is why the agent sits
// still, and Explain says so (SPEC D6, P1).
func TestD6_ExplainNamesTheAgentsOwnWait(t *testing.T) {
	s := newSite(t)
	s.spawn("keeper")
	sc := s.schedule()
	explain := func() (string, map[string]string) {
		e := must.Value(sc.Explain(s.as(rpc.RoleOperator), &schedulerv1.ExplainRequest{AgentId: "keeper"}))(t)
		facts := map[string]string{}
		for _, f := range e.GetFacts() {
			facts[f.GetName()] = f.GetValue()
		}
		return e.GetVerdict().GetExplanation(), facts
	}
	said, facts := explain()
	require.Equal(t, "idle: there are no work items and no messages", said)
	require.Equal(t, "0", facts["own_waits"])
	must.Value(s.waits.WaitFor(s.as(rpc.RoleOperator), &waitingv1.WaitForRequest{
		AgentId: "keeper", Wake: waitingv1.Wake_WAKE_EXTERNAL, Reason: "the bank's answer",
	}))(t)
	// A registered interest stops nothing, so it is no reason to sit still.
	_, err := s.waits.CreateWait(s.as(rpc.RoleOperator), &waitingv1.CreateWaitRequest{
		AgentId: "keeper", Source: "post",
	})
	require.NoError(t, err)
	said, facts = explain()
	require.Equal(t, "idle: there are no work items and no messages; the agent itself waits for any trigger of its "+
		"own, since just now: the bank's answer", said)
	require.Equal(t, "1", facts["own_waits"])
}
