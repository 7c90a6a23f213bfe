package tools

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

func prepared(t *testing.T, name string, args map[string]any) (proto.Message, error) {
	t.Helper()
	tl := must.Value(everything.Find(name))(t)
	s := must.Value(structpb.NewStruct(args))(t)
	return tl.Request(Scope{Agent: plane.Key{Namespace: "acme", ID: "keeper"}, Remaining: 45 * time.Second}, s)
}

// everything is a profile with all families.
var everything = Profile{
	agentv1.ToolFamily_TOOL_FAMILY_CORE, agentv1.ToolFamily_TOOL_FAMILY_LOCAL_ENVIRONMENT,
	agentv1.ToolFamily_TOOL_FAMILY_AGENT_CREATION,
	agentv1.ToolFamily_TOOL_FAMILY_AUTHORITY_EXPANSION, agentv1.ToolFamily_TOOL_FAMILY_EXTERNAL_TRIGGER,
	agentv1.ToolFamily_TOOL_FAMILY_BOARDS,
}

// A tool takes a duration with its units, wherever it takes one.
func TestC4_DurationsWithUnits(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"3600s": time.Hour, "1h": time.Hour, "90m": 90 * time.Minute, "1h30m": 90 * time.Minute,
		"1.5h":  90 * time.Minute,
		"250ms": 250 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "0s": 0, "2562047h": 2562047 * time.Hour,
	} {
		req := must.Value(prepared(t, "CreateTimer", map[string]any{"after": text, "every": text}))(t, text)
		timer := req.(*waitingv1.CreateTimerRequest)
		require.Equal(t, want, timer.GetAfter().AsDuration(), text)
		require.Equal(t, want, timer.GetEvery().AsDuration(), text)
		if text == "2562047h" {
			continue // longer than any command may run, which is the plane's to say
		}
		req, err := prepared(t, "WaitFor", map[string]any{"reason": "x", "wake": "external", "recheck_after": text})
		require.NoError(t, err, text)
		require.Equal(t, want, req.(*waitingv1.WaitForRequest).GetRecheckAfter().AsDuration(), text)
		req, err = prepared(t, "ExecCommand", map[string]any{"cmd": "true", "timeout": text, "yield_time": text})
		require.NoError(t, err, text)
		require.Equal(t, want, req.(*taskv1.ExecCommandRequest).GetCommand().GetTimeout().AsDuration(),
			"within the folded command: %s", text)
		require.Equal(t, min(want, 45*time.Second), req.(*taskv1.ExecCommandRequest).GetYieldTime().AsDuration(), text)
		req = must.Value(prepared(t, "board_dispatch_worker", map[string]any{"task_id": "b", "timeout": text}))(t, text)
		require.Equal(t, want, req.(*boardv1.DispatchWorkerRequest).GetTimeout().AsDuration(), text)
	}
	for _, bad := range []any{"banana", "", "1", "1d", 5, "1 h", "h", true, "9999999999h"} {
		must.Fail(prepared(t, "CreateTimer", map[string]any{"after": bad}))(t, "1h30m", "%v", bad)
		_, err := prepared(t, "ExecCommand", map[string]any{"cmd": "true", "yield_time": bad})
		require.ErrorContains(t, err, "yield_time", "%v", bad)
	}
	// The schema says the same.
	offered := regexp.MustCompile(durationPattern)
	for _, good := range []string{"3600s", "1h", "1h30m", "1.5h", "250ms"} {
		require.True(t, offered.MatchString(good), good)
	}
	for _, bad := range []string{"banana", "", "1", "1d", "1 h"} {
		require.False(t, offered.MatchString(bad), bad)
	}
}

// Every duration there may be comes out as it went in, to the nanosecond.
func TestC4_DurationsAreExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(rt, "d"))
		require.Equal(rt, d, must.Value(time.ParseDuration(asSeconds(d)))(rt))
		require.Regexp(rt, durationSyntax, asSeconds(d))
	})
}

