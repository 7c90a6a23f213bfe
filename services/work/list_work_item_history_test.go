package work

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/work/past"
)

// linesOf returns a history with one line for each entry: what happened, by whom, what changed.
func linesOf(mutations []*workv1.WorkItemMutation) []string {
	var out []string
	for _, m := range mutations {
		line := fmt.Sprintf("%d %s r%d %s", m.GetNumber(), m.GetEventType(), m.GetRevision(), m.GetPrincipal())
		for _, c := range m.GetChanges() {
			line += fmt.Sprintf(" %s:%v>%v", c.GetField(), c.GetFrom().AsInterface(), c.GetTo().AsInterface())
		}
		if m.GetReason() != "" {
			line += " (" + m.GetReason() + ")"
		}
		out = append(out, line)
	}
	return out
}

func (r *rig) past(ctx context.Context, itemID string, size int32, newestFirst bool) []*workv1.WorkItemMutation {
	r.t.Helper()
	var out []*workv1.WorkItemMutation
	token := ""
	for {
		resp := must.Value(r.client.ListWorkItemHistory(ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID, PageSize: size, PageToken: token, NewestFirst: newestFirst,
		}))(r.t)
		out = append(out, resp.GetMutations()...)
		if token = resp.GetNextPageToken(); token == "" {
			return out
		}
	}
}

func TestW11_HistorySaysWhoWhenWhatAndInWhichTurn(t *testing.T) {
	r := newRig(t)
	first, second := r.create("ship").GetWorkItemId(), r.create("test").GetWorkItemId()
	run := "run_00000000000000000000000abc"
	inRun := rpc.WithActor(t.Context(), rpc.Actor{
		Namespace: "acme", Principal: "agent/keeper", Role: rpc.RoleAgent, AgentID: "keeper", RunID: run,
	})
	must.Value(r.service.PickWorkItem(inRun, &workv1.PickWorkItemRequest{
		AgentId: "keeper", WorkItemId: first, RequestId: "q1",
	}))(t)
	must.Value(r.service.PickWorkItem(inRun, &workv1.PickWorkItemRequest{
		AgentId: "keeper", WorkItemId: second, Reason: "sooner",
	}))(t)
	r.pick(first)
	r.clk.Advance(1e9)
	operator := planetest.As(t.Context(), rpc.RoleOperator)
	must.Value(r.client.UpdateWorkItem(operator, &workv1.UpdateWorkItemRequest{
		AgentId: "keeper", WorkItemId: first, BlockedBy: new("the licence"),
	}))(t)
	_, err := r.client.CompleteWorkItem(operator, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: first})
	require.NoError(t, err)

	for _, when := range []string{"live", "after a restart"} {
		got := r.past(r.ctx, first, 0, false)
		require.Equal(t, []string{
			"1 work_item_created r1 agent/keeper objective:<nil>>ship state:<nil>>open plan_status:<nil>>draft " +
				"created_at:<nil>>2026-03-01T12:00:00.000000Z",
			"2 work_item_picked r1 agent/keeper is_current:false>true",
			"3 work_item_picked r1 agent/keeper is_current:true>false (sooner)",
			"4 work_item_picked r1 agent/keeper is_current:false>true (test)",
			"5 work_item_updated r2 operator blocked_by:<nil>>the licence",
			"6 focus_released r2 operator is_current:true>false (blocked)",
			"7 work_item_completed r3 operator state:open>completed blocked_by:the licence><nil> " +
				"completed_at:<nil>>2026-03-01T12:00:01.000000Z",
		}, linesOf(got), when)
		require.Equal(t, run, got[1].GetRunId())
		require.Equal(t, "trn_00000000000000000000000abc", got[1].GetTurnId())
		require.Equal(t, "q1", got[1].GetRequestId())
		require.Equal(t, "keeper", got[1].GetActorAgentId())
		require.Equal(t, rpc.RoleOperator, got[4].GetRole())
		require.Empty(t, got[4].GetRunId())
		require.Empty(t, got[4].GetRequestId(), "a request id that nobody gave is nobody's")
		require.Equal(t, epoch.Add(1e9), got[4].GetAt().AsTime())
		require.NotEmpty(t, got[4].GetEventId())
		r.restart()
	}
}

