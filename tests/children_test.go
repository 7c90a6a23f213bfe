package tests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/pbjson"
	"quartet/tests/load"
	"quartet/tests/proc"
)

var families = flag.Int("families", 6, "how often the children test has the parent delegate to three children, with "+
	"a kill each")

// jobs are what the three children are told, by how it ends.
var jobs = map[string]string{"report": "completed", "words": "completed", "fatal": "failed"}

// TestA12_ChildrenOverKillsAndAborts has a parent delegate to three children
// again and again, while two runners race for every turn, turns are aborted and
// the real server is killed at random moments. In the end every delegation has
// the end it should, once, for the item it was made for (SPEC A2, A3, A6, A7, A12, T8).
func TestA12_ChildrenOverKillsAndAborts(t *testing.T) {
	bin := binary(t)
	srv, err := proc.NewQuartet(bin, filepath.Join(t.TempDir(), "data"), "")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	require.NoError(t, srv.Start(ctx))
	t.Cleanup(func() { _ = srv.Kill() })
	conn, err := load.Dial(srv.GRPC)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })

	h := &household{
		t: t, ctx: ctx, agents: agentv1.NewAgentServiceClient(conn),
		tasks: taskv1.NewTaskServiceClient(conn), focusOf: map[string]string{},
	}
	_, err = h.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "lead", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	})
	require.NoError(t, err)
	aside, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	for i := range 2 {
		running.Go(func() { h.run(aside, fmt.Sprint("runner-", i)) })
	}
	running.Go(func() { h.shepherd(aside) })

	rng := random(t)
	for k := range *families {
		h.say(fmt.Sprint("delegate ", k))
		for range rng.IntN(6) {
			<-time.After(time.Duration(rng.IntN(40)) * time.Millisecond)
			h.abort()
		}
		<-time.After(time.Duration(rng.IntN(120)) * time.Millisecond)
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Start(ctx), "kill %d", k)
	}
	h.settle(*families)
	stop()
	running.Wait()
	h.audit(conn, *families)
}

// household is the parent, its children, and who works for them.
type household struct {
	t      *testing.T
	ctx    context.Context //nolint:containedctx // of the whole test
	agents agentv1.AgentServiceClient
	tasks  taskv1.TaskServiceClient

	mu      sync.Mutex
	spawned []string          // tasks that a runner was answered with
	focusOf map[string]string // by task: the item that was bound when it was spawned
	aborted int
}

func (h *household) say(text string) {
	h.t.Helper()
	_, err := load.Again(h.ctx, func(ctx context.Context) (*agentv1.EnqueueMessageResponse, error) {
		return h.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
			AgentId: "lead", Text: text,
			RequestId: text,
		})
	})
	require.NoError(h.t, err)
}

// abort cuts whatever turns are open short; the shepherd lets them go on.
func (h *household) abort() {
	l, err := h.agents.ListAgents(h.ctx, &agentv1.ListAgentsRequest{IncludePrivate: true})
	if err != nil {
		return
	}
	for _, a := range l.GetAgents() {
		if run := a.GetCurrentRunId(); run != "" {
			_, err := h.agents.AbortRun(h.ctx, &agentv1.AbortRunRequest{
				AgentId: a.GetAgentId(), RunId: run,
				RequestId: "abort-" + run,
			})
			if err == nil {
				h.mu.Lock()
				h.aborted++
				h.mu.Unlock()
			}
		}
	}
}

// run takes turns as a runner does, of whatever agent.
func (h *household) run(ctx context.Context, name string) {
	for n := 0; ctx.Err() == nil; n++ {
		req := &agentv1.AcquireTurnRequest{
			RequestId: fmt.Sprintf("%s-%d", name, n), RunnerId: name,
			Wait: durationpb.New(time.Second),
		}
		got, err := load.Again(ctx, func(ctx context.Context) (*agentv1.AcquireTurnResponse, error) {
			return h.agents.AcquireTurn(ctx, req)
		})
		if err != nil || got.GetTurn() == nil {
			continue
		}
		err = h.turn(ctx, got)
		if err != nil && !errors.Is(fault.From(err), fault.RunStale) && ctx.Err() == nil {
			h.t.Errorf("turn of %s: %v", got.GetTurn().GetAgentId(), err)
		}
	}
}

