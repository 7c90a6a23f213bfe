package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
)

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
