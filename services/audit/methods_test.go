package audit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	_ "quartet/pkg/pb/quartet/work/v1" // for planetest.Methods
	"quartet/pkg/plane/planetest"
)

// notRecorded are the mutations that the audit log does not have, and why. Who made each is in its events.
var notRecorded = map[string][]string{
	"it creates or changes records, and no credential or URL": {
		"agent.v1.AgentService/SpawnAgent", "agent.v1.AgentService/EnqueueMessage",
		"board.v1.BoardService/CreateBoard", "board.v1.BoardService/UpdateBoard",
		"board.v1.BoardService/OpenStandingDispatch", "board.v1.BoardService/DispatchWorker",
		"task.v1.TaskService/ExecCommand", "task.v1.TaskService/SendTaskInput",
		"waiting.v1.WaitingService/WaitFor", "waiting.v1.WaitingService/CreateWait",
		"waiting.v1.WaitingService/CreateTimer", "work.v1.HomeService/WriteFile", "work.v1.HomeService/EditFile",
		"work.v1.WorkService/CreateWorkItem", "work.v1.WorkService/PickWorkItem", "work.v1.WorkService/UpdateWorkItem",
	},
	"it ends a record, and stops nobody who works": {
		"board.v1.BoardService/CompleteBoard", "waiting.v1.WaitingService/CancelWait",
		"waiting.v1.WaitingService/CancelTimer", "work.v1.WorkService/CompleteWorkItem",
	},
	"a runner, worker or outside system does its own work": {
		"agent.v1.AgentService/AcquireTurn", "board.v1.BoardService/ClaimStep", "board.v1.BoardService/UpdateStep",
		"board.v1.BoardService/FinishWorkerRun", "waiting.v1.WaitingService/DeliverTrigger",
	},
	"the call of the method behind it is recorded": {"agent.v1.AgentService/CallTool"},
	"only services call it": {
		"audit.v1.AuditService/RecordAudit", "work.v1.WorkService/PromoteReport", "work.v1.WorkService/ConsumeRecheck",
	},
}

// Each mutation is recorded or says why not.
func TestEveryMutationIsRecordedOrSaysWhyNot(t *testing.T) {
	reasons := map[string]string{}
	for reason, methods := range notRecorded {
		for _, method := range methods {
			reasons[method] = reason
		}
	}
	known := map[string]bool{}
	planetest.Methods(func(name string, _ protoreflect.MethodDescriptor, mutates bool) {
		known[name] = true
		short := strings.TrimPrefix(name, "/quartet.")
		if mutates {
			require.NotEqual(t, recorded[name], reasons[short] != "", "%s belongs to recorded or to notRecorded", name)
		}
		delete(reasons, short)
	})
	require.Empty(t, reasons, "no such methods")
	for name := range recorded {
		require.True(t, known[name], name)
	}
}