// A todo without a state is pending; one with a state that does not exist is
// refused by its plane.
func TestC4_ATodoBeginsPending(t *testing.T) {
	todos := []any{
		map[string]any{"text": "a"},
		map[string]any{"text": "b", "state": "completed"},
		map[string]any{"text": "c", "state": nil},
	}
	want := []workv1.TodoState{
		workv1.TodoState_TODO_STATE_PENDING, workv1.TodoState_TODO_STATE_COMPLETED,
		workv1.TodoState_TODO_STATE_PENDING,
	}
	req := must.Value(prepared(t, "CreateWorkItem", map[string]any{"objective": "x", "todo_list": todos}))(t)
	for i, todo := range req.(*workv1.CreateWorkItemRequest).GetTodoList() {
		require.Equal(t, want[i], todo.GetState())
	}
	req = must.Value(prepared(t, "UpdateWorkItem", map[string]any{"todo_list": todos}))(t)
	for i, todo := range req.(*workv1.UpdateWorkItemRequest).GetTodoList().GetItems() {
		require.Equal(t, want[i], todo.GetState())
	}
	for _, bad := range []any{
		[]any{"a"},
		[]any{map[string]any{"text": "a", "state": "done"}},
		"a",
		map[string]any{"text": "a"},
	} {
		require.Error(t, must.Err(prepared(t, "UpdateWorkItem", map[string]any{"todo_list": bad})), "%v", bad)
	}
	for _, spec := range Specs() {
		if spec.GetName() == "CreateWorkItem" || spec.GetName() == "UpdateWorkItem" {
			raw := must.Value(json.Marshal(spec.GetInputSchema().GetFields()["properties"].GetStructValue().
				GetFields()["todo_list"].GetStructValue().AsMap()))(t)
			require.Contains(t, string(raw), `"required":["text"]`)
			require.Contains(t, string(raw), `"default":"pending"`)
		}
	}
}

// A slip does not empty a file, and an explicit wish does.
func TestC4_AWriteSaysWhat(t *testing.T) {
	must.Fail(prepared(t, "HomeWrite", map[string]any{"path": "notes.md"}))(t, "text and data")
	req := must.Value(prepared(t, "HomeWrite", map[string]any{"path": "notes.md", "text": ""}))(t)
	require.Equal(t, "notes.md", req.(*workv1.WriteFileRequest).GetPath())
	must.Fail(prepared(t, "HomeEdit", map[string]any{"path": "notes.md", "old_text": "a"}))(t, "new_text is required")
	must.Value(prepared(t, "HomeEdit", map[string]any{"path": "notes.md", "old_text": "a", "new_text": ""}))(t)
}

// What a plane refuses is said in the words of the tool that was called.
func TestX5_RefusalsSpeakOfTools(t *testing.T) {
	for _, c := range []struct{ tool, said, want string }{
		{
			"TaskStatus", `agent k has no task tsk_1; ListTasks with include_terminal shows what it has`,
			`agent k has no task tsk_1; TaskList with include_terminal shows what it has`,
		},
		{"SpawnAgent", `stop one with StopTask`, `stop one with TaskStop`},
		{
			"SpawnAgent", `workspace_mode "WORKSPACE_MODE_EXPLICIT_ROOT" must be inherit or worktree`,
			`workspace_mode "explicit_root" must be inherit or worktree`,
		},
		{
			"board_update",
			`operations[0].op "OPERATION_KIND_UNSPECIFIED" must be one of the ten operations of UpdateBoard`,
			`operations[0].op "" must be one of the ten operations of board_update`,
		},
		{"board_get", `board_id is required`, `board_id is required`},
		{
			"board_get", `session "k" has no board "ListTasks"; ListBoards shows more`,
			`session "k" has no board "ListTasks"; board_list shows more`,
		},
		{"ExecCommand", `command.timeout is 0s; it must be 1ms to 24h`, `timeout is 0s; it must be 1ms to 24h`},
		{"HomeRead", `no file "GetTask TASK_STATE_QUEUED" here`, `no file "GetTask TASK_STATE_QUEUED" here`},
	} {
		require.Equal(t, c.want, must.Value(everything.Find(c.tool))(t).Translate(c.said))
	}
	for _, spec := range Specs() {
		raw := must.Value(json.Marshal(spec.GetInputSchema().AsMap()))(t)
		require.NotRegexp(t, `SPEC|S2-|SendTaskInput|_UNSPECIFIED`, string(raw), spec.GetName())
	}
}

// SPEC C5.3: the tool asks for no previews of plans, and says of no argument that would.
func TestC5_ListsHaveNoPlanPreviews(t *testing.T) {
	req := must.Value(prepared(t, "ListWorkItems", map[string]any{"filter": "open", "limit": 31}))(t)
	require.True(t, req.(*workv1.ListWorkItemsRequest).GetOmitPlanPreviews())
	require.EqualValues(t, 31, req.(*workv1.ListWorkItemsRequest).GetPageSize())
	for _, spec := range Specs() {
		if spec.GetName() == "ListWorkItems" {
			require.NotContains(t, spec.GetInputSchema().String(), "omit_plan_previews")
		}
	}
}

// A tool mutates exactly if its request has a request id, by which a repeated call has its first result.
func TestAToolMutatesIfItsRequestHasAnID(t *testing.T) {
	for _, tool := range Table {
		id := tool.NewRequest().ProtoReflect().Descriptor().Fields().ByName("request_id")
		require.Equal(t, id != nil, tool.Mutates, tool.Name)
	}
}