func TestW11_HistoryPagesAreStableUnderWrites(t *testing.T) {
	r := newRig(t)
	itemID := r.create("v0").GetWorkItemId()
	write := func(n int) {
		must.Value(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: itemID, Objective: new(fmt.Sprint("v", n)),
		}))(t)
	}
	for n := 1; n < 60; n++ {
		write(n)
	}
	numbers := func(ms []*workv1.WorkItemMutation) []int64 {
		var out []int64
		for _, m := range ms {
			out = append(out, m.GetNumber())
			require.Equal(t, m.GetNumber(), m.GetRevision())
			require.Equal(t, fmt.Sprint("v", m.GetNumber()-1), m.GetChanges()[0].GetTo().GetStringValue())
		}
		return out
	}
	forward := numbers(r.past(r.ctx, itemID, 7, false))
	require.Len(t, forward, 60)
	require.True(t, slices.IsSorted(forward))
	backward := numbers(r.past(r.ctx, itemID, 21, true))
	slices.Reverse(backward)
	require.Equal(t, forward, backward)

	for _, newest := range []bool{false, true} {
		resp := must.Value(r.client.ListWorkItemHistory(r.ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID, PageSize: 10, NewestFirst: newest,
		}))(t)
		last := resp.GetMutations()[9].GetNumber()
		write(int(r.get(itemID).GetRevision()))
		resp = must.Value(r.client.ListWorkItemHistory(r.ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID, PageSize: 10, NewestFirst: newest,
			PageToken: resp.GetNextPageToken(),
		}))(t)
		want := last + 1
		if newest {
			want = last - 1
		}
		require.Equal(t, want, resp.GetMutations()[0].GetNumber(), "newest first: %v", newest)
	}
}

func TestX9_HistoryIsBoundedByBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	todos := make([]*workv1.TodoItem, 200)
	for n := range 12 {
		for i := range todos {
			todos[i] = &workv1.TodoItem{
				Text:  fmt.Sprintf("%0999d%d", i, n%10),
				State: workv1.TodoState_TODO_STATE_PENDING,
			}
		}
		must.Value(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: itemID, TodoList: &workv1.TodoList{Items: todos},
		}))(t)
	}
	resp := must.Value(r.client.ListWorkItemHistory(r.ctx, &workv1.ListWorkItemHistoryRequest{
		AgentId: "keeper", WorkItemId: itemID, PageSize: 500,
	}))(t)
	require.NotEmpty(t, resp.GetNextPageToken())
	require.Less(t, proto.Size(resp), 2<<20+1<<19)
	require.Len(t, r.past(r.ctx, itemID, 500, false), 13)
	require.Len(t, r.past(r.ctx, itemID, 500, true), 13)
}

func TestW11_HistoryIsReadByWhoMayReadTheItem(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	for name, c := range map[string]struct {
		ctx  context.Context //nolint:containedctx // the caller of one row
		req  *workv1.ListWorkItemHistoryRequest
		want error
	}{
		"no such item": {r.ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: "wi_00000000000000000000000zzz",
		}, fault.NotFound},
		"no item id": {
			r.ctx, &workv1.ListWorkItemHistoryRequest{AgentId: "keeper", WorkItemId: "7"},
			fault.InvalidArgument,
		},
		"another agent": {planetest.AsAgent(t.Context(), "other"), &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID,
		}, fault.PermissionDenied},
		"another's item": {planetest.AsAgent(t.Context(), "other"), &workv1.ListWorkItemHistoryRequest{
			AgentId: "other", WorkItemId: itemID,
		}, fault.PermissionDenied},
		"a page too large": {r.ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID, PageSize: 501,
		}, fault.LimitExceeded},
		"another list's": {r.ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID, PageToken: "eHg",
		}, fault.CursorInvalid},
		"an invented number": {r.ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID, PageToken: token(itemID, "99"),
		}, fault.CursorInvalid},
		"a negative number": {r.ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID, PageToken: token(itemID, "-1"),
		}, fault.CursorInvalid},
	} {
		must.Refuse(r.client.ListWorkItemHistory(c.ctx, c.req))(t, c.want, name)
	}
	must.Value(r.client.ListWorkItemHistory(planetest.As(t.Context(), rpc.RoleOperator),
		&workv1.ListWorkItemHistoryRequest{AgentId: "keeper", WorkItemId: itemID}))(t)
}

// The history of every item, read page by page, tells the record as it stands
// and the focus: nothing is missing from it (SPEC W11).
func TestW11_HistoriesTellEverything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := openRig(t)
		defer func() { r.down() }()
		h := &randomRun{rig: r, rt: rt, agents: []string{"keeper"}}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			h.step()
		}
		if rapid.Bool().Draw(rt, "restart") {
			r.restart()
		}
		size, newest := rapid.Int32Range(1, 25).Draw(rt, "page"), rapid.Bool().Draw(rt, "newest first")
		for _, itemID := range h.items {
			mutations := r.past(r.ctx, itemID, size, newest)
			if newest {
				slices.Reverse(mutations)
			}
			fields, focus, revision := map[string]*structpb.Value{}, false, int64(0)
			for i, m := range mutations {
				require.EqualValues(rt, i+1, m.GetNumber())
				require.GreaterOrEqual(rt, m.GetRevision(), revision)
				revision = m.GetRevision()
				for _, c := range m.GetChanges() {
					if c.GetField() == "is_current" {
						require.Equal(rt, focus, c.GetFrom().GetBoolValue())
						focus = c.GetTo().GetBoolValue()
						continue
					}
					require.True(rt, proto.Equal(fields[c.GetField()], c.GetFrom()), "%s: %v, not %v", c.GetField(),
						fields[c.GetField()], c.GetFrom())
					delete(fields, c.GetField())
					if c.GetTo() != nil {
						fields[c.GetField()] = c.GetTo()
					}
				}
			}
			var stands *workv1.WorkItemRecord
			_ = r.look(func(s *State) { stands = s.record("acme", itemID) })
			want := must.Value(past.Fields(stands))(rt)
			for _, f := range past.Uncompared {
				delete(want, f)
			}
			require.Len(rt, fields, len(want))
			for f, v := range want {
				require.True(rt, proto.Equal(v, fields[f]), f)
			}
			require.Equal(rt, stands.GetRevision(), revision)
			require.Equal(rt, r.get(itemID).GetIsCurrent(), focus)
		}
	})
}

