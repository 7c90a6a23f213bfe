package quota

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	_ "quartet/pkg/pb/quartet/audit/v1" // for planetest.Methods, like that of boards
	_ "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/identity"
)

// Every method that is named here is one, so that a new name does not lift a
// quota.
func TestTheMethodsExist(t *testing.T) {
	for method := range writes {
		roles, _ := identity.Allowed(method)
		require.NotEmpty(t, roles, method)
	}
	for method := range makes {
		require.True(t, writes[method], "%s makes something, and so writes", method)
	}
}

// addsNothing are the mutations that a namespace may call at its limit, and why. What ends something, or finishes
// what has begun, must stay possible.
var addsNothing = map[string][]string{
	"it ends something": {
		"agent.v1.AgentService/AbortRun", "agent.v1.AgentService/PauseAgent", "agent.v1.AgentService/StopAgent",
		"agent.v1.AgentService/DeleteAgent", "board.v1.BoardService/CompleteBoard", "board.v1.BoardService/FailBoard",
		"board.v1.BoardService/CancelBoard", "board.v1.BoardService/CancelWorkerRun",
		"board.v1.BoardService/CloseStandingDispatch", "identity.v1.IdentityService/RevokeKey",
		"task.v1.TaskService/StopTask", "waiting.v1.WaitingService/CancelWait",
		"waiting.v1.WaitingService/CancelExternalTrigger", "waiting.v1.WaitingService/CancelTimer",
		"work.v1.WorkService/CompleteWorkItem", "work.v1.WorkService/PromoteReport",
	},
	"it undoes PauseAgent or StopAgent": {"agent.v1.AgentService/ResumeAgent", "agent.v1.AgentService/StartAgent"},
	"a worker finishes the run that it has": {
		"board.v1.BoardService/ClaimStep", "board.v1.BoardService/UpdateStep", "board.v1.BoardService/FinishWorkerRun",
	},
	"a turn that has started ends with it":                    {"waiting.v1.WaitingService/WaitFor"},
	"a turn that has started consumes a reminder":             {"work.v1.WorkService/ConsumeRecheck"},
	"the agent moves its focus to the item that it completes": {"work.v1.WorkService/PickWorkItem"},
	"a command that runs may need it to end; a child's message is enqueued by EnqueueMessage": {
		"task.v1.TaskService/SendTaskInput",
	},
	"a URL that became known must be replaced":         {"waiting.v1.WaitingService/RotateExternalTrigger"},
	"an admin needs a key to make room":                {"identity.v1.IdentityService/CreateKey"},
	"the method behind the tool is checked":            {"agent.v1.AgentService/CallTool"},
	"the gate's own limits of deliveries refuse them":  {"waiting.v1.WaitingService/DeliverTrigger"},
	"what happened is recorded, whatever the limit is": {"audit.v1.AuditService/RecordAudit"},
}

// executed are the methods among writes that have a request id and may not be recalled, and why.
var executed = map[string]string{
	"agent.v1.AgentService/AcquireTurn": "the turn keeps the id; the request memory does not have it",
	"work.v1.HomeService/WriteFile":     "the home is created before the request memory is asked",
	"work.v1.HomeService/EditFile":      "the home is created before the request memory is asked",
}

// TestX2_EveryMutationIsLimitedAndRecalled: each mutation is among writes or says why not, and a refused repetition is
// answered from the request memory, or the method says why not.
func TestX2_EveryMutationIsLimitedAndRecalled(t *testing.T) {
	reasons := map[string]string{}
	for reason, methods := range addsNothing {
		for _, method := range methods {
			reasons[method] = reason
		}
	}
	planetest.Methods(func(name string, _ protoreflect.MethodDescriptor, mutates bool) {
		short := strings.TrimPrefix(name, "/quartet.")
		remembers, limited := writes[name]
		if mutates {
			require.NotEqual(t, limited, reasons[short] != "", "%s belongs to writes or to addsNothing", name)
		}
		require.Equal(t, limited && mutates && executed[short] == "", remembers, "%s: recalled in writes, or a reason "+
			"in executed", name)
		delete(reasons, short)
	})
	require.Empty(t, reasons, "no such methods")
}

func TestLimits(t *testing.T) {
	l := must.Value(Parse(map[string]int{Agents: 5}, map[string]string{
		"acme.agents": "7", "free.agents": "0",
		"acme.mib": "1",
	}))(t)
	for namespace, want := range map[string]int64{"acme": 7, "free": 0, "other": 5} {
		require.Equal(t, want, l.limit(namespace, Agents), namespace)
	}
	require.True(t, l.any(MiB))
	require.False(t, l.any(Requests))
	none := must.Value(Parse(nil, map[string]string{"acme.agents": "0"}))(t)
	require.NoError(t, NewGate(Config{Limits: none}).Request("acme"))
}

// A second's worth at once, then one at a time; others are not concerned.
func TestRequests(t *testing.T) {
	g := NewGate(Config{Limits: must.Value(Parse(nil, map[string]string{"acme.requests": "3"}))(t)})
	for range 3 {
		require.NoError(t, g.Request("acme"))
	}
	var refused error
	for range 1000 { // sooner than 1000 of them are due
		if refused = g.Request("acme"); refused != nil {
			break
		}
	}
	require.ErrorIs(t, refused, fault.RateLimited)
	require.Positive(t, fault.From(refused).RetryAfter())
	for range 100 {
		require.NoError(t, g.Request("other"))
	}
}
