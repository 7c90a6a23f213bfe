package agent

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"quartet/pkg/clock"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/agent/lane"
	"quartet/services/agent/state"
)

// TestX7_RandomHistories runs random commands and checks that replaying the log
// gives the live state, that every message is in one place, and that an agent
// never has two open runs.
func TestX7_RandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &rig{
			t: t, clk: clock.NewFake(epoch), ids: &id.Sequence{}, journals: planetest.NewJournals(),
			others: &others{},
		}
		r.others.answer = map[string]func(context.Context, proto.Message) (proto.Message, error){
			"WaitFor": func(context.Context, proto.Message) (proto.Message, error) {
				return &waitingv1.WaitForResponse{}, nil
			},
		}
		r.up()
		defer r.down()
		h := &history{rig: r, rt: rt, agents: []string{"a", "b"}}
		for _, agentID := range h.agents {
			r.spawn(agentID)
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			h.step()
		}
		live, _, err := journal.View(context.Background(), r.service.engine.All()[0],
			func(s *state.State) (*state.State, error) { return s, nil })
		require.NoError(rt, err)
		replayed := state.NewState()
		for _, ev := range r.events() {
			require.NoError(rt, replayed.Apply(ev), "%s", ev.Type)
		}
		require.NoError(rt, journaltest.Same(live, replayed))
		for _, a := range live.Resident() {
			soundAgent(rt, live, a)
		}
		require.NoError(rt, journaltest.RoundTrip(live, state.NewState))
		r.checkPages()
	})
}

type history struct {
	*rig
	rt     *rapid.T
	agents []string
	turns  []*agentv1.AcquireTurnResponse
	n      int
}

// step does one random thing. Whether it is refused does not matter here.
func (h *history) step() {
	rt := h.rt
	h.n++
	h.clk.Advance(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(rt, "pause")))
	agentID := rapid.SampledFrom(h.agents).Draw(rt, "agent")
	operator, runner, service := planetest.As(context.Background(), rpc.RoleOperator),
		planetest.As(context.Background(), rpc.RoleRunner), planetest.As(context.Background(), rpc.RoleService)
	pick := func() *agentv1.Turn {
		if len(h.turns) == 0 {
			return &agentv1.Turn{}
		}
		return rapid.SampledFrom(h.turns).Draw(rt, "turn").GetTurn()
	}
	switch rapid.IntRange(0, 8).Draw(rt, "what") {
	case 0, 1:
		_, _ = h.service.EnqueueMessage(operator, &agentv1.EnqueueMessageRequest{
			AgentId: agentID, Text: "x", Priority: agentv1.Priority(rapid.Int32Range(0, 4).Draw(rt, "priority")),
		})
	case 2, 3:
		resp, err := h.service.AcquireTurn(runner, &agentv1.AcquireTurnRequest{
			Wait:      durationpb.New(0),
			RequestId: rapid.SampledFrom([]string{"", "r1", "r2", "r3"}).Draw(rt, "request"),
		})
		if err == nil && resp.GetTurn() != nil {
			h.turns = append(h.turns, resp)
		}
	case 4, 5:
		tn := pick()
		call := rapid.SampledFrom([]string{"CreateWorkItem", "WaitFor", "Nonsense"}).Draw(rt, "tool")
		req := &agentv1.SubmitRoundRequest{
			AgentId: tn.GetAgentId(), TurnId: tn.GetTurnId(), RunId: tn.GetRunId(), RoundIndex: rapid.Int32Range(0, 3).
					Draw(rt, "round"), ToolCalls: []*agentv1.ToolCall{use(call)},
			Text: rapid.SampledFrom([]string{"", "y"}).Draw(rt, "text"),
		}
		if rapid.Bool().Draw(rt, "sums up") {
			req.ConversationSummary = &agentv1.ConversationSummary{
				Text: "s", ThroughTurnId: rapid.SampledFrom([]string{"", pick().GetTurnId()}).Draw(rt, "through"),
			}
		}
		_, _ = h.service.SubmitRound(runner, req)
	case 6:
		tn := pick()
		_, _ = h.service.FinishTurn(runner, &agentv1.FinishTurnRequest{
			AgentId: tn.GetAgentId(), TurnId: tn.GetTurnId(),
			RunId: tn.GetRunId(), Outcome: agentv1.TurnOutcome(rapid.Int32Range(0, 4).Draw(rt, "outcome")),
		})
	case 7:
		ev := rapid.SampledFrom([]proto.Message{
			&taskv1.TaskCompleted{Task: &taskv1.Task{TaskId: fmt.Sprint("tsk_", h.n%4)}},
			&waitingv1.TimerFired{Timer: &waitingv1.Timer{TimerId: "tmr_1", FireCount: int64(h.n % 3)}},
			&waitingv1.TriggerDelivered{Trigger: &waitingv1.Trigger{TriggerId: "trg_1"}, WakeAgent: true},
		}).Draw(rt, "heard")
		h.hear(&journal.Event{Namespace: "acme", AgentID: agentID, Payload: ev})
	default:
		_, _ = h.service.OfferDecision(service, &agentv1.OfferDecisionRequest{
			AgentId: agentID, FactsRevision: h.facts(agentID).GetFactsRevision(),
			Decision: &agentv1.Decision{
				Action:     agentv1.DecisionAction_DECISION_ACTION_TICK,
				TickReason: agentv1.TickReason(rapid.Int32Range(1, 5).Draw(rt, "tick")),
			},
		})
	}
}

func ids(messages iter.Seq[*agentv1.Message]) []string {
	var out []string
	for m := range messages {
		out = append(out, m.GetMessageId())
	}
	return out
}

// soundAgent checks what must hold at any time.
func soundAgent(t require.TestingT, s *state.State, a *state.Agent) {
	inLane := map[string]bool{}
	for m := range a.Lane.Queued() {
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, m.GetState())
		require.False(t, inLane[m.GetMessageId()], "a message is in the lane once")
		inLane[m.GetMessageId()] = true
	}
	ticks := 0
	for _, id := range ids(slices.Values(a.Lane.Arrived(""))) {
		m := a.Lane.Get(id)
		require.Equal(t, m.GetState() == agentv1.MessageState_MESSAGE_STATE_QUEUED, inLane[id])
		require.LessOrEqual(t, m.GetAttempts(), int32(lane.MaxAttempts))
		if m.GetState() == agentv1.MessageState_MESSAGE_STATE_DEQUEUED {
			require.NotNil(t, a.OpenTurn)
			require.Equal(t, a.OpenTurn.Record.GetMessageId(), id)
		}
		if m.GetTick() != nil && (inLane[id] || m.GetState() == agentv1.MessageState_MESSAGE_STATE_DEQUEUED) {
			ticks++
			require.Equal(t, id, a.PendingTick)
		}
	}
	require.LessOrEqual(t, ticks, 1, "one pending tick per agent (SPEC D4)")
	if a.OpenTurn == nil {
		require.Empty(t, a.Record.GetCurrentRunId())
	} else {
		require.Equal(t, a.OpenTurn.Record.GetRunId(), a.Record.GetCurrentRunId())
	}
	ready := false
	if tree := s.Ready[a.Namespace]; tree != nil {
		n := 0
		tree.Ascend(func(r state.ReadyAgent) bool {
			if r.ID == a.Record.GetAgentId() {
				n++
				ready = true
			}
			return true
		})
		require.LessOrEqual(t, n, 1, "an agent is offered once")
	}
	require.Equal(t, a.CanTakeTurn(), ready)
}
