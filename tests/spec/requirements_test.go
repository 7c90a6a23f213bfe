package spec

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/dev"
	"quartet/tests/proc"
)

const session = "keeper"

// serve returns a running server with one agent.
func serve(t *testing.T) *dev.Server {
	s := dev.Start(t)
	must.Value(s.Agents.SpawnAgent(dev.Within(t), &agentv1.SpawnAgentRequest{
		AgentId: session, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	return s
}

// TestA3_AParentsItemMayBeCompleted proves that completing the parent's item ends
// no delegation, and that a private child has neither boards nor spawning.
func TestA3_AParentsItemMayBeCompleted(t *testing.T) {
	b := serve(t)
	id := must.Value(b.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
		AgentId: session, Objective: "delegate",
	}))(t).GetWorkItem().GetWorkItemId()
	must.Value(b.Work.PickWorkItem(dev.Within(t), &workv1.PickWorkItemRequest{AgentId: session, WorkItemId: id}))(t)
	child := must.Value(b.Agents.SpawnAgent(dev.Within(t), &agentv1.SpawnAgentRequest{
		ParentAgentId:  session,
		InitialMessage: "do it",
	}))(t)
	_, err := b.Work.CompleteWorkItem(dev.Within(t), &workv1.CompleteWorkItemRequest{AgentId: session, WorkItemId: id})
	require.NoError(t, err)
	d := must.Value(b.Agents.GetDelegation(dev.Within(t), &agentv1.GetDelegationRequest{
		AgentId: session, DelegationId: child.GetDelegationId(),
	}))(t)
	require.Equal(t, id, d.GetDelegation().GetParentWorkItemId())
	require.Equal(t, agentv1.DelegationState_DELEGATION_STATE_OPEN, d.GetDelegation().GetState())

	listed := must.Value(b.Agents.ListTools(dev.Within(t), &agentv1.ListToolsRequest{AgentId: child.GetAgentId()}))(t)
	names := map[string]bool{}
	for _, tool := range listed.GetTools() {
		names[tool.GetName()] = true
	}
	require.True(t, names["CreateWorkItem"])
	for _, name := range []string{"SpawnAgent", "board_create", "board_dispatch_worker"} {
		require.False(t, names[name], name)
		got := must.Value(b.Agents.CallTool(dev.Within(t), &agentv1.CallToolRequest{
			AgentId: child.GetAgentId(), Name: name, Arguments: &structpb.Struct{},
		}))(t)
		require.Equal(t, "tool_not_available", got.GetResult().GetError().GetKind(), name)
	}
}

// TestW10_DefaultPage proves the default page of work items.
func TestW10_DefaultPage(t *testing.T) {
	b := serve(t)
	for i := range 21 {
		must.Value(b.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
			AgentId: session, Objective: fmt.Sprint("item ", i),
		}))(t)
	}
	page := must.Value(b.Work.ListWorkItems(dev.Within(t), &workv1.ListWorkItemsRequest{AgentId: session}))(t)
	require.Len(t, page.GetWorkItems(), 20)
	require.NotEmpty(t, page.GetNextPageToken())
}

// TestT3_BoundsOfOutputReads proves the limits of GetTaskOutput.
func TestT3_BoundsOfOutputReads(t *testing.T) {
	b := serve(t)
	run := must.Value(b.Tasks.ExecCommand(dev.Within(t), &taskv1.ExecCommandRequest{
		AgentId: session, Command: &taskv1.CommandSpec{Cmd: "echo hello"}, YieldTime: durationpb.New(0),
	}))(t)
	read := func(req *taskv1.GetTaskOutputRequest) error {
		req.AgentId, req.TaskId = session, run.GetTask().GetTaskId()
		return must.Err(b.Tasks.GetTaskOutput(dev.Within(t), req))
	}
	require.NoError(t,
		read(&taskv1.GetTaskOutputRequest{Block: true, MaxBytes: 1_000_000, Timeout: durationpb.New(55 * time.Second)}))
	require.ErrorIs(t, read(&taskv1.GetTaskOutputRequest{MaxBytes: 1_000_001}), fault.LimitExceeded)
	require.ErrorIs(t, read(&taskv1.GetTaskOutputRequest{Block: true, Timeout: durationpb.New(55*time.Second + 1)}),
		fault.LimitExceeded)
}

// TestA5_AFullLane fills a lane, and proves that messages by themselves change no
// work item and no focus.
func TestA5_AFullLane(t *testing.T) {
	b := serve(t)
	item, err := b.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
		AgentId: session, Objective: "stay",
	})
	require.NoError(t, err)
	must.Value(b.Work.PickWorkItem(dev.Within(t), &workv1.PickWorkItemRequest{
		AgentId: session, WorkItemId: item.GetWorkItem().GetWorkItemId(),
	}))(t)
	queue := func() string {
		got := must.Value(b.Work.GetWorkQueue(dev.Within(t), &workv1.GetWorkQueueRequest{AgentId: session}))(t)
		got.Revision = 0 // the journal's position, which written positions of other planes move too
		return got.String()
	}
	before := queue()
	must.Value(b.Agents.PauseAgent(dev.Within(t), &agentv1.PauseAgentRequest{AgentId: session}))(t)
	send := func(text string) error {
		_, err := b.Agents.EnqueueMessage(dev.Within(t), &agentv1.EnqueueMessageRequest{AgentId: session, Text: text})
		return err
	}
	const callers, most = 50, 10_000
	var working sync.WaitGroup
	errs := make(chan error, most)
	for c := range callers {
		working.Go(func() {
			for i := range most / callers {
				errs <- send(fmt.Sprintf("message %d of %d", i, c))
			}
		})
	}
	working.Wait()
	full := 0
	for range most {
		if <-errs != nil {
			full++
		}
	}
	for full == 0 { // ticks of the system count as well
		if err = send("one more"); err != nil {
			full++
		}
	}
	require.LessOrEqual(t, full, 2)
	require.ErrorIs(t, send("one more"), fault.Overloaded)
	require.Equal(t, before, queue())
}

// TestW16_NamesOverREST proves the names of the read options over REST.
func TestW16_NamesOverREST(t *testing.T) {
	b := serve(t)
	item := must.Value(b.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
		AgentId: session, Objective: "x", TodoList: []*workv1.TodoItem{
			{Text: "first", State: workv1.TodoState_TODO_STATE_PENDING},
		},
	}))(t)
	get := func(path string, want int) string {
		req := must.Value(http.NewRequestWithContext(dev.Within(t), http.MethodGet, b.URL()+"/v1/agents/"+session+
			"/work-items"+path, nil))(t)
		resp := must.Value(proc.HTTP.Do(req))(t)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		body := must.Value(io.ReadAll(resp.Body))(t)
		require.Equal(t, want, resp.StatusCode, string(body))
		require.True(t, json.Valid(body))
		return string(body)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	id := "/" + item.GetWorkItem().GetWorkItemId()
	require.Contains(t, get(id, http.StatusOK), "first")
	require.NotContains(t, get(id+"?omitTodoList=true", http.StatusOK), `"todoList"`)
	require.NotContains(t, get("?pageSize=1", http.StatusOK), `"todoList"`)
	require.Contains(t, get("?pageSize=1&includeTodoList=true", http.StatusOK), "first")
	require.Contains(t, get("?limit=1", http.StatusBadRequest), "UNKNOWN_FIELD")
}