// turn is what the model would say.
func (h *household) turn(ctx context.Context, got *agentv1.AcquireTurnResponse) error {
	t, text := got.GetTurn(), got.GetMessage().GetText()
	outcome := agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED
	switch {
	case strings.HasPrefix(text, "delegate"):
		if err := h.delegate(ctx, t, text); err != nil {
			return err
		}
	case strings.HasPrefix(text, "report"):
		if ended, err := h.report(ctx, t, text); err != nil || ended {
			return err
		}
	case strings.HasPrefix(text, "words"):
		if _, err := h.round(ctx, t, 0, "the words of "+text); err != nil {
			return err
		}
	case strings.HasPrefix(text, "fatal"):
		outcome = agentv1.TurnOutcome_TURN_OUTCOME_FATAL
	}
	_, err := load.Again(ctx, func(ctx context.Context) (*agentv1.FinishTurnResponse, error) {
		return h.agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
			AgentId: t.GetAgentId(), TurnId: t.GetTurnId(),
			RunId: t.GetRunId(), Outcome: outcome,
		})
	})
	return err
}

// report creates an item, or takes the one that an aborted turn left, and completes
// it with a report.
func (h *household) report(ctx context.Context, t *agentv1.Turn, text string) (ended bool, err error) {
	first, err := h.round(ctx, t, 0, "", call("ListWorkItems", "filter", "open"))
	if err != nil {
		return false, err
	}
	index, item := int32(1), ""
	for _, it := range first.GetToolResults()[0].GetResult().GetFields()["work_items"].GetListValue().GetValues() {
		item = it.GetStructValue().GetFields()["work_item_id"].GetStringValue()
	}
	if item == "" {
		made, err := h.round(ctx, t, index, "", call("CreateWorkItem", "objective", text))
		if err != nil {
			return false, err
		}
		index, item = index+1, itemOf(made.GetToolResults()[0])
	}
	end, err := h.round(ctx, t, index, "the report of "+text, call("PickWorkItem", "work_item_id", item),
		call("CompleteWorkItem", "work_item_id", item))
	return end.GetTurnEnded(), err
}

// delegate makes an item, spawns three children for it, and turns to another one.
func (h *household) delegate(ctx context.Context, t *agentv1.Turn, text string) error {
	first, err := h.round(ctx, t, 0, "", call("CreateWorkItem", "objective", text),
		call("CreateWorkItem", "objective", "something else"))
	if err != nil {
		return err
	}
	item, other := itemOf(first.GetToolResults()[0]), itemOf(first.GetToolResults()[1])
	calls := []*agentv1.ToolCall{call("PickWorkItem", "work_item_id", item, "reason", "now")}
	for job := range jobs {
		calls = append(calls, call("SpawnAgent", "initial_message", job+" "+text))
	}
	calls = append(calls, call("PickWorkItem", "work_item_id", other, "reason", "meanwhile"),
		call("UpdateWorkItem", "work_item_id", other, "blocked_by", "nothing to do"),
		call("UpdateWorkItem", "work_item_id", item, "blocked_by", "the children"))
	second, err := h.round(ctx, t, 1, "delegating", calls...)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range second.GetToolResults() {
		if r.GetToolName() == "SpawnAgent" && r.GetStatus() == agentv1.ToolStatus_TOOL_STATUS_SUCCESS {
			task := r.GetResult().GetFields()["task_id"].GetStringValue()
			h.spawned = append(h.spawned, task)
			h.focusOf[task] = item
		}
	}
	return nil
}

func (h *household) round(ctx context.Context, t *agentv1.Turn, index int32, text string, calls ...*agentv1.ToolCall) (
	*agentv1.SubmitRoundResponse, error,
) {
	return load.Again(ctx, func(ctx context.Context) (*agentv1.SubmitRoundResponse, error) {
		return h.agents.SubmitRound(ctx, &agentv1.SubmitRoundRequest{
			AgentId: t.GetAgentId(), TurnId: t.GetTurnId(),
			RunId: t.GetRunId(), RoundIndex: index, Text: text, ToolCalls: calls,
		})
	})
}

