package agent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// A10: a forked child sees the view of its parent's current item as it was when
// it was spawned, in every turn and after a restart; a fresh one its message and
// nothing else.
func TestA10_ForkAndFresh(t *testing.T) {
	r := family(t)
	objective := "ship the parser"
	r.others.set(func() {
		r.others.item = func() *workv1.WorkItem {
			return &workv1.WorkItem{
				WorkItemId: "wi_focus", Objective: objective,
				State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN, TodoList: []*workv1.TodoItem{
					{Text: "write the tests"},
				},
			}
		}
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) {
			return &workv1.GetWorkQueueResponse{Current: r.others.item()}, nil
		}
	})
	spawn := func(requestID string, c agentv1.Context) *agentv1.SpawnAgentResponse {
		return must.Value(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
			ParentAgentId: "keeper", InitialMessage: "look at the lexer", RequestId: requestID, Context: c,
		}))(t)
	}
	forked, fresh := spawn("1", agentv1.Context_CONTEXT_FORK), spawn("2", agentv1.Context_CONTEXT_FRESH)
	require.Equal(t, agentv1.Context_CONTEXT_FORK, forked.GetAgent().GetContext())
	r.others.set(func() {
		objective = "something else by now"
		r.others.queue = nil
	})
	require.Equal(t, forked.GetAgentId(), spawn("1", agentv1.Context_CONTEXT_FORK).GetAgentId())
	for range 2 {
		a := r.take(forked.GetAgentId())
		require.Contains(t, a.GetContext().GetText(), "ship the parser")
		require.Contains(t, a.GetContext().GetText(), "write the tests")
		require.Contains(t, a.GetContext().GetText(), "> look at the lexer")
		require.NotContains(t, a.GetContext().GetText(), "something else")
		require.Equal(t, "look at the lexer", a.GetMessage().GetText(), "the message is the caller's alone")
		r.finish(a, retryable)
		r.restart()
	}
	b := r.take(fresh.GetAgentId())
	require.Contains(t, b.GetContext().GetText(), "> look at the lexer")
	require.NotContains(t, b.GetContext().GetText(), "Inherited")
	require.NotContains(t, b.GetContext().GetText(), "parser")
	c := must.Value(r.service.GetContext(r.operator(), &agentv1.GetContextRequest{AgentId: forked.GetAgentId()}))(t)
	require.Contains(t, c.GetContext().GetText(), "ship the parser")
}

// A10: a view that cannot be read is said before anything is written.
func TestA10_AViewThatCannotBeRead(t *testing.T) {
	r := family(t)
	r.others.set(func() {
		r.others.queue = func() (*workv1.GetWorkQueueResponse, error) { return nil, fault.NotReady.New("starting") }
	})
	before := len(r.events())
	must.Refuse(r.service.SpawnAgent(r.operator(), &agentv1.SpawnAgentRequest{
		ParentAgentId: "keeper", InitialMessage: strings.Repeat("x", 10), Context: agentv1.Context_CONTEXT_FORK,
	}))(t, fault.NotReady)
	require.Len(t, r.events(), before)
}
