package work

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
	"quartet/pkg/resident"
	"quartet/services/work/derive"
)

// shown are the items of an agent, as a reader sees them.
type shown struct {
	state *journaltest.CheckedState[*State]
	seq   uint64
	recs  map[string]*workv1.WorkItemRecord
	seqs  map[string][]uint64 // of the events of each item
	ids   []string            // in the order in which they were made
}

const owner = "keeper"

// newShown returns the items of an agent that has none. fresh and seen are described at journaltest.Checked.
func newShown(fresh func() *State, seen *journaltest.Seen) *shown {
	return &shown{
		state: journaltest.Checked(fresh, 25, seen), recs: map[string]*workv1.WorkItemRecord{},
		seqs: map[string][]uint64{},
	}
}

var keeperKey = plane.KeyOf("acme", owner)

// apply applies an event that gives an item a record.
func (s *shown) apply(t require.TestingT, rec *workv1.WorkItemRecord, payload any) {
	s.seq++
	id := rec.GetWorkItemId()
	require.NoError(t, s.state.Apply(&journal.Event{
		Namespace: "acme", AgentID: owner, WorkItemID: id, WalSeq: s.seq,
		CreatedAt: rec.GetUpdatedAt().AsTime(), Payload: payload.(proto.Message),
	}))
	if s.recs[id] == nil {
		s.ids = append(s.ids, id)
	}
	s.recs[id], s.seqs[id] = rec, append(s.seqs[id], s.seq)
}

// sorted returns the records of which a filter is true, in an order.
func (s *shown) sorted(of func(*workv1.WorkItemRecord) bool, less func(a, b *workv1.WorkItemRecord) bool) (
	recs []*workv1.WorkItemRecord,
) {
	for _, id := range s.ids {
		if of(s.recs[id]) {
			recs = append(recs, s.recs[id])
		}
	}
	slices.SortFunc(recs, func(a, b *workv1.WorkItemRecord) int {
		if less(a, b) {
			return -1
		}
		return 1
	})
	return recs
}

// check compares everything that the state shows of the agent's items.
func (s *shown) check(t require.TestingT, pageSize int) {
	st := s.state.Paged
	for id, rec := range s.recs {
		it := st.item("acme", id)
		require.True(t, proto.Equal(rec, it.rec), id)
		require.Equal(t, s.seqs[id], it.history.All(), id)
		require.Nil(t, st.item("globex", id))
	}
	for filter, of := range map[workv1.WorkItemFilter]func(*workv1.WorkItemRecord) bool{
		workv1.WorkItemFilter_WORK_ITEM_FILTER_ALL:       func(*workv1.WorkItemRecord) bool { return true },
		workv1.WorkItemFilter_WORK_ITEM_FILTER_COMPLETED: derive.Completed,
		workv1.WorkItemFilter_WORK_ITEM_FILTER_OPEN: func(rec *workv1.WorkItemRecord) bool {
			return !derive.Completed(rec)
		},
	} {
		var got []string
		var after *workv1.WorkItemRecord
		for {
			page := list(st, "acme", owner, filter, after, pageSize)
			for _, it := range page {
				got = append(got, it.GetWorkItemId())
				after = &workv1.WorkItemRecord{WorkItemId: it.GetWorkItemId(), CreatedAt: it.GetCreatedAt()}
			}
			if len(page) < pageSize {
				break
			}
		}
		require.Equal(t, idsOf(s.sorted(of, derive.Older)), got, filter)
	}
	q := queue(st, "acme", owner)
	completed := s.sorted(derive.Completed, func(a, b *workv1.WorkItemRecord) bool {
		return byUpdateNewest.less(place{-derive.UpdatedAt(a), &item{rec: a}},
			place{-derive.UpdatedAt(b), &item{rec: b}})
	})
	require.EqualValues(t, len(completed), q.GetCounts().GetCompleted())
	require.EqualValues(t, len(s.ids)-len(completed), q.GetCounts().GetOpen())
	var recent []string
	for _, it := range q.GetCompletedRecent() {
		recent = append(recent, it.GetWorkItemId())
	}
	require.Equal(t, idsOf(completed[:min(capCompleted, len(completed))]), recent)
}