func call(name string, args ...string) *agentv1.ToolCall {
	m := map[string]*structpb.Value{}
	for i := 0; i+1 < len(args); i += 2 {
		m[args[i]] = structpb.NewStringValue(args[i+1])
	}
	return &agentv1.ToolCall{Name: name, Arguments: &structpb.Struct{Fields: m}}
}

func itemOf(r *agentv1.ToolResult) string {
	return r.GetResult().GetFields()["work_item"].GetStructValue().GetFields()["work_item_id"].GetStringValue()
}

// shepherd lets paused agents go on. A child whose words were aborted is told
// them again by its supervisor.
func (h *household) shepherd(ctx context.Context) {
	for ctx.Err() == nil {
		l, err := h.agents.ListAgents(ctx, &agentv1.ListAgentsRequest{IncludePrivate: true, PageSize: 500})
		for _, a := range l.GetAgents() {
			if err != nil || a.GetControl() != agentv1.Control_CONTROL_PAUSED ||
				a.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_ACTIVE {
				continue
			}
			if a.GetDelegationId() != "" {
				d, err := h.agents.GetDelegation(ctx, &agentv1.GetDelegationRequest{
					AgentId: "lead", DelegationId: a.GetDelegationId(),
				})
				if err != nil {
					continue
				}
				_, err = h.tasks.SendTaskInput(ctx, &taskv1.SendTaskInputRequest{
					AgentId: "lead", TaskId: d.GetDelegation().GetTaskId(), Text: d.GetDelegation().GetLabel(),
					RequestId: "again-" + a.GetLastTurnId(),
				})
				if err != nil {
					continue
				}
			}
			_, _ = h.agents.ResumeAgent(ctx, &agentv1.ResumeAgentRequest{AgentId: a.GetAgentId()})
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// settle waits until every delegation has ended and its child is gone.
func (h *household) settle(families int) {
	h.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; {
		stands := h.unsettled()
		if stands == "" {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("%d families: %s", families, stands)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// unsettled returns what is not over yet.
func (h *household) unsettled() string {
	l, err := h.agents.ListAgents(h.ctx, &agentv1.ListAgentsRequest{IncludePrivate: true, PageSize: 500})
	if err != nil {
		return err.Error()
	}
	for _, a := range l.GetAgents() {
		if a.GetAgentId() != "lead" {
			one, err := h.agents.GetAgent(h.ctx, &agentv1.GetAgentRequest{AgentId: a.GetAgentId()})
			m, _ := h.agents.ListMessages(h.ctx, &agentv1.ListMessagesRequest{AgentId: a.GetAgentId()})
			return fmt.Sprint("a child is left: ", one, m, err)
		}
	}
	open, err := h.agents.ListDelegations(h.ctx, &agentv1.ListDelegationsRequest{AgentId: "lead", OpenOnly: true})
	if err != nil || len(open.GetDelegations()) > 0 {
		return fmt.Sprint("delegations are open: ", open, err)
	}
	for _, state := range []agentv1.MessageState{
		agentv1.MessageState_MESSAGE_STATE_QUEUED,
		agentv1.MessageState_MESSAGE_STATE_DEQUEUED,
	} {
		m, err := h.agents.ListMessages(h.ctx, &agentv1.ListMessagesRequest{AgentId: "lead", State: state})
		if err != nil || len(m.GetMessages()) > 0 {
			return fmt.Sprint("messages are left: ", m, err)
		}
	}
	return ""
}

// audit compares what stands with what should, and reads the journal for runs
// that wrote when they held nothing.
func (h *household) audit(conn *connection, families int) {
	t := h.t
	all, err := h.agents.ListAgents(h.ctx, &agentv1.ListAgentsRequest{
		IncludePrivate: true, IncludeDeleted: true,
		PageSize: 500,
	})
	require.NoError(t, err)
	l, err := h.agents.ListDelegations(h.ctx, &agentv1.ListDelegationsRequest{AgentId: "lead", PageSize: 500})
	require.NoError(t, err)
	require.Len(t, all.GetAgents(), 1+len(l.GetDelegations()),
		"a child for each delegation, a delegation for each child")
	w := load.NewWatcher(conn)
	require.NoError(t, w.CatchUp(h.ctx))
	results := map[string]int{}
	counts := map[string]int{}
	open := map[string]string{} // by agent: its open turn
	for _, e := range w.Seen {
		p := e.GetPayload().GetFields()
		switch e.GetEventType() {
		case "turn_started":
			require.Empty(t, open[e.GetAgentId()], "one open run for %s", e.GetAgentId())
			open[e.GetAgentId()] = p["turn"].GetStructValue().GetFields()["turn_id"].GetStringValue()
		case "turn_completed", "turn_failed", "turn_interrupted", "turn_aborted":
			require.Equal(t, open[e.GetAgentId()], p["turn"].GetStructValue().GetFields()["turn_id"].GetStringValue())
			delete(open, e.GetAgentId())
		case "round_submitted":
			require.Equal(t, open[e.GetAgentId()], p["round"].GetStructValue().GetFields()["turn_id"].GetStringValue(),
				"nothing of a run that is over")
		case "tool_result_recorded", "round_settled":
			require.Equal(t, open[e.GetAgentId()], p["turn_id"].GetStringValue(), "nothing of a run that is over")
		case "message_queued":
			m := p["message"].GetStructValue().GetFields()
			if e.GetAgentId() == "lead" && m["kind"].GetStringValue() == "task_result" {
				results[m["task_id"].GetStringValue()+" for "+m["work_item_id"].GetStringValue()]++
			}
		}
		counts[e.GetEventType()+" "+e.GetAgentId()]++
	}
	known := map[string]bool{}
	for _, d := range l.GetDelegations() {
		job, _, _ := strings.Cut(d.GetLabel(), " ")
		known[d.GetTaskId()] = true
		require.Equal(t, agentv1.DelegationState_DELEGATION_STATE_COMPLETED, d.GetState())
		require.Equal(t, jobs[job], pbjson.EnumText(d.GetOutcome()), d.GetLabel())
		require.NotEmpty(t, d.GetParentWorkItemId())
		require.Equal(t, 1, results[d.GetTaskId()+" for "+d.GetParentWorkItemId()],
			"one result for the item it was made for: %s", d)
		switch job {
		case "report":
			require.Equal(t, "the report of "+d.GetLabel(), d.GetResultSummary())
			require.NotEmpty(t, d.GetChildWorkItemId())
		case "words":
			require.Equal(t, "the words of "+d.GetLabel(), d.GetResultSummary())
		}
		for _, once := range []string{"agent_spawned", "agent_deleting", "agent_deleted"} {
			require.Equal(t, 1, counts[once+" "+d.GetChildAgentId()], once)
		}
		task, err := h.tasks.GetTask(h.ctx, &taskv1.GetTaskRequest{AgentId: "lead", TaskId: d.GetTaskId()})
		require.NoError(t, err)
		require.Equal(t, jobs[job],
			strings.ToLower(strings.TrimPrefix(task.GetTask().GetState().String(), "TASK_STATE_")))
		_, err = h.agents.EnqueueMessage(h.ctx, &agentv1.EnqueueMessageRequest{
			AgentId: d.GetChildAgentId(),
			Text:    "psst", RequestId: id.New().New("x_"),
		})
		require.ErrorIs(t, fault.From(err), fault.PermissionDenied, "nobody speaks to a private child")
	}
	require.Len(t, results, len(l.GetDelegations()), "no result beside these")
	for _, task := range h.spawned {
		require.True(t, known[task], "a child that was answered is not lost")
	}
	if h.aborted == 0 {
		require.Len(t, l.GetDelegations(), 3*families)
	}
	for task, item := range h.focusOf {
		require.Equal(t, 1, results[task+" for "+item])
	}
	t.Logf("%d families, %d delegations, %d aborts, %d events: every result once, for its item", families,
		len(l.GetDelegations()), h.aborted, len(w.Seen))
}
