package work

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

func (r *rig) update(req *workv1.UpdateWorkItemRequest) *workv1.WorkItem {
	r.t.Helper()
	req.AgentId = "keeper"
	return must.Value(r.client.UpdateWorkItem(r.ctx, req))(r.t).GetWorkItem()
}

func (r *rig) block(itemID, why string) {
	r.update(&workv1.UpdateWorkItemRequest{WorkItemId: itemID, BlockedBy: &why})
}

func (r *rig) trigger(itemID string, n int) {
	r.t.Helper()
	must.Value(r.client.AttachWait(planetest.As(r.t.Context(), rpc.RoleService), &workv1.AttachWaitRequest{
		AgentId: "keeper", WorkItemId: itemID, Wait: &workv1.AttachedWait{
			WaitId: fmt.Sprintf("wt_%026d", n), Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
			Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Revision: 2, Reason: "reply", TriggerCount: 1,
			LastTriggeredAt: timestamppb.New(r.clk.Now()), CreatedAt: timestamppb.New(r.clk.Now()),
		},
	}))(r.t)
}

func (r *rig) complete(itemID string) {
	r.t.Helper()
	_, err := r.client.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: itemID})
	require.NoError(r.t, err)
}

func (r *rig) queue() *workv1.GetWorkQueueResponse {
	r.t.Helper()
	return must.Value(r.client.GetWorkQueue(r.ctx, &workv1.GetWorkQueueRequest{AgentId: "keeper"}))(r.t)
}

func objectives(items []*workv1.WorkItem) string {
	var names []string
	for _, it := range items {
		names = append(names, it.GetObjective())
	}
	return strings.Join(names, " ")
}

// Every class has its order and its maximum (SPEC W9).
func TestW9_QueueRanksAndCaps(t *testing.T) {
	r := newRig(t)
	require.Empty(t, r.queue().GetCounts().GetOpen(), "an agent without items has an empty queue")
	ids := map[string]string{}
	item := func(name string) string {
		r.clk.Advance(time.Second)
		ids[name] = r.create(name).GetWorkItemId()
		return ids[name]
	}
	for i := 1; i <= 4; i++ {
		r.trigger(item(fmt.Sprintf("t%d", i)), i)
	}
	for i := 1; i <= 6; i++ {
		item(fmt.Sprintf("q%d", i))
	}
	for i := 1; i <= 4; i++ {
		r.update(&workv1.UpdateWorkItemRequest{
			WorkItemId: item(fmt.Sprintf("o%d", i)),
			PlanStatus: workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT,
		})
	}
	for i := 1; i <= 4; i++ {
		r.block(item(fmt.Sprintf("b%d", i)), "why")
	}
	for i := 1; i <= 4; i++ {
		r.complete(item(fmt.Sprintf("c%d", i)))
	}
	// An update moves: the newest first among waiters, the oldest first in the queue.
	r.clk.Advance(time.Second)
	r.update(&workv1.UpdateWorkItemRequest{WorkItemId: ids["q1"], PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY})
	r.block(ids["b1"], "why else")
	r.trigger(ids["t1"], 11)

	q := r.queue()
	require.Equal(t, "t1 t4 t3", objectives(q.GetTriggeredBlocked()), "last_triggered_at desc, top 3")
	require.Equal(t, "q2 q3 q4 q5 q6", objectives(q.GetQueuedRunnable()), "updated_at asc, top 5")
	require.Equal(t, "o4 o3 o2", objectives(q.GetWaitingForOperator()), "updated_at desc, top 3")
	require.Equal(t, "b1 b4 b3", objectives(q.GetBlocked()), "updated_at desc, top 3")
	require.Equal(t, "c4 c3 c2", objectives(q.GetCompletedRecent()), "updated_at desc, top 3")
	n := q.GetCounts()
	require.Equal(t, []int32{18, 4, 6, 4, 4, 4}, []int32{
		n.GetOpen(), n.GetTriggeredBlocked(), n.GetQueuedRunnable(),
		n.GetWaitingForOperator(), n.GetBlocked(), n.GetCompleted(),
	})
	require.Nil(t, q.GetCurrent())

	// The item in focus is in no class beside.
	r.pick(ids["q2"])
	q = r.queue()
	require.Equal(t, "q2", q.GetCurrent().GetObjective())
	require.Equal(t, "q3 q4 q5 q6 q1", objectives(q.GetQueuedRunnable()))
	require.EqualValues(t, 5, q.GetCounts().GetQueuedRunnable())
	require.EqualValues(t, 18, q.GetCounts().GetOpen())
	r.pick(ids["t4"])
	q = r.queue()
	require.Equal(t, "t1 t3 t2", objectives(q.GetTriggeredBlocked()))
	require.EqualValues(t, 3, q.GetCounts().GetTriggeredBlocked())
	require.Equal(t, workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED, q.GetCurrent().GetCandidateClass())

	// After a restart it is the same queue.
	r.restart()
	require.Equal(t, planetest.Show(q, "revision"), planetest.Show(r.queue(), "revision"))
}