func idsOf(recs []*workv1.WorkItemRecord) (ids []string) {
	for _, rec := range recs {
		ids = append(ids, rec.GetWorkItemId())
	}
	return ids
}

// TestW10_GroupsOfCompletedItems: whether an item is packed is seen by nobody: lists, queues, histories and pages are
// those of all items, in whatever order these are completed and written later, and whatever the clock does.
func TestW10_GroupsOfCompletedItems(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	packed := 0
	fresh := evicting(t)
	history := func(t *rapid.T) {
		s := newShown(fresh, nil)
		now := time.Unix(1_700_000_000, 0)
		next := func(id string, change func(rec *workv1.WorkItemRecord)) *workv1.WorkItemRecord {
			rec := &workv1.WorkItemRecord{
				WorkItemId: id, AgentId: owner,
				State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN, CreatedAt: timestamppb.New(now),
			}
			if was := s.recs[id]; was != nil {
				rec = proto.CloneOf(was)
			}
			rec.Revision++
			rec.UpdatedAt = timestamppb.New(now)
			if change != nil {
				change(rec)
			}
			return rec
		}
		complete := func(rec *workv1.WorkItemRecord) { rec.State = workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED }
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 1, 5, -7}).Draw(t, "seconds")) * time.Second)
			open := s.sorted(func(rec *workv1.WorkItemRecord) bool { return !derive.Completed(rec) }, derive.Older)
			done := s.sorted(derive.Completed, derive.Older)
			switch step := rapid.IntRange(0, 9).Draw(t, "step"); {
			case step < 4 || len(open) == 0:
				id := fmt.Sprintf("wi_%d_%d", rapid.IntRange(0, 9).Draw(t, "id"), len(s.ids))
				rec := next(id, nil)
				s.apply(t, rec, &workv1.WorkItemCreated{WorkItem: rec})
			case step < 8:
				rec := next(open[rapid.IntRange(0, min(3, len(open)-1)).Draw(t, "which")].GetWorkItemId(), complete)
				s.apply(t, rec, &workv1.WorkItemCompleted{WorkItem: rec})
			case step == 8 && len(done) > 0:
				rec := next(done[rapid.IntRange(0, len(done)-1).Draw(t, "which")].GetWorkItemId(),
					func(rec *workv1.WorkItemRecord) { rec.ResultBriefId = "brf_1" })
				s.apply(t, rec, &workv1.ReportPromoted{WorkItem: rec})
			case len(done) > 0: // what changes an item and not the time of its last write
				of := done[rapid.IntRange(0, len(done)-1).Draw(t, "which")]
				rec := next(of.GetWorkItemId(), func(rec *workv1.WorkItemRecord) { rec.UpdatedAt = of.GetUpdatedAt() })
				s.apply(t, rec, &workv1.WaitDetached{WorkItem: rec, WaitId: "wt_1"})
			}
		}
		s.check(t, rapid.IntRange(1, 30).Draw(t, "page size"))
		require.NoError(t, s.state.Check()) // evicts the agent
		s.check(t, rapid.IntRange(1, 30).Draw(t, "page size"))
		if a := s.state.Paged.ByOwner.Get(keeperKey); a != nil {
			packed += a.items.Packed()
		}
	}
	for n := 0; n < 20 && packed == 0; n++ { // a few histories need not have any
		rapid.Check(t, history)
	}
	require.Positive(t, packed)
}

