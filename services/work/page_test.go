package work

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// checkPages writes and reads the state that events lead to in pages, a few times in between. It is the same as one
// that evicts nothing.
func checkPages(t *testing.T, events []*journal.Event) {
	t.Helper()
	s, whole := journaltest.Checked(evicting(t), max(50, len(events)/4), nil), NewState()
	for _, ev := range events {
		require.NoError(t, s.Apply(ev))
		require.NoError(t, whole.Apply(ev))
	}
	require.NoError(t, s.Check())
	sameAnswers(t, whole, s.Paged)
	agents := map[plane.Key]bool{}
	for _, ev := range events {
		if k := plane.KeyOf(ev.Namespace, ev.AgentID); !agents[k] {
			agents[k] = true
			require.NoError(t, s.Apply(&journal.Event{
				Namespace: ev.Namespace, AgentID: ev.AgentID, WalSeq: 1 << 40,
				Payload: &workv1.OwnerDeleted{AgentId: ev.AgentID},
			}))
		}
	}
	erased, err := s.EraseDeleted()
	require.NoError(t, err)
	require.Len(t, erased, len(agents))
	require.NoError(t, journaltest.Same(NewState(), s.Paged), "nothing is left of anybody")
	require.Zero(t, s.Paged.Numbers.Len())
}

// The waits that ended last are in the page, also when earlier ones were forgotten.
func TestPagesOfManyWaits(t *testing.T) {
	s := journaltest.Checked(evicting(t), 1, nil)
	for i := range endedMemory + 5 {
		require.NoError(t, s.Apply(&journal.Event{
			Namespace: "acme", AgentID: "keeper", WorkItemID: "wi_1",
			WalSeq: uint64(i + 1), Payload: &workv1.WaitDetached{
				WorkItem: &workv1.WorkItemRecord{WorkItemId: "wi_1", AgentId: "keeper"}, WaitId: fmt.Sprint("wt_", i),
			},
		}))
	}
	require.Len(t, s.Paged.Page(headOf(plane.KeyOf("acme", "keeper"))).(*workv1.AgentWorkPage).GetEndedWaitIds(),
		endedMemory)
}

func TestPagesThatAreInvalid(t *testing.T) {
	keeper := NewState().PageOf(plane.KeyOf("acme", "keeper"), 0)
	item := func(change func(e *workv1.WorkItemEntry)) *workv1.WorkItemEntry {
		e := &workv1.WorkItemEntry{
			WorkItem:    &workv1.WorkItemRecord{WorkItemId: "wi_1", AgentId: "keeper"},
			HistoryLast: 300, HistorySteps: []byte{1, 0xab, 2},
		}
		change(e)
		return e
	}
	good := item(func(*workv1.WorkItemEntry) {})
	for name, c := range map[string]struct {
		page proto.Message
		want string
	}{
		"another type": {&emptypb.Empty{}, "no page of type *emptypb.Empty"},
		"no record": {
			&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{{}}},
			"agent acme/keeper: an item without a record",
		},
		"no id": {
			&workv1.AgentWorkPage{
				Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.WorkItem.WorkItemId = "" })},
			},
			"without a record or an id",
		},
		"another agent's": {
			&workv1.AgentWorkPage{
				Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.WorkItem.AgentId = "other" })},
			},
			`item wi_1 belongs to agent "other"`,
		},
		"twice": {
			&workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{good, good}},
			"item acme/wi_1 is there twice",
		},
		"a cut history": {
			&workv1.AgentWorkPage{
				Items: []*workv1.WorkItemEntry{
					item(func(e *workv1.WorkItemEntry) { e.HistorySteps = e.GetHistorySteps()[:2] }),
				},
			},
			"its history does not end",
		},
		"a shorter history": {
			&workv1.AgentWorkPage{
				Items: []*workv1.WorkItemEntry{
					item(func(e *workv1.WorkItemEntry) { e.HistorySteps = e.GetHistorySteps()[:1] }),
				},
			},
			"its history does not end",
		},
		"a history of others": {
			&workv1.AgentWorkPage{
				Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.HistoryLast++ })},
			},
			"at its last event 301",
		},
	} {
		require.ErrorContains(t, NewState().AddPage(keeper, c.page), c.want, name)
	}
	s := NewState()
	page := &workv1.AgentWorkPage{Items: []*workv1.WorkItemEntry{good}}
	require.NoError(t, s.AddPage(keeper, page))
	require.ErrorContains(t, s.AddPage(keeper, page), "item acme/wi_1 is there twice")
	other := &workv1.AgentWorkPage{
		Items: []*workv1.WorkItemEntry{item(func(e *workv1.WorkItemEntry) { e.WorkItem.WorkItemId = "wi_2" })},
	}
	require.ErrorContains(t, s.AddPage(keeper, other), "item acme/wi_2 is in the place of item acme/wi_1")
	require.ErrorContains(t, s.AddPage(headOf(plane.KeyOf("acme", "keeper")), other), "no page")
	for _, id := range []string{
		"other/", "keeper", "keeper/1", "keeper/00", "keeper/-1",
		"keeper/99999999999999999999",
	} {
		require.Nil(t, s.Page(snapshot.Owner{Namespace: "acme", ID: id}), id)
	}
}

// Items are in blocks, of which an event changes that of its item, in whatever order they are read.
func TestPagesOfManyItems(t *testing.T) {
	s := journaltest.Checked(evicting(t), 50, nil)
	k := plane.KeyOf("acme", "keeper")
	for i := range 2*pageItems + 3 {
		id := fmt.Sprint("wi_", i)
		require.NoError(t, s.Apply(&journal.Event{
			Namespace: "acme", AgentID: "keeper", WorkItemID: id,
			WalSeq: uint64(i + 1), Payload: &workv1.WorkItemCreated{
				WorkItem: &workv1.WorkItemRecord{WorkItemId: id, AgentId: "keeper"},
			},
		}))
	}
	require.NoError(t, s.Check())
	for block, n := range []int{pageItems, pageItems, 3} {
		require.Len(t, s.Paged.Page(s.Paged.PageOf(k, block*pageItems)).(*workv1.AgentWorkPage).GetItems(), n)
	}
	var touched []snapshot.Owner
	s.Paged.Owners(&journal.Event{
		Namespace: "acme", AgentID: "keeper", WorkItemID: "wi_70",
		Payload: &workv1.WorkItemUpdated{
			WorkItem: &workv1.WorkItemRecord{WorkItemId: "wi_70", AgentId: "keeper"},
		},
	}, func(o snapshot.Owner) { touched = append(touched, o) })
	require.ElementsMatch(t, []snapshot.Owner{NewState().PageOf(k, 70), headOf(k)}, touched)
}