func TestP5_RemindersAreListedInOrder(t *testing.T) {
	r := newRig(t)
	at := func(minutes int) *timestamppb.Timestamp {
		return timestamppb.New(epoch.Add(time.Duration(minutes) * time.Minute))
	}
	late, soon := r.create("late").GetWorkItemId(), r.create("soon").GetWorkItemId()
	r.update(&workv1.UpdateWorkItemRequest{WorkItemId: late, RecheckAt: at(60)})
	r.update(&workv1.UpdateWorkItemRequest{WorkItemId: soon, RecheckAt: at(5)})
	require.Equal(t, "soon late", objectives(r.queue().GetRechecks()))
	r.complete(soon)
	require.Equal(t, "late", objectives(r.queue().GetRechecks()), "a completed item reminds nobody")
}

func TestW10_FiltersAndPages(t *testing.T) {
	r := newRig(t)
	ids := map[string]string{}
	for _, name := range []string{"cur", "queued", "done", "blocked", "waiting", "input"} {
		r.clk.Advance(time.Second)
		ids[name] = r.create(name).GetWorkItemId()
	}
	r.block(ids["blocked"], "why")
	r.trigger(ids["waiting"], 1)
	r.update(&workv1.UpdateWorkItemRequest{
		WorkItemId: ids["input"],
		PlanStatus: workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT,
	})
	r.complete(ids["done"])
	r.pick(ids["cur"])
	wants := map[string]string{
		"UNSPECIFIED": "cur queued done blocked waiting input", "ALL": "cur queued done blocked waiting input",
		"OPEN": "cur queued blocked waiting input", "COMPLETED": "done", "CURRENT": "cur",
		"QUEUED": "queued input", "BLOCKED": "blocked waiting", "WAITING_FOR_OPERATOR": "input",
		"RUNNABLE": "cur queued",
	}
	require.Len(t, wants, len(workv1.WorkItemFilter_name), "a row for each filter")
	for filter, want := range wants {
		f := workv1.WorkItemFilter(workv1.WorkItemFilter_value["WORK_ITEM_FILTER_"+filter])
		resp := must.Value(r.client.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", Filter: f}))(t)
		require.Equal(t, want, objectives(resp.GetWorkItems()), filter)

		// Page by page it is the same, and writes in between move nothing.
		var paged []*workv1.WorkItem
		req := &workv1.ListWorkItemsRequest{AgentId: "keeper", Filter: f, PageSize: 1}
		for {
			resp := must.Value(r.client.ListWorkItems(r.ctx, req))(t)
			paged = append(paged, resp.GetWorkItems()...)
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
			r.update(&workv1.UpdateWorkItemRequest{WorkItemId: ids["queued"], TodoList: &workv1.TodoList{}})
		}
		require.Equal(t, want, objectives(paged), filter)
	}
}

func TestX9_ListRefusals(t *testing.T) {
	r := newRig(t)
	r.create("a")
	r.create("b")
	for _, req := range []*workv1.ListWorkItemsRequest{
		{AgentId: "keeper", PageSize: -1},
		{AgentId: "keeper", PageSize: 501},
		{AgentId: "keeper", Filter: 99},
		{AgentId: "keeper", PageToken: "x"},
	} {
		require.Error(t, must.Err(r.client.ListWorkItems(r.ctx, req)), "%v", req)
	}
	resp := must.Value(r.client.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", PageSize: 1}))(t)
	fields := (*workv1.ListWorkItemsRequest)(nil).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		switch fields.Get(i).Name() {
		case "agent_id", "page_size", "page_token", "include_todo_list", "omit_plan_previews":
			continue // they select no items
		}
		req := &workv1.ListWorkItemsRequest{AgentId: "keeper", PageToken: resp.GetNextPageToken()}
		planetest.SetField(req.ProtoReflect(), fields.Get(i))
		must.Refuse(r.client.ListWorkItems(r.ctx, req))(t, fault.CursorInvalid,
			"a token of another filter is another list's: "+fields.Get(i).TextName())
	}
}

// A page is bounded in bytes as well as in number.
func TestX9_PagesAreBoundedByBytes(t *testing.T) {
	r := newRig(t)
	todos := make([]*workv1.TodoItem, 200)
	for i := range todos {
		todos[i] = &workv1.TodoItem{Text: strings.Repeat("x", 1000), State: workv1.TodoState_TODO_STATE_PENDING}
	}
	for range 12 {
		must.Value(r.client.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{
			AgentId: "keeper", Objective: "big", TodoList: todos,
		}))(t)
	}
	resp, err := r.client.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", IncludeTodoList: true})
	require.NoError(t, err)
	require.NotEmpty(t, resp.GetNextPageToken())
	require.Less(t, len(resp.GetWorkItems()), 12)
	rest := must.Value(r.client.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{
		AgentId: "keeper", IncludeTodoList: true, PageToken: resp.GetNextPageToken(),
	}))(t)
	require.Len(t, append(resp.GetWorkItems(), rest.GetWorkItems()...), 12)
	short := must.Value(r.client.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
	require.Len(t, short.GetWorkItems(), 12)
	require.Empty(t, short.GetWorkItems()[0].GetTodoList())
	require.NotNil(t, short.GetWorkItems()[0].GetCurrentTodo(), "what is derived stays")
}

