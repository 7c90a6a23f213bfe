package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/agent/prompt"
)

// GetContext shows the open turn's message, the item in focus and what was done
// for it, at the work plane's revision, and counts nothing as seen (SPEC C1, C2, X11).
func TestC1_GetContext(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{Revision: 7, Current: &workv1.WorkItem{
				WorkItemId: "wi_1",
				Objective:  "ship it",
			}}, nil
		}
	})
	r.on("PickWorkItem", func(context.Context, proto.Message) (proto.Message, error) {
		return &workv1.PickWorkItemResponse{WorkItem: &workv1.WorkItem{WorkItemId: "wi_1"}}, nil
	})
	r.send("keeper", "hello", normal)
	a := r.take("keeper")
	r.submit(a, 0, "I look around", use("PickWorkItem", "work_item_id", "wi_1", "reason", "it is urgent"))
	r.submit(a, 1, "I do nothing about it")
	before := len(r.events())
	get := func(budget int32) (*agentv1.ContextProjection, error) {
		resp, err := r.service.GetContext(r.operator(), &agentv1.GetContextRequest{
			AgentId: "keeper", BudgetTokens: budget,
		})
		return resp.GetContext(), err
	}
	c := must.Value(get(0))(t)
	require.EqualValues(t, 7, c.GetWorkRevision())
	require.EqualValues(t, prompt.DefaultBudget, c.GetBudgetTokens())
	for _, want := range []string{
		"> hello", "Objective: ship it", "I look around", "I do nothing about it",
		"decision: picked wi_1, it is urgent",
	} {
		require.Contains(t, c.GetText(), want)
	}
	require.Less(t, strings.Index(c.GetText(), "> I look around"), strings.Index(c.GetText(), "> I do nothing"),
		"the conversation is in order")
	var names []string
	for _, s := range c.GetSections() {
		names = append(names, s.GetName())
	}
	require.Equal(t, []string{
		"guidance", "agent", "current_item", "conversation", "notes", "state", "trace",
		"message",
	}, names)
	require.Len(t, r.events(), before)

	for budget, reason := range map[int32]error{
		-1: fault.LimitExceeded, 511: fault.LimitExceeded, 512: nil,
		200_000: nil, 200_001: fault.LimitExceeded,
	} {
		must.Refuse(get(budget))(t, reason, "%d", budget)
	}
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{
				Current: &workv1.WorkItem{WorkItemId: "wi_1", Objective: strings.Repeat("long ", 1000)},
			}, nil
		}
	})
	must.Refuse(get(512))(t, fault.BaselineOverBudget)
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{
				Current: &workv1.WorkItem{WorkItemId: "wi_1", Objective: strings.Repeat("long ", 8000)},
			}, nil
		}
	})
	must.Refuse(get(prompt.DefaultBudget))(t, fault.BaselineOverBudget)
	c = must.Value(get(0))(t, "who names no budget sees what a turn would be shown")
	require.Greater(t, c.GetBudgetTokens(), int32(prompt.DefaultBudget))
	_, err := get(512)
	var needed int32
	_, _ = fmt.Sscan(fault.From(err).Metadata()["needed"], &needed)
	must.Value(get(needed))(t, "what it says is needed is enough")
	must.Refuse(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "nobody"}))(t, fault.NotFound)
}

// An orchestrator is shown how its boards stand, in its turns and by GetContext;
// a child has none, and a board plane that is away holds nobody back (S2-464,
// S2-465, SPEC D5).
func TestC1_AnOrchestratorSeesItsBoards(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	var asked []string
	budget := int32(0)
	r.others.set(func() {
		r.others.boards = func(req *boardv1.GetSummaryRequest) (*boardv1.GetSummaryResponse, error) {
			asked = append(asked, req.GetSessionId())
			budget += req.GetTokenBudget()
			return &boardv1.GetSummaryResponse{Text: "## Boards\n- build [running] of " + req.GetSessionId() + "\n"},
				nil
		}
	})
	child := r.delegate(r.operator(), "one", "do it").GetAgentId()
	require.NotContains(t, r.take(child).GetContext().GetText(), "boards")
	r.send("keeper", "go", normal)
	a := r.take("keeper")
	require.Contains(t, a.GetContext().GetText(), "\n## Boards\n- build [running] of keeper\n")
	got := func() *agentv1.ContextProjection {
		resp := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "keeper"}))(t)
		return resp.GetContext()
	}
	require.Equal(t, a.GetContext().GetText(), got().GetText())
	require.NotContains(t, asked, child)
	require.Zero(t, budget, "the budget is the board plane's setting")

	r.others.set(func() {
		r.others.boards = func(*boardv1.GetSummaryRequest) (*boardv1.GetSummaryResponse, error) {
			return nil, fault.NotReady.New("away")
		}
	})
	sections := got().GetSections()
	last := sections[len(sections)-3] // before the children and the message
	require.Equal(t, "boards", last.GetName())
	require.Equal(t, agentv1.SectionOutcome_SECTION_OUTCOME_OMITTED, last.GetOutcome())
	r.finish(a, done)
	r.send("keeper", "and again", normal)
	require.Equal(t, "and again", r.take("keeper").GetMessage().GetText())
}

