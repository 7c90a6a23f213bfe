package work

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/pages"
	"quartet/pkg/journal/pages/pagestest"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// checkPages writes and reads the state that events lead to in pages, a few times in between.
func checkPages(t *testing.T, events []*journal.Event) {
	t.Helper()
	s := pagestest.Checked(NewState, max(50, len(events)/4), nil)
	for _, ev := range events {
		require.NoError(t, s.Apply(ev))
	}
	require.NoError(t, s.Check())
}

// The waits that ended last are in the page, also when earlier ones were forgotten.
func TestPagesOfManyWaits(t *testing.T) {
	s := pagestest.Checked(NewState, 1, nil)
	for i := range endedMemory + 5 {
		require.NoError(t, s.Apply(&journal.Event{Namespace: "acme", AgentID: "keeper", WorkItemID: "wi_1", WalSeq: uint64(i + 1), Payload: &workv1.WaitDetached{
			WorkItem: &workv1.WorkItemRecord{WorkItemId: "wi_1", AgentId: "keeper"}, WaitId: fmt.Sprint("wt_", i),
		}}))
	}
	require.Len(t, s.Paged.Page(pages.Owner{Namespace: "acme", ID: "keeper"}).(*workv1.AgentWorkPage).GetEndedWaitIds(), endedMemory)
}

func TestPagesThatAreInvalid(t *testing.T) {
	keeper := pages.Owner{Namespace: "acme", ID: "keeper"}
	item := func(change func(e *workv1.WorkItemEntry)) *workv1.WorkItemEntry {
		e := &workv1.WorkItemEntry{WorkItem: &workv1.WorkItemRecord{WorkItemId: "wi_1", AgentId: "keeper"}, HistoryLast: 300, HistorySteps: []byte{1, 0xab, 2}}
		change(e)
		return e
	}
	good := item(func(*workv1.WorkItemEntry) {})
	for name, c := range map[string]struct {
		page proto.Message
		want string
	}{
		"another type":        {&emptypb.Empty{}, "a page of type *emptypb.Empty"},
		"no record":           {&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{{}}}, "agent acme/keeper: an item without a record"},
		"no id":               {&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.WorkItem.WorkItemId = "" })}}, "without a record or an id"},
		"another agent's":     {&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.WorkItem.AgentId = "other" })}}, `item wi_1 belongs to agent "other"`},
		"twice":               {&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{good, good}}, "item wi_1 is there twice"},
		"a cut history":       {&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.HistorySteps = e.GetHistorySteps()[:2] })}}, "its history does not end"},
		"a shorter history":   {&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.HistorySteps = e.GetHistorySteps()[:1] })}}, "its history does not end"},
		"a history of others": {&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.HistoryLast++ })}}, "at its last event 301"},
	} {
		require.ErrorContains(t, NewState().AddPage(keeper, c.page), c.want, name)
	}
	s := NewState()
	page := &workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{good}}
	require.NoError(t, s.AddPage(keeper, page))
	require.ErrorContains(t, s.AddPage(keeper, page), "a second page of agent acme/keeper")
	require.Nil(t, s.Page(pages.Owner{Namespace: "acme", ID: "other"}))
}
