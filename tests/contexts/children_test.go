package contexts

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// as returns the world of another agent of the same server.
func (w *world) as(agent string) *world { return &world{Server: w.Server, t: w.t, agent: agent} }

// record reads the agent.
func (w *world) record() *agentv1.Agent {
	w.t.Helper()
	return must.Value(w.Agents.GetAgent(w.ctx(), &agentv1.GetAgentRequest{AgentId: w.agent}))(w.t).GetAgent()
}

// weak returns the reason of the agent's only wait.
func (w *world) weak() waitingv1.WeakReason {
	w.t.Helper()
	r := must.Value(waitingv1.NewWaitingServiceClient(w.Conn()).ListWaits(w.ctx(), &waitingv1.ListWaitsRequest{
		AgentId: w.agent,
	}))(w.t)
	require.Len(w.t, r.GetWaits(), 1)
	return r.GetWaits()[0].GetWeakReason()
}

// questions counts the messages about children's questions in a state.
func (w *world) questions(state agentv1.MessageState) (n int) {
	w.t.Helper()
	r := must.Value(w.Agents.ListMessages(w.ctx(), &agentv1.ListMessagesRequest{AgentId: w.agent, State: state}))(w.t)
	for _, m := range r.GetMessages() {
		if m.GetOrigin() == agentv1.Origin_ORIGIN_CHILD {
			n++
		}
	}
	return n
}

// delegate has the agent spawn a child for an item and wait for its result.
func (w *world) delegate(itemID, text string) (child *world, taskID string) {
	w.t.Helper()
	first := w.next()
	r := first.must("I hand it over.", call("PickWorkItem", map[string]any{"work_item_id": itemID}),
		call("SpawnAgent", map[string]any{"initial_message": text}))
	taskID = field(r.GetToolResults()[1], "task_handle", "task_id")
	first.must("I wait for it.", call("WaitFor", map[string]any{
		"reason": "the child paints it", "wake": "task_result",
		"resource": taskID,
	}))
	return w.as(field(r.GetToolResults()[1], "agent_id")), taskID
}

// ask has the agent ask something in an item of its own.
func (w *world) ask(itemID, question string) string {
	w.t.Helper()
	turn := w.next()
	if itemID == "" {
		r := turn.must("", call("CreateWorkItem", map[string]any{"objective": "paint the door"}))
		itemID = field(r.GetToolResults()[0], "work_item", "work_item_id")
	}
	turn.must("", call("PickWorkItem", map[string]any{"work_item_id": itemID}),
		call("WaitFor", map[string]any{"reason": question, "wake": "operator_input"}))
	return itemID
}

func answer(taskID, text string) *agentv1.ToolCall {
	return call("TaskInput", map[string]any{"task_id": taskID, "text": text})
}

// A child asks while its parent waits for its task. The parent is woken, is told what the child
// asks and how to answer, and answers; the child goes on, and its result ends the parent's wait.
// Until then everybody who looks at either sees who waits for whom (SPEC A14).
func TestA14_AChildAsksAndIsAnswered(t *testing.T) {
	w := newWorld(t)
	door := w.create("Have the door painted")
	child, taskID := w.delegate(door, "Paint the door; report its colour.")
	painted := child.ask("", "Which colour?")

	asked := w.nextWith("Which colour?")
	require.Equal(t, door, asked.about())
	require.Equal(t, agentv1.Binding_BINDING_MESSAGE, asked.record.GetBinding())
	asked.shows("Message (internal_followup, external_evidence)", child.agent, "TaskInput, task_id "+taskID)
	require.Contains(t, asked.section("Children that work for you"), fmt.Sprintf("- %s (task %s) waiting_operator: "+
		"Paint the door; report its colour.", child.agent, taskID))
	require.Contains(t, asked.section("Children that work for you"), quoted("Which colour?"))
	require.Len(t, w.item(door).GetWaits(), 1, "the wait for the task stays")
	asked.finish() // without an answer

	chain := fmt.Sprintf("waits for task %s, whose child %s asks: Which colour?", taskID, child.agent)
	require.Contains(t, w.explain().GetExplanation(), chain)
	require.Equal(t, agentv1.Posture_POSTURE_WAITING_TASK, w.record().GetPosture())
	require.Contains(t, w.record().GetPostureReason(), chain)
	require.Contains(t, child.explain().GetExplanation(), "waits for its supervisor keeper")
	require.Contains(t, child.record().GetPostureReason(), "waits for its supervisor keeper: Which colour?")
	require.Equal(t, waitingv1.WeakReason_WEAK_REASON_CHILD_ASKS, w.weak())
	require.Equal(t, waitingv1.WeakReason_WEAK_REASON_SUPERVISOR_MUST_ANSWER, child.weak())

	w.Down()
	w.Up()
	require.Equal(t, 1, w.questions(agentv1.MessageState_MESSAGE_STATE_UNSPECIFIED), "asked once")
	w.say("Red, of course.")
	told := w.nextWith("Red, of course.")
	told.shows(quoted("Which colour?"))
	told.must("I pass it on.", answer(taskID, "red"))
	told.finish()

	// The answer reaches the wait. It was the operator's, so it may instruct.
	heard := child.nextWith("red")
	require.Equal(t, painted, heard.about())
	require.Equal(t, agentv1.Binding_BINDING_WAIT, heard.record.GetBinding())
	heard.shows("Message (internal_followup, operator_instruction)", quoted("Which colour?"))
	heard.finish()

	// The parent answers the next question by itself: evidence, which ends the wait all the same.
	child.ask(painted, "One coat or two?")
	again := w.nextWith("One coat or two?")
	again.must("Two.", answer(taskID, "two"))
	again.must("I go on waiting.",
		call("WaitFor", map[string]any{"reason": "the child paints it", "wake": "task_result", "resource": taskID}))
	last := child.nextWith("two")
	last.shows("Message (internal_followup, external_evidence)", quoted("One coat or two?"))
	require.Equal(t, painted, last.about())
	last.must("", call("PickWorkItem", map[string]any{"work_item_id": painted}))
	last.must("The door is red.", call("CompleteWorkItem", map[string]any{"work_item_id": painted}))

	result := w.nextWith("The door is red.")
	require.Equal(t, door, result.about())
	require.Contains(t, result.section("Why this turn"), quoted("the child paints it"))
	require.Empty(t, result.section("Children that work for you"))
	require.Empty(t, w.item(door).GetWaits())
	require.Equal(t, 2, w.questions(agentv1.MessageState_MESSAGE_STATE_PROCESSED))
	result.finish()
}