// manyCompleted is a history of an agent that completes one item after the other, so that some groups are packed.
func manyCompleted(t *testing.T, packed int, seen *journaltest.Seen) *shown {
	s := newShown(evicting(t), seen)
	for n := range packed*groups.Size + recentItems {
		at := timestamppb.New(time.Unix(int64(n+1), 0))
		rec := &workv1.WorkItemRecord{
			WorkItemId: fmt.Sprint("wi_", n), AgentId: owner,
			State: workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED, CreatedAt: at, UpdatedAt: at,
		}
		s.apply(t, rec, &workv1.WorkItemCompleted{WorkItem: rec})
	}
	require.Equal(t, packed*groups.Size, s.state.Paged.ByOwner.Get(keeperKey).items.Packed())
	require.NoError(t, s.state.Check())
	return s
}

// An event of an item in one block is the one after which the last group of the block before is packed. The page of
// that block is touched.
func TestAGroupIsPackedBecauseOfAnotherBlock(t *testing.T) {
	manyCompleted(t, pageItems/groups.Size, nil)
}

// A page in which groups of items are packed is read as it was written, or is an error.
func TestPagesOfGroups(t *testing.T) {
	s := manyCompleted(t, 2, nil)
	o := NewState().PageOf(keeperKey, 0)
	page := func() *workv1.AgentWorkPage { return proto.CloneOf(s.state.Paged.Page(o).(*workv1.AgentWorkPage)) }
	require.Len(t, page().GetPacked(), 2)
	require.Len(t, page().GetItems(), recentItems)
	require.NoError(t, NewState().AddPage(o, page()))
	for want, change := range map[string]func(p *workv1.AgentWorkPage){
		"group 4 has":            func(p *workv1.AgentWorkPage) { p.Packed[1].Group = 4 },
		"group 0 is there twice": func(p *workv1.AgentWorkPage) { p.Packed[1].Group = 0; p.Packed[1].IdHashes[3]++ },
		"with 15 items": func(p *workv1.AgentWorkPage) {
			p.Packed[0].IdHashes = p.GetPacked()[0].GetIdHashes()[1:]
		},
		"has 0 bytes":   func(p *workv1.AgentWorkPage) { p.Packed[0].Content = nil },
		"with 68 items": func(p *workv1.AgentWorkPage) { p.Packed = append(p.Packed, p.GetPacked()...) },
	} {
		p := page()
		change(p)
		require.ErrorContains(t, NewState().AddPage(o, p), want, want)
	}
}

// Items whose ids have the same hash are told apart.
func TestGroupsOfOneHash(t *testing.T) {
	s := newShown(func() *State {
		fresh := NewState()
		fresh.Hash = func(plane.Key) uint64 { return 7 }
		return fresh
	}, nil)
	for n := range groups.Size + recentItems {
		rec := &workv1.WorkItemRecord{
			WorkItemId: fmt.Sprint("wi_", n), AgentId: owner, State: workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED,
			CreatedAt: timestamppb.New(time.Unix(int64(n), 0)), UpdatedAt: timestamppb.New(time.Unix(int64(n), 0)),
		}
		s.apply(t, rec, &workv1.WorkItemCompleted{WorkItem: rec})
	}
	s.check(t, 5)
	require.Equal(t, groups.Size, s.state.Paged.ByOwner.Get(keeperKey).items.Packed())
	require.Equal(t, "wi_3", s.state.Paged.item("acme", "wi_3").rec.GetWorkItemId())
	require.Nil(t, s.state.Paged.item("acme", "wi_unknown"))
	require.Nil(t, s.state.Paged.item("other", "wi_3"))
	rec := proto.CloneOf(s.recs["wi_3"])
	s.apply(t, rec, &workv1.ReportPromoted{WorkItem: rec})
	s.check(t, 5)
}

// A group whose bytes were changed in memory stops the call that needs it.
func TestGroupsThatWereChanged(t *testing.T) {
	s, a := NewState(), &agentWork{}
	a.items.Groups = append(a.items.Groups, groups.Group[item, created]{
		Packed: resident.NewBlob(nil, []byte("no packed group")),
	})
	require.PanicsWithValue(t, "packed: what was kept in memory cannot be read: packed: the checksum is another one",
		func() { s.Group(keeperKey, a, 0) })
}