// An item's whole history costs its agent's memory two or three bytes a
// mutation; the journal holds the rest.
func TestW11_ATrailIsSmall(t *testing.T) {
	tr := past.Seqs{}
	var want []uint64
	for n := range uint64(1000) {
		at := 5_000_000 + n*9_000
		tr, want = tr.With(at), append(want, at)
	}
	require.Equal(t, want, tr.All())
	require.LessOrEqual(t, len(tr.Steps), 3*1000+2)
}

// Of the journal of work only the creations of open items are needed, and histories say where mutations were removed
// (SPEC W18).
func TestW18_HistoriesOfItems(t *testing.T) {
	r := newRig(t)
	update := func(itemID, objective string) {
		r.clk.Advance(time.Second)
		must.Value(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: itemID, Objective: &objective,
		}))(t)
	}
	open, done := r.create("open").GetWorkItemId(), r.create("done").GetWorkItemId()
	update(open, "a")
	update(open, "b")
	update(done, "c")
	_, err := r.client.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: done})
	require.NoError(t, err)
	r.clk.Advance(time.Hour)
	before := r.clk.Now()
	update(open, "d")
	r.pick(open)
	update(open, "e")

	removed := planetest.Forget(t, r.journals, Plane, registry, NewState(), before)
	require.Equal(t, []string{
		"work_item_created", "work_item_updated", "work_item_updated", "work_item_updated",
		"work_item_completed",
	}, planetest.Types(removed))
	require.Equal(t, done, removed[0].WorkItemID)

	list := func(itemID, token string, size int32, newest bool) *workv1.ListWorkItemHistoryResponse {
		t.Helper()
		return must.Value(r.client.ListWorkItemHistory(r.ctx, &workv1.ListWorkItemHistoryRequest{
			AgentId: "keeper", WorkItemId: itemID, PageToken: token, PageSize: size, NewestFirst: newest,
		}))(t)
	}
	left := []string{
		"1 work_item_created r1 agent/keeper objective:<nil>>open state:<nil>>open plan_status:<nil>>draft " +
			"created_at:<nil>>2026-03-01T12:00:00.000000Z",
		"4 work_item_updated r4 agent/keeper", // from what is not known
		"5 work_item_picked r4 agent/keeper is_current:false>true (test)",
		"6 work_item_updated r5 agent/keeper objective:d>e",
	}
	resp := list(open, "", 0, false)
	require.Equal(t, left, linesOf(resp.GetMutations()))
	require.True(t, resp.GetHistoryRemoved())
	require.Empty(t, resp.GetNextPageToken())
	resp = list(open, "", 0, true)
	require.Equal(t, []string{left[3], left[2], left[1], left[0]}, linesOf(resp.GetMutations()))
	require.True(t, resp.GetHistoryRemoved())

	for _, newest := range []bool{false, true} { // a page for each
		want := left
		if newest {
			want = []string{left[3], left[2], left[1], left[0]}
		}
		var got []string
		told, token := false, ""
		for {
			resp = list(open, token, 1, newest)
			got, told = append(got, linesOf(resp.GetMutations())...), told || resp.GetHistoryRemoved()
			if token = resp.GetNextPageToken(); token == "" {
				break
			}
		}
		require.Equal(t, want, got)
		require.True(t, told)

		resp = list(done, "", 0, newest)
		require.Empty(t, resp.GetMutations())
		require.True(t, resp.GetHistoryRemoved())
	}
	require.Equal(t, "c", r.get(done).GetObjective(), "the item is there")
}

// A completion that is older than the creation of its item is kept until both can go: a clock was set back between them
// (SPEC W18).
func TestW18_AClockThatIsSetBack(t *testing.T) {
	r := newRig(t)
	itemID := r.create("one").GetWorkItemId()
	_, err := r.client.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: itemID})
	require.NoError(t, err)
	state := NewState()
	for _, ev := range r.events() {
		require.NoError(t, state.Apply(ev))
		if ev.Type == "work_item_completed" {
			require.False(t, state.Needs(ev, epoch.Add(time.Hour)))
			ev.CreatedAt = epoch.Add(-time.Minute)
			require.True(t, state.Needs(ev, epoch))
			require.False(t, state.Needs(ev, epoch.Add(time.Hour)), "both are old")
		}
	}
}
