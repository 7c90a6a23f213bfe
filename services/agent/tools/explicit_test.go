package tools

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

func resultOf(t *testing.T, tool string, reply proto.Message) map[string]any {
	t.Helper()
	for _, spec := range Table {
		if spec.Name == tool {
			return must.Value(Succeeded(&agentv1.ToolCall{Name: tool}, spec, reply))(t).GetResult().AsMap()
		}
	}
	require.Fail(t, "no tool "+tool)
	return nil
}

// A plan that is cut says so, and an empty one is described, in one item and in lists.
func TestC4_APlanThatIsCutOrEmpty(t *testing.T) {
	item := func(plan *workv1.PlanArtifact) *workv1.WorkItem {
		return &workv1.WorkItem{WorkItemId: "wi_1", PlanArtifact: plan, CreatedAt: timestamppb.Now()}
	}
	shown := func(plan *workv1.PlanArtifact) map[string]any {
		one := resultOf(t, "GetWorkItem", &workv1.GetWorkItemResponse{WorkItem: item(plan)})["work_item"].(map[string]any)["plan_artifact"]
		list := resultOf(t, "ListWorkItems", &workv1.ListWorkItemsResponse{
			WorkItems: []*workv1.WorkItem{item(nil), item(plan)},
		})["work_items"].([]any)
		require.NotContains(t, list[0], "plan_artifact", "what was not looked at stays unknown")
		require.Equal(t, one, list[1].(map[string]any)["plan_artifact"])
		return one.(map[string]any)
	}
	require.Equal(t, map[string]any{"path": "/p", "sha256": "x", "bytes": 0.0, "preview": "", "preview_complete": true},
		shown(&workv1.PlanArtifact{Path: "/p", Sha256: "x", PreviewComplete: true}), "an empty plan")
	require.Equal(t, map[string]any{
		"path": "/p", "sha256": "x", "bytes": 4000.0, "preview": "begin",
		"preview_complete": false,
	},
		shown(&workv1.PlanArtifact{Path: "/p", Sha256: "x", Bytes: 4000, Preview: "begin"}), "a plan that is cut")
	require.Equal(t, map[string]any{"path": "/p", "sha256": "x", "bytes": 4000.0},
		shown(&workv1.PlanArtifact{Path: "/p", Sha256: "x", Bytes: 4000}), "one that a list describes without its text")
	require.Equal(t, map[string]any{"path": "/p", "problem": "missing"},
		shown(&workv1.PlanArtifact{Path: "/p", Problem: "missing"}))
}

func TestT3_ARefusedInputSaysSo(t *testing.T) {
	require.Equal(t, map[string]any{"accepted_input": false, "input_target": "stdin", "reason": "input_not_accepted"},
		resultOf(t, "TaskInput", &taskv1.SendTaskInputResponse{InputTarget: "stdin", Reason: "input_not_accepted"}))
	require.Equal(t, map[string]any{"accepted_input": true, "input_target": "stdin", "bytes_written": 3.0},
		resultOf(t, "TaskInput", &taskv1.SendTaskInputResponse{
			AcceptedInput: true, InputTarget: "stdin", BytesWritten: 3,
		}))
}

// Every field that is to be shown exists and is one value without presence.
func TestExplicitFieldsExist(t *testing.T) {
	for name, entries := range explicit {
		d := must.Value(protoregistry.GlobalFiles.FindDescriptorByName(name))(t)
		fields := d.(protoreflect.MessageDescriptor).Fields()
		for _, e := range entries {
			for _, f := range e.show {
				require.NotNil(t, fields.ByName(f), "%s.%s", name, f)
				require.False(t, fields.ByName(f).HasPresence() || fields.ByName(f).IsList(), "%s.%s", name, f)
			}
		}
	}
}

// The handle of a child is the response's own, the same over every interface.
func TestA1_TheHandleOfASpawn(t *testing.T) {
	handle := &taskv1.TaskHandle{
		TaskId: "tsk_1", TaskKind: taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK,
		Status: taskv1.TaskState_TASK_STATE_RUNNING,
	}
	require.Equal(t, map[string]any{"task_id": "tsk_1", "task_kind": "child_agent_task", "status": "running"},
		resultOf(t, "SpawnAgent", &agentv1.SpawnAgentResponse{
			AgentId: "a", TaskId: "tsk_1", TaskHandle: handle,
		})["task_handle"])
	require.NotContains(t, resultOf(t, "SpawnAgent", &agentv1.SpawnAgentResponse{AgentId: "a"}), "task_handle")
}