// Outside of a turn there is no message, so none was left out.
func TestC1_NoMessageIsNotAnOmission(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	resp := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: "keeper"}))(t)
	for _, s := range resp.GetContext().GetSections() {
		require.NotEqual(t, "message", s.GetName())
	}
}

// Triggers of the agent itself are shown in the turn that they caused, and count as
// consumed when that turn completes (SPEC P2).
func TestP2_TheAgentsOwnTriggersAreShown(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	r.others.set(func() {
		r.others.waits = []*waitingv1.Wait{
			{WaitId: "wt_own", Reason: "the build", TriggerCount: 3, ConsumedCount: 1, Triggered: true},
			{WaitId: "wt_item", WorkItemId: "wi_1", TriggerCount: 1, Triggered: true},
			{WaitId: "wt_quiet", TriggerCount: 1, ConsumedCount: 1},
		}
	})
	_, err := r.service.OfferDecision(r.scheduler(), &agentv1.OfferDecisionRequest{
		AgentId: "keeper", FactsRevision: r.facts("keeper").GetFactsRevision(),
		Decision: &agentv1.Decision{
			Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
			TickReason: agentv1.TickReason_TICK_REASON_WAKE_HINT, Reason: "agent_triggered",
		},
	})
	require.NoError(t, err)
	got := r.take("keeper")
	require.Contains(t, got.GetContext().GetText(), "Triggered 2 time(s): the build")
	require.Len(t, got.GetTurn().GetShownWaits(), 1)
	require.Equal(t, "wt_own", got.GetTurn().GetShownWaits()[0].GetWaitId())
	require.EqualValues(t, 3, got.GetTurn().GetShownWaits()[0].GetTriggerCount())
}

// A10: a forked child sees the view of its parent's current item as it was when
// it was spawned, in every turn and after a restart; a fresh one its message and
// nothing else.
func TestA10_ForkAndFresh(t *testing.T) {
	r := family(t)
	objective := "ship the parser"
	r.others.set(func() {
		r.others.item = func() *workv1.WorkItem {
			return &workv1.WorkItem{
				WorkItemId: "wi_focus", Objective: objective,
				State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN, TodoList: []*workv1.TodoItem{
					{Text: "write the tests"},
				},
			}
		}
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{Current: r.others.item()}, nil
		}
	})
	spawn := func(requestID string, c agentv1.Context) *agentv1.SpawnAgentResponse {
		return must.Value(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
			ParentAgentId: "keeper", InitialMessage: "look at the lexer", RequestId: requestID, Context: c,
		}))(t)
	}
	forked, fresh := spawn("1", agentv1.Context_CONTEXT_FORK), spawn("2", agentv1.Context_CONTEXT_FRESH)
	require.Equal(t, agentv1.Context_CONTEXT_FORK, forked.GetAgent().GetContext())
	r.others.set(func() {
		objective = "something else by now"
		r.others.queue = nil
	})
	require.Equal(t, forked.GetAgentId(), spawn("1", agentv1.Context_CONTEXT_FORK).GetAgentId())
	for range 2 {
		a := r.take(forked.GetAgentId())
		require.Contains(t, a.GetContext().GetText(), "ship the parser")
		require.Contains(t, a.GetContext().GetText(), "write the tests")
		require.Contains(t, a.GetContext().GetText(), "> look at the lexer")
		require.NotContains(t, a.GetContext().GetText(), "something else")
		require.Equal(t, "look at the lexer", a.GetMessage().GetText(), "the message is the caller's alone")
		r.finish(a, retryable)
		r.restart()
	}
	b := r.take(fresh.GetAgentId())
	require.Contains(t, b.GetContext().GetText(), "> look at the lexer")
	require.NotContains(t, b.GetContext().GetText(), "Inherited")
	require.NotContains(t, b.GetContext().GetText(), "parser")
	c := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: forked.GetAgentId()}))(t)
	require.Contains(t, c.GetContext().GetText(), "ship the parser")
}

// A10: a view that cannot be read is said before anything is written.
func TestA10_AViewThatCannotBeRead(t *testing.T) {
	r := family(t)
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) { return nil, fault.NotReady.New("starting") }
	})
	before := len(r.events())
	must.Refuse(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
		ParentAgentId: "keeper", InitialMessage: strings.Repeat("x", 10), Context: agentv1.Context_CONTEXT_FORK,
	}))(t, fault.NotReady)
	require.Len(t, r.events(), before)
}
