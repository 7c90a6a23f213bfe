package continuity

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/tests/planes"
)

// request returns the id of a new request.
func (l *life) request() string {
	l.ids++
	return fmt.Sprint("request-", l.ids)
}

// operator makes a call as an operator.
func (l *life) operator(do func(ctx context.Context) error) {
	l.t.Helper()
	l.call(func(ctx context.Context) error { return do(planetest.As(ctx, rpc.RoleOperator)) })
}

// say sends an operator's message.
func (l *life) say(text string) { l.enqueue(&agentv1.EnqueueMessageRequest{Text: text}) }

// interject sends an operator's message that a turn takes while it runs.
func (l *life) interject(text string) {
	l.enqueue(&agentv1.EnqueueMessageRequest{Text: text, Priority: agentv1.Priority_PRIORITY_INTERJECT})
}

func (l *life) enqueue(req *agentv1.EnqueueMessageRequest) {
	l.t.Helper()
	l.note("--- operator: %s", req.GetText())
	req.AgentId, req.RequestId = keeper, l.request()
	l.operator(func(ctx context.Context) error { return must.Err(l.w.Agents().EnqueueMessage(ctx, req)) })
}

// create makes an item of the agent, as an operator does.
func (l *life) create(objective string) {
	l.t.Helper()
	req := &workv1.CreateWorkItemRequest{
		AgentId: keeper, RequestId: l.request(), Objective: objective,
		PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY, Plan: plan,
	}
	l.operator(func(ctx context.Context) error { return must.Err(l.w.Items().CreateWorkItem(ctx, req)) })
	l.w.Clock.Advance(time.Second) // the order of items is that of their creation
}

// plan is the plan of every item of an operator.
const plan = `# How

1. Look at what is there, and write down what differs from the objective.
2. Ask the operator where a decision is theirs; wait for the answer, do other work meanwhile.
3. Make the change in small steps, each with its test, and record each as a todo.
4. Run the checks. What fails becomes a todo of its own.
5. Report what was done, how it was verified, and what is left.
`

// post delivers a body to the trigger with a description. Its address is made anew for this: the
// agent that had it may have lost it.
func (l *life) post(description, body string) {
	l.t.Helper()
	var triggers []*waitingv1.Trigger
	l.operator(func(ctx context.Context) error {
		r, err := l.w.Waits().ListExternalTriggers(ctx, &waitingv1.ListExternalTriggersRequest{AgentId: keeper})
		triggers = r.GetTriggers()
		return err
	})
	id := ""
	for _, t := range triggers {
		if t.GetDescription() == description {
			id = t.GetTriggerId()
		}
	}
	require.NotEmpty(l.t, id, "no trigger %q", description)
	rotate, deliver, token := l.request(), l.request(), ""
	l.operator(func(ctx context.Context) error {
		r, err := l.w.Waits().RotateExternalTrigger(ctx, &waitingv1.RotateExternalTriggerRequest{
			AgentId: keeper, RequestId: rotate, TriggerId: id,
		})
		token = r.GetToken()
		return err
	})
	l.note("--- %s: %s", description, body)
	l.call(func(ctx context.Context) error {
		return must.Err(l.w.Waits().DeliverTrigger(planetest.As(ctx, rpc.RoleService), &waitingv1.DeliverTriggerRequest{
			Token: token, RequestId: deliver, ContentType: "text/plain", Body: []byte(body),
		}))
	})
}

// await returns a command that waits for a file, and what it does then.
func await(file, then string) string {
	return fmt.Sprintf("until [ -e %s ]; do sleep 0.01; done; %s", file, then)
}

var awaitedFile = regexp.MustCompile(`until \[ -e (\S+) \]`)

// awaited returns the file that a command waits for, "" for none.
func awaited(cmd string) string {
	if m := awaitedFile.FindStringSubmatch(cmd); m != nil {
		return m[1]
	}
	return ""
}