func TestX8_LimitsAtBelowAndAbove(t *testing.T) {
	r := newRig(t)
	pending := workv1.TodoState_TODO_STATE_PENDING
	many := func(n int) []*workv1.TodoItem {
		todos := make([]*workv1.TodoItem, n)
		for i := range todos {
			todos[i] = &workv1.TodoItem{Text: "x", State: pending}
		}
		return todos
	}
	itemID := r.create("limits").GetWorkItemId()
	calls := map[string]struct {
		limit int
		call  func(n int) error
	}{
		"objective": {2000, func(n int) error {
			return must.Err(r.client.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{
				AgentId: "keeper", Objective: strings.Repeat("世", n),
			}))
		}},
		"objective update": {2000, func(n int) error {
			o := strings.Repeat("世", n)
			return must.Err(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
				AgentId: "keeper", WorkItemId: itemID, Objective: &o,
			}))
		}},
		"todo text": {1000, func(n int) error {
			return must.Err(r.client.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{
				AgentId: "keeper", Objective: "o",
				TodoList: []*workv1.TodoItem{{Text: strings.Repeat("é", n), State: pending}},
			}))
		}},
		"todo entries": {200, func(n int) error {
			return must.Err(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
				AgentId: "keeper", WorkItemId: itemID, TodoList: &workv1.TodoList{Items: many(n)},
			}))
		}},
		"plan": {16 << 10, func(n int) error {
			return must.Err(r.client.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{
				AgentId: "keeper", Objective: "o", Plan: strings.Repeat("p", n),
			}))
		}},
		"blocked_by": {16 << 10, func(n int) error {
			why := strings.Repeat("w", n)
			return must.Err(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
				AgentId: "keeper", WorkItemId: itemID, BlockedBy: &why,
			}))
		}},
		"reason": {16 << 10, func(n int) error {
			return must.Err(r.client.PickWorkItem(r.ctx, &workv1.PickWorkItemRequest{
				AgentId: "keeper", WorkItemId: itemID, Reason: strings.Repeat("r", n),
			}))
		}},
		"request_id": {128, func(n int) error {
			return must.Err(r.client.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{
				AgentId: "keeper", Objective: "o", RequestId: strings.Repeat("r", n),
			}))
		}},
		"agent_id": {128, func(n int) error {
			return must.Err(r.client.ListWorkItems(planetest.As(r.t.Context(), rpc.RoleOperator),
				&workv1.ListWorkItemsRequest{AgentId: strings.Repeat("a", n)}))
		}},
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, c.call(c.limit-1))
			require.NoError(t, c.call(c.limit))
			err := c.call(c.limit + 1)
			require.ErrorIs(t, err, fault.LimitExceeded)
			f := fault.From(err)
			require.Contains(t, f.Message(), fmt.Sprint(c.limit))
			require.Contains(t, f.Message(), fmt.Sprint(c.limit+1))
		})
	}
}

