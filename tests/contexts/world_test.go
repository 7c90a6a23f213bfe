package contexts

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/dev"
)

// world is a server with one agent, and what the outside knows of it.
type world struct {
	*dev.Server
	t     *testing.T
	agent string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Server: dev.Start(t), t: t, agent: "keeper"}
	must.Value(w.Agents.SpawnAgent(w.ctx(), &agentv1.SpawnAgentRequest{
		AgentId: w.agent, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	return w
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	return ctx
}

// say sends an operator's message.
func (w *world) say(text string) {
	w.t.Helper()
	must.Value(w.Agents.EnqueueMessage(w.ctx(), &agentv1.EnqueueMessageRequest{AgentId: w.agent, Text: text}))(w.t)
}

func (w *world) work() workv1.WorkServiceClient { return workv1.NewWorkServiceClient(w.Conn()) }

// plan is the plan of every item.
const plan = `# How

1. Look at what is there, and write down what differs from the objective.
2. Ask the operator where a decision is theirs; wait for the answer, do other work meanwhile.
3. Make the change in small steps, each with its test, and record each as a todo.
4. Run the checks. What fails becomes a todo of its own.
5. Report what was done, how it was verified, and what is left.
`

// create makes an item as an operator does.
func (w *world) create(objective string) string {
	w.t.Helper()
	return must.Value(w.work().CreateWorkItem(w.ctx(), &workv1.CreateWorkItemRequest{
		AgentId: w.agent, Objective: objective, PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY, Plan: plan,
	}))(w.t).GetWorkItem().GetWorkItemId()
}

// item reads an item.
func (w *world) item(id string) *workv1.WorkItem {
	w.t.Helper()
	r := must.Value(w.work().GetWorkItem(w.ctx(), &workv1.GetWorkItemRequest{AgentId: w.agent, WorkItemId: id}))(w.t)
	return r.GetWorkItem()
}

// explain returns the scheduler's verdict.
func (w *world) explain() *schedulerv1.Verdict {
	w.t.Helper()
	return must.Value(schedulerv1.NewSchedulerServiceClient(w.Conn()).Explain(w.ctx(), &schedulerv1.ExplainRequest{
		AgentId: w.agent,
	}))(w.t).GetVerdict()
}

// post calls a trigger's address with a body.
func (w *world) post(url, body string) {
	w.t.Helper()
	req := must.Value(http.NewRequestWithContext(w.ctx(), http.MethodPost, w.URL()+url[strings.Index(url, "/v1/"):],
		strings.NewReader(body)))(w.t)
	resp := must.Value(http.DefaultClient.Do(req))(w.t)
	require.NoError(w.t, resp.Body.Close())
	require.Less(w.t, resp.StatusCode, 300)
}

// turn is a turn as its actor sees it.
type turn struct {
	*world
	text   string
	record *agentv1.Turn
	rounds int32
}

// next takes the next turn.
func (w *world) next() *turn {
	w.t.Helper()
	got := w.tryNext(20 * time.Second)
	require.NotNil(w.t, got, "no turn: %v", w.explain())
	return got
}

// nextWith takes turns until one's message has a text: a tick may have been queued before.
func (w *world) nextWith(text string) *turn {
	w.t.Helper()
	for range 5 {
		next := w.next()
		if strings.Contains(next.section("Message ("), text) {
			return next
		}
		next.finish()
	}
	require.FailNow(w.t, "no turn with the message", text)
	return nil
}

// tryNext takes the next turn, or returns nil if there is none within a time.
func (w *world) tryNext(wait time.Duration) *turn {
	w.t.Helper()
	a := must.Value(w.Agents.AcquireTurn(w.ctx(), &agentv1.AcquireTurnRequest{
		AgentIds: []string{w.agent},
		Wait:     durationpb.New(wait),
	}))(w.t)
	if a.GetPending() {
		return nil
	}
	return &turn{world: w, text: a.GetContext().GetText(), record: a.GetTurn()}
}

// call is a tool call.
func call(name string, args map[string]any) *agentv1.ToolCall {
	s, err := structpb.NewStruct(args)
	if err != nil {
		panic(err)
	}
	return &agentv1.ToolCall{Name: name, Arguments: s}
}

// round submits a reply and returns the results of its calls.
func (t *turn) round(text string, calls ...*agentv1.ToolCall) *agentv1.SubmitRoundResponse {
	t.t.Helper()
	r := must.Value(t.Agents.SubmitRound(t.ctx(), &agentv1.SubmitRoundRequest{
		AgentId: t.agent, TurnId: t.record.GetTurnId(), RunId: t.record.GetRunId(), RoundIndex: t.rounds, Text: text,
		ToolCalls: calls,
	}))(t.t)
	t.rounds++
	return r
}

// must submits a round whose calls must succeed.
func (t *turn) must(text string, calls ...*agentv1.ToolCall) *agentv1.SubmitRoundResponse {
	t.t.Helper()
	r := t.round(text, calls...)
	for _, c := range r.GetToolResults() {
		require.Equal(t.t, agentv1.ToolStatus_TOOL_STATUS_SUCCESS, c.GetStatus(), c.GetSummaryText())
	}
	return r
}

// finish ends the turn in order.
func (t *turn) finish() { t.end(agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED) }

func (t *turn) end(how agentv1.TurnOutcome) {
	t.t.Helper()
	must.Value(t.Agents.FinishTurn(t.ctx(), &agentv1.FinishTurnRequest{
		AgentId: t.agent, TurnId: t.record.GetTurnId(), RunId: t.record.GetRunId(), Outcome: how,
	}))(t.t)
}

// shows requires that the context has every part.
func (t *turn) shows(parts ...string) *turn {
	t.t.Helper()
	for _, part := range parts {
		require.Contains(t.t, t.text, part)
	}
	return t
}

var itemIDs = regexp.MustCompile(`wi_[0-9a-z]+`)

// section returns a part of the context by its heading, "" if it is not there.
func (t *turn) section(title string) string {
	_, after, found := strings.Cut(t.text, "\n## "+title)
	if !found {
		return ""
	}
	if i := strings.Index(after, "\n## "); i >= 0 {
		after = after[:i+1]
	}
	return after
}

// about returns the id of the work item of the turn, as the context says, "" for none.
func (t *turn) about() string { return itemIDs.FindString(t.section("Work item of this turn")) }

// field returns a string field of a result, by its path.
func field(r *agentv1.ToolResult, path ...string) string {
	s := r.GetResult()
	for _, name := range path[:len(path)-1] {
		s = s.GetFields()[name].GetStructValue()
	}
	return s.GetFields()[path[len(path)-1]].GetStringValue()
}

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func quoted(s string) string { return fmt.Sprintf("> %s\n", s) }