// release lets the commands go on that wait for a file.
func (l *life) release(file string) {
	l.note("--- %s is there", file)
	require.NoError(l.t, os.WriteFile(filepath.Join(l.dir, file), nil, 0o600))
	l.quiet()
}

// lines returns the lines of a file that commands wrote.
func (l *life) lines(file string) []string {
	raw, err := os.ReadFile(filepath.Join(l.dir, file))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
}

// items returns all work items of the agents.
func (l *life) items() (all []*workv1.WorkItem) {
	for _, agent := range l.agents() {
		l.operator(func(ctx context.Context) error {
			r, err := l.w.Items().ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
				AgentId: agent, PageSize: 500, IncludeTodoList: true,
			})
			all = append(all, r.GetWorkItems()...)
			return err
		})
	}
	return all
}

// item returns the item with an objective.
func (l *life) item(objective string) *workv1.WorkItem {
	l.t.Helper()
	for _, it := range l.items() {
		if it.GetObjective() == objective {
			return it
		}
	}
	require.FailNow(l.t, "no work item", objective)
	return nil
}

// completed requires that the items with these objectives are completed, and all others open.
func (l *life) completed(objectives ...string) {
	l.t.Helper()
	var got []string
	for _, it := range l.items() {
		if it.GetCompletedAt() != nil {
			got = append(got, it.GetObjective())
		}
	}
	require.ElementsMatch(l.t, objectives, got)
}

// reported requires the report of a completed item.
func (l *life) reported(objective, report string) {
	l.t.Helper()
	require.Equal(l.t, report, l.item(objective).GetResultSummary())
}

func (l *life) agents() (ids []string) {
	l.operator(func(ctx context.Context) error {
		r, err := l.w.Agents().ListAgents(ctx, &agentv1.ListAgentsRequest{PageSize: 500})
		ids = nil
		for _, a := range r.GetAgents() {
			ids = append(ids, a.GetAgentId())
		}
		return err
	})
	return ids
}

func (l *life) tasks() (all []*taskv1.Task) {
	for _, agent := range l.agents() {
		l.operator(func(ctx context.Context) error {
			r, err := l.w.Tasks().ListTasks(ctx, &taskv1.ListTasksRequest{
				AgentId: agent, PageSize: 500, IncludeTerminal: true,
			})
			all = append(all, r.GetTasks()...)
			return err
		})
	}
	return all
}

// said returns what the agent said, oldest first.
func (l *life) said() (texts []string) {
	l.operator(func(ctx context.Context) error {
		r, err := l.w.Agents().ListConversation(ctx, &agentv1.ListConversationRequest{AgentId: keeper, PageSize: 500})
		texts = nil
		for _, u := range r.GetUtterances() {
			if u.GetSpeaker() == agentv1.Speaker_SPEAKER_AGENT {
				texts = append([]string{u.GetText()}, texts...)
			}
		}
		return err
	})
	return texts
}

// verdict returns why the agent stands still.
func (l *life) verdict() (v *schedulerv1.Verdict) {
	l.operator(func(ctx context.Context) error {
		r, err := l.w.Verdicts().Explain(ctx, &schedulerv1.ExplainRequest{AgentId: keeper})
		v = r.GetVerdict()
		return err
	})
	return v
}