// A parent that answers before it takes the message about the question is not asked again.
func TestA14_AnAnsweredQuestionIsNotAskedAgain(t *testing.T) {
	w := newWorld(t)
	child, taskID := w.delegate(w.create("Have the door painted"), "Paint the door.")
	w.say("How is the door?")
	busy := w.nextWith("How is the door?")
	painted := child.ask("", "Which colour?")
	require.Eventually(t, func() bool { return w.questions(agentv1.MessageState_MESSAGE_STATE_QUEUED) == 1 },
		time.Minute, 5*time.Millisecond)
	busy.must("It asks for the colour.", answer(taskID, "red"))
	busy.finish()
	require.Nil(t, w.tryNext(0), "the question is over: %v", w.explain())
	require.Equal(t, 1, w.questions(agentv1.MessageState_MESSAGE_STATE_DROPPED))
	require.Equal(t, painted, child.nextWith("red").about())
}

// A child waits for answers in two items. Its parent sees both questions with their ids, answers the
// second and then the first, each by its id, over a restart; each answer reaches its own item. An
// answer to a question that is over is refused with those that are open (SPEC A14.6).
func TestA14_AnAnswerReachesItsQuestion(t *testing.T) {
	w := newWorld(t)
	child, taskID := w.delegate(w.create("Have the house painted"), "Paint door and wall.")
	turn := child.next()
	r := turn.must("", call("CreateWorkItem", map[string]any{"objective": "paint the door"}),
		call("CreateWorkItem", map[string]any{"objective": "paint the wall"}))
	door, wall := field(r.GetToolResults()[0], "work_item", "work_item_id"), field(r.GetToolResults()[1], "work_item",
		"work_item_id")
	turn.must("", call("PickWorkItem", map[string]any{"work_item_id": door}),
		call("WaitFor", map[string]any{"reason": "Which colour has the door?", "wake": "operator_input"}))
	child.ask(wall, "Which colour has the wall?")

	asked := w.nextWith("the door?")
	asked.finish()
	asked = w.nextWith("the wall?")
	children := asked.section("Children that work for you")
	waitOf := func(question string) string {
		before, _, found := strings.Cut(children, quoted(question))
		require.True(t, found, children)
		ids := waitIDs.FindAllString(before, -1)
		return ids[len(ids)-1]
	}
	theDoor, theWall := waitOf("Which colour has the door?"), waitOf("Which colour has the wall?")
	require.Contains(t, asked.section("Message ("), "task_id "+taskID+", wait_id "+theWall)
	named := func(text, waitID string) *agentv1.ToolCall {
		return call("TaskInput", map[string]any{"task_id": taskID, "text": text, "wait_id": waitID})
	}
	asked.must("", named("white", theWall))
	w.Down()
	w.Up()
	refused := asked.round("", named("grey", theWall)).GetToolResults()[0]
	require.Equal(t, "invalid_argument", refused.GetError().GetKind())
	require.Contains(t, refused.GetError().GetMessage(), theDoor+" (Which colour has the door?)")
	asked.must("", named("red", theDoor))
	asked.finish()

	for text, item := range map[string]string{"white": wall, "red": door} {
		require.Eventually(t, func() bool { return len(child.item(item).GetWaits()) == 0 }, time.Minute,
			5*time.Millisecond, text)
	}
	for _, answer := range []struct{ text, question, item string }{
		{"white", "Which colour has the wall?", wall},
		{"red", "Which colour has the door?", door},
	} {
		heard := child.nextWith(answer.text)
		require.Equal(t, answer.item, heard.about())
		require.Equal(t, agentv1.Binding_BINDING_WAIT, heard.record.GetBinding())
		require.Contains(t, heard.section("Why this turn"), quoted(answer.question))
		heard.finish()
	}
}

var waitIDs = regexp.MustCompile(`wt_[0-9a-z]{26}`)