// No record is visible from another namespace (SPEC X4.1).
func TestX4_AnotherTenantSeesNothing(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ours").GetWorkItemId()
	ctx := rpc.WithActor(t.Context(), rpc.Actor{Namespace: "umbrella", Principal: "op", Role: rpc.RoleOperator})
	_, err := r.client.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: itemID})
	require.ErrorIs(t, err, fault.NotFound)
	l := must.Value(r.client.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
	require.Empty(t, l.GetWorkItems())
}

// The focus stands apart from the classes, also when it is blocked or triggered,
// so that nothing is shown twice; counts are those of the classes (SPEC W9, X6).
func TestW9_TheFocusIsInNoClassAndNoCount(t *testing.T) {
	for name, c := range map[string]struct {
		triggers int64
		class    workv1.CandidateClass
	}{
		"blocked":   {0, workv1.CandidateClass_CANDIDATE_CLASS_BLOCKED},
		"triggered": {1, workv1.CandidateClass_CANDIDATE_CLASS_TRIGGERED_BLOCKED},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for i, objective := range []string{"focus", "other"} {
				must.Value(r.service.AttachWait(planetest.As(t.Context(), rpc.RoleService), &workv1.AttachWaitRequest{
					AgentId: "keeper", WorkItemId: r.create(objective).GetWorkItemId(), Wait: &workv1.AttachedWait{
						WaitId: fmt.Sprintf("wt_%026d", i), Revision: 1, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
						Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Reason: "r", TriggerCount: c.triggers,
					},
				}))(t)
			}
			get := func() (*workv1.GetWorkQueueResponse, int32) {
				q := must.Value(r.client.GetWorkQueue(r.ctx, &workv1.GetWorkQueueRequest{AgentId: "keeper"}))(t)
				n := q.GetCounts()
				require.Len(t, q.GetTriggeredBlocked(), int(n.GetTriggeredBlocked()))
				require.Len(t, q.GetBlocked(), int(n.GetBlocked()))
				require.EqualValues(t, 2, n.GetOpen())
				return q, n.GetTriggeredBlocked() + n.GetBlocked()
			}
			q, n := get()
			require.EqualValues(t, 2, n)
			r.pick(append(q.GetBlocked(), q.GetTriggeredBlocked()...)[0].GetWorkItemId())
			q, n = get()
			require.EqualValues(t, 1, n)
			require.Equal(t, c.class, q.GetCurrent().GetCandidateClass())
			require.NotEqual(t, q.GetCurrent().GetWorkItemId(),
				append(q.GetBlocked(), q.GetTriggeredBlocked()...)[0].GetWorkItemId())
		})
	}
}

// An empty list of an agent that was never made would look like good news.
func TestX5_ListsOfUnknownAgents(t *testing.T) {
	r := newRig(t)
	operator := planetest.As(t.Context(), rpc.RoleOperator)
	_, err := r.client.ListWorkItems(operator, &workv1.ListWorkItemsRequest{AgentId: "nobody"})
	require.ErrorIs(t, err, fault.NotFound)
	require.ErrorContains(t, err, `"nobody"`)
	must.Refuse(r.client.GetWorkQueue(operator, &workv1.GetWorkQueueRequest{AgentId: "nobody"}))(t, fault.NotFound)
	got, err := r.client.ListWorkItems(operator, &workv1.ListWorkItemsRequest{AgentId: "other"})
	require.NoError(t, err, "one that has nothing yet")
	require.Empty(t, got.GetWorkItems())
	must.Value(r.service.GetWorkQueue(planetest.As(r.t.Context(), rpc.RoleService), &workv1.GetWorkQueueRequest{
		AgentId: "nobody",
	}))(t, "services know whom they ask about")
}