// nothingTwice requires that no call took effect twice: in a scenario all objectives, commands,
// descriptions and mails differ.
func (l *life) nothingTwice() {
	l.t.Helper()
	seen := map[string]bool{}
	once := func(kind, text string) {
		require.False(l.t, seen[kind+text], "twice: %s %s", kind, text)
		seen[kind+text] = true
	}
	for _, it := range l.items() {
		once("work item", it.GetAgentId()+it.GetObjective())
	}
	for _, t := range l.tasks() {
		if t.GetState() == taskv1.TaskState_TASK_STATE_INTERRUPTED {
			continue // the agent was told, and may have looked and begun anew
		}
		once(t.GetKind().String(), t.GetAgentId()+t.GetCommand().GetCmd()+t.GetLabel())
	}
	for _, m := range l.mails {
		once("mail", m)
	}
	for _, agent := range l.agents() {
		var timers *waitingv1.ListTimersResponse
		var triggers *waitingv1.ListExternalTriggersResponse
		l.operator(func(ctx context.Context) (err error) {
			timers, err = l.w.Waits().ListTimers(ctx, &waitingv1.ListTimersRequest{
				AgentId: agent, PageSize: 500, IncludeEnded: true,
			})
			if err == nil {
				triggers, err = l.w.Waits().ListExternalTriggers(ctx, &waitingv1.ListExternalTriggersRequest{
					AgentId: agent, PageSize: 500, IncludeRevoked: true,
				})
			}
			return err
		})
		for _, t := range timers.GetTimers() {
			once("timer", agent+t.GetDescription())
		}
		for _, t := range triggers.GetTriggers() {
			once("trigger", agent+t.GetDescription())
		}
	}
}

// hour lets an hour pass.
func hour(l *life) { l.pass(time.Hour) }

// same requires that two values are the same.
func same[T any](l *life, want, got T) {
	l.t.Helper()
	require.Equal(l.t, want, got)
}

// answer sends an operator's message about an item.
func (l *life) answer(objective, text string) {
	l.t.Helper()
	l.enqueue(&agentv1.EnqueueMessageRequest{Text: text, WorkItemId: l.item(objective).GetWorkItemId()})
}

// bounce stops the server in order, and starts it again.
func bounce(l *life) {
	l.note("--- the server is restarted")
	l.outage.pause(true)
	defer l.outage.pause(false)
	require.NoError(l.t, l.w.Down())
	require.NoError(l.t, l.w.Up())
	l.connected()
}

// order requires that the agent said these texts, in this order, whatever else it
// said.
func (l *life) order(texts ...string) {
	l.t.Helper()
	var got []string
	for _, said := range l.said() {
		for _, text := range texts {
			if said == text {
				got = append(got, said)
			}
		}
	}
	// A reply that was cut off before its calls ran was said all the same.
	same(l, texts, slices.Compact(got))
}

// pause pauses the agent or lets it go on.
func (l *life) pause(on bool) {
	id := l.request()
	l.operator(func(ctx context.Context) (err error) {
		if on {
			_, err = l.w.Agents().PauseAgent(ctx, &agentv1.PauseAgentRequest{AgentId: keeper, RequestId: id})
		} else {
			_, err = l.w.Agents().ResumeAgent(ctx, &agentv1.ResumeAgentRequest{AgentId: keeper, RequestId: id})
		}
		return err
	})
}

// at returns a time of the scenario as text.
func at(after time.Duration) string { return planes.Epoch.Add(after).Format(time.RFC3339) }

// change replaces an item's objective, as an operator does.
func (l *life) change(objective, to string) {
	l.t.Helper()
	req := &workv1.UpdateWorkItemRequest{AgentId: keeper, RequestId: l.request(), WorkItemId: l.item(objective).
		GetWorkItemId(), Objective: &to}
	l.operator(func(ctx context.Context) error { return must.Err(l.w.Items().UpdateWorkItem(ctx, req)) })
}

// open requires that an item is not completed.
func (l *life) open(objective string) {
	l.t.Helper()
	require.Nil(l.t, l.item(objective).GetCompletedAt())
}

// stalled requires that the agent stands still because it got nowhere.
func (l *life) stalled() {
	l.t.Helper()
	require.Equal(l.t, "no_progress", l.verdict().GetReason())
}

// abort ends the run that goes on.
func (l *life) abort() {
	l.note("--- operator: abort")
	id := l.request()
	l.operator(func(ctx context.Context) error {
		return must.Err(l.w.Agents().AbortRun(ctx, &agentv1.AbortRunRequest{AgentId: keeper, RequestId: id}))
	})
}
