package work

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	"quartet/pkg/packed"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/groups"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/resident"
	"quartet/pkg/rpc"
	"quartet/services/work/derive"
)

// evicting returns a function that returns empty states with a file.
func evicting(t *testing.T) func() *State {
	f := journaltest.NewFile(t)
	return func() *State {
		s := NewState()
		s.UseFile(f)
		return s
	}
}

// sameAnswers requires that two states have the same, have the same pages, byte for byte, and answer the same, and that
// no read changes who is evicted.
func sameAnswers(t require.TestingT, whole, s *State) {
	before := s.Counts()
	require.NoError(t, journaltest.Same(whole, s))
	require.Equal(t, journaltest.EncodedPages(t, whole), journaltest.EncodedPages(t, s))
	require.ElementsMatch(t, whole.DeletedBefore(time.Unix(1<<40, 0)), s.DeletedBefore(time.Unix(1<<40, 0)))
	for k := range whole.ByOwner.Keys() {
		a := whole.ByOwner.Get(k)
		require.Equal(t, whole.met(k.Namespace, k.ID), s.met(k.Namespace, k.ID))
		require.Equal(t, a.current, s.current(k.Namespace, k.ID))
		require.Equal(t, whole.ownerIsDeleted(k.Namespace, k.ID), s.ownerIsDeleted(k.Namespace, k.ID))
		require.Equal(t, dependent(whole, k.Namespace, k.ID), dependent(s, k.Namespace, k.ID))
		for _, id := range append(a.ended, "wt_unknown") {
			require.Equal(t, whole.hasEnded(k.Namespace, k.ID, id), s.hasEnded(k.Namespace, k.ID, id))
		}
		require.True(t, proto.Equal(queue(whole, k.Namespace, k.ID), queue(s, k.Namespace, k.ID)))
		for f := range workv1.WorkItemFilter_name {
			want, got := list(whole, k.Namespace, k.ID, workv1.WorkItemFilter(f), nil, 50),
				list(s, k.Namespace, k.ID, workv1.WorkItemFilter(f), nil, 50)
			require.Len(t, got, len(want))
			for i := range want {
				require.True(t, proto.Equal(want[i], got[i]))
			}
		}
		for n := range a.items.Groups {
			for _, it := range whole.Group(k, a, n) {
				id := it.rec.GetWorkItemId()
				want, got := whole.item(k.Namespace, id), s.item(k.Namespace, id)
				require.True(t, proto.Equal(want.rec, got.rec))
				require.Equal(t, want.index, got.index)
				require.Equal(t, want.history.All(), got.history.All())
				_, err := s.owned(k.Namespace, "stranger", id)
				require.ErrorIs(t, err, fault.PermissionDenied)
				require.Nil(t, s.item("globex", id))
				created := &journal.Event{Namespace: k.Namespace, Payload: &workv1.WorkItemCreated{WorkItem: want.rec}}
				require.Equal(t, !derive.Completed(want.rec), s.Needs(created, time.Time{}))
				require.Equal(t, whole.Needs(created, time.Time{}), s.Needs(created, time.Time{}))
			}
		}
	}
	require.Equal(t, [2]int{before.Resident, before.Evicted}, [2]int{s.Counts().Resident, s.Counts().Evicted})
}

// complete gives an agent completed items with ids from..to-1.
func complete(t require.TestingT, s journal.State, agentID string, from, to int) {
	for n := from; n < to; n++ {
		at := timestamppb.New(time.Unix(int64(n), 0))
		id := fmt.Sprintf("wi_%s_%d", agentID, n)
		rec := &workv1.WorkItemRecord{
			WorkItemId: id, AgentId: agentID,
			State: workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED, CreatedAt: at, UpdatedAt: at,
		}
		require.NoError(t, s.Apply(&journal.Event{
			Namespace: "acme", AgentID: agentID, WorkItemID: id, WalSeq: uint64(n + 1), CreatedAt: at.AsTime(),
			Payload: &workv1.WorkItemCompleted{WorkItem: rec},
		}))
	}
}

// Whether an agent is evicted is seen by nobody who calls the plane: another agent's item is PERMISSION_DENIED and not
// NOT_FOUND, and is found.
func TestItemsOfEvictedAgents(t *testing.T) {
	r := newRig(t)
	mine := r.create("one").GetWorkItemId()
	resp, err := r.client.CreateWorkItem(planetest.AsAgent(t.Context(), "other"), &workv1.CreateWorkItemRequest{
		AgentId: "other", Objective: "two",
	})
	require.NoError(t, err)
	others := resp.GetWorkItem().GetWorkItemId()
	f := journaltest.NewFile(t)
	evicted := func() (n int) {
		require.NoError(t, r.look(func(s *State) { n = s.Counts().Evicted }))
		return n
	}
	require.NoError(t, r.look(func(s *State) {
		s.UseFile(f)
		journaltest.EvictAll(t, s)
	}))
	require.Equal(t, 2, evicted())
	_, err = r.client.GetWorkItem(r.ctx, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: others})
	require.ErrorIs(t, fault.From(err), fault.PermissionDenied)
	_, err = r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
		AgentId: "keeper", WorkItemId: others,
		ClearBlockedBy: true,
	})
	require.ErrorIs(t, fault.From(err), fault.PermissionDenied)
	_, err = r.client.GetWorkItem(r.ctx, &workv1.GetWorkItemRequest{
		AgentId: "keeper", WorkItemId: "wi_00000000000000000000000zzz",
	})
	require.ErrorIs(t, fault.From(err), fault.NotFound)
	found, err := r.client.FindWorkItem(planetest.As(t.Context(), rpc.RoleService), &workv1.FindWorkItemRequest{
		WorkItemId: others,
	})
	require.NoError(t, err)
	require.Equal(t, "other", found.GetAgentId())
	require.Equal(t, "one", r.get(mine).GetObjective())
	history, err := r.client.ListWorkItemHistory(r.ctx, &workv1.ListWorkItemHistoryRequest{
		AgentId: "keeper", WorkItemId: mine,
	})
	require.NoError(t, err)
	require.Len(t, history.GetMutations(), 1)
	require.Equal(t, 2, evicted(), "reads and refusals change nothing")
	r.pick(mine)
	require.Equal(t, 1, evicted(), "who works is resident")
	require.True(t, r.get(mine).GetIsCurrent())
}

// Items of one hash are told apart, whether they are in packed groups, or of evicted agents.
func TestEvictedItemsOfOneHash(t *testing.T) {
	fresh := func() *State {
		s := evicting(t)()
		s.Hash = func(k plane.Key) uint64 {
			return packed.Hash(k.Namespace, strings.NewReplacer("wi_b_3", "wi_a_1", "wi_c_18", "wi_c_17").Replace(k.ID))
		}
		return s
	}
	s, whole := fresh(), NewState()
	whole.Hash = s.Hash
	both := func(agentID string, from, to int) {
		complete(t, s, agentID, from, to)
		complete(t, whole, agentID, from, to)
		journaltest.EvictAll(t, s)
		require.Zero(t, s.Counts().Resident)
		sameAnswers(t, whole, s)
	}
	both("a", 0, 3)
	both("b", 0, 5)
	both("c", 0, 19)
	both("b", 5, groups.Size+recentItems)
	require.Equal(t, groups.Size, s.ByOwner.Get(plane.KeyOf("acme", "b")).items.Packed())
	require.NoError(t, journaltest.RoundTrip(s, fresh))
}

// An event that changes nothing of an evicted agent does not read it.
func TestEventsThatReadNoEvictedAgent(t *testing.T) {
	s := evicting(t)()
	complete(t, s, "a", 0, groups.Size)
	require.NotEmpty(t, s.ByOwner.Get(plane.KeyOf("acme", "a")).packable)
	journaltest.EvictAll(t, s)
	for _, p := range []proto.Message{&workv1.HomeFileWritten{}, &workv1.WaitAttachRefused{}} {
		ev := &journal.Event{Namespace: "acme", AgentID: "a", WorkItemID: "wi_a_1", Payload: p}
		s.Owners(ev, func(o snapshot.Owner) { require.Fail(t, "a page was touched", o) })
		require.NoError(t, s.Apply(ev))
	}
	require.Equal(t, resident.Counts{Evicted: 1}, s.Counts())
}

// An agent with many groups stays, and so does one of which some items are still to come.
func TestAgentsThatStay(t *testing.T) {
	s := evicting(t)()
	complete(t, s, "large", 0, evictedGroups*groups.Size)
	journaltest.EvictAll(t, s)
	evicted := s.Counts().Evicted
	require.Equal(t, 1, evicted)
	complete(t, s, "large", evictedGroups*groups.Size, evictedGroups*groups.Size+1)
	journaltest.EvictAll(t, s)
	evicted = s.Counts().Evicted
	require.Zero(t, evicted)

	k := plane.KeyOf("acme", "large")
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}} {
		whole, into := NewState(), evicting(t)()
		complete(t, whole, "large", 0, 2*pageItems+5)
		var counts []int
		for _, block := range order {
			page := whole.Page(s.PageOf(k, block*pageItems))
			require.NoError(t, into.AddPage(s.PageOf(k, block*pageItems), proto.Clone(page)))
			journaltest.EvictAll(t, into)
			evicted := into.Counts().Evicted
			counts = append(counts, evicted)
		}
		require.NoError(t, into.AddPage(headOf(k), whole.Page(headOf(k))))
		require.Equal(t, order[0] == 0, counts[0] == 1)
		require.Equal(t, 1, counts[2])
		sameAnswers(t, whole, into)
	}
}

// The bytes of packed groups are in the file, whether their agent is evicted or too large for that, as long as they are
// packed.
func TestPackedGroupsAreInTheFile(t *testing.T) {
	f, err := resident.Create(t.TempDir())
	require.NoError(t, err)
	s, whole := NewState(), NewState()
	s.UseFile(f)
	const items = evictedGroups*groups.Size + 2*groups.Size
	complete(t, s, "large", 0, items)
	complete(t, whole, "large", 0, items)
	k := plane.KeyOf("acme", "large")
	last := &s.ByOwner.Get(k).items.Groups[evictedGroups]
	require.Len(t, last.Packed.Ref(), len(resident.NewBlob(f, []byte("x")).Ref()), "a place, and not the bytes")
	sameAnswers(t, whole, s)
	journaltest.EvictAll(t, s)
	require.Equal(t, 1, s.Counts().Resident)
	sameAnswers(t, whole, s)

	size, bytes := f.Size(), f.Bytes()
	for n := range evictedGroups {
		for _, each := range []*State{s, whole} {
			// once more: its group is unpacked, and packed again
			complete(t, each, "large", n*groups.Size, n*groups.Size+1)
		}
		require.Less(t, f.Bytes(), bytes+bytes/10, "what was unpacked is not in the file")
	}
	require.Less(t, f.Size(), size+size/10, "places are used again")
	sameAnswers(t, whole, s)

	require.NoError(t,
		s.Apply(&journal.Event{Namespace: "acme", AgentID: "large", Payload: &workv1.OwnerDeleted{AgentId: "large"}}))
	free := f.Bytes() // of the index
	s.Erase(func(string, string) bool { return true }, func(snapshot.Owner) {})
	require.Less(t, f.Bytes(), free/2)
	require.NoError(t, f.Close())
}

// Without a file that can be written, all stays in memory, and is found there, until it can be. What cannot be read
// from it is the panic that has the partition loaded again.
func TestFileOfPackedGroupsFails(t *testing.T) {
	f, err := resident.Create(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, f.Close())
	s, whole := NewState(), NewState()
	s.UseFile(f)
	const items = evictedGroups*groups.Size + 1
	complete(t, s, "a", 0, items)
	complete(t, whole, "a", 0, items)
	_, _, err = s.Evict(math.MaxInt, false)
	require.NoError(t, err, "it is too large")
	sameAnswers(t, whole, s)

	s.File, err = resident.Create(t.TempDir())
	require.NoError(t, err)
	s.ByOwner.Use(s.File)
	journaltest.EvictAll(t, s)
	require.Equal(t, 1, s.Counts().Resident)
	require.Positive(t, s.File.Bytes())
	sameAnswers(t, whole, s)
	require.NoError(t, s.File.Close())
	k := plane.KeyOf("acme", "a")
	err = snapshot.Guarded(func() { s.Group(k, s.ByOwner.Get(k), 3) })
	require.ErrorIs(t, err, resident.ErrUnreadable)
	err = snapshot.Guarded(func() { s.Page(s.PageOf(plane.KeyOf("acme", "a"), 0)) })
	require.ErrorIs(t, err, resident.ErrUnreadable)
}

// Who looks for deleted agents reads only these, and nothing is left of those that are erased.
func TestEvictedAgentsAreErased(t *testing.T) {
	f := journaltest.NewFile(t)
	s := NewState()
	s.UseFile(f)
	for _, agentID := range []string{"a", "b", "c"} {
		complete(t, s, agentID, 0, groups.Size+recentItems)
	}
	deleted := &journal.Event{
		Namespace: "acme", AgentID: "b", CreatedAt: time.Unix(100, 0),
		Payload: &workv1.OwnerDeleted{AgentId: "b"},
	}
	require.NoError(t, s.Apply(deleted))
	journaltest.EvictAll(t, s)
	before := s.Counts().Reads
	s.AllOwners(func(snapshot.Owner) {})
	require.True(t, s.ownerIsDeleted("acme", "b"))
	require.False(t,
		s.Needs(&journal.Event{Namespace: "acme", Payload: &workv1.WorkItemCreated{
			WorkItem: &workv1.WorkItemRecord{WorkItemId: "wi_a_19"},
		}}, time.Time{}))
	require.Empty(t, s.DeletedBefore(time.Unix(100, 0)))
	require.Equal(t, []snapshot.Owner{{Namespace: "acme", ID: "b"}}, s.DeletedBefore(time.Unix(101, 0)))
	after := s.Counts().Reads
	require.Equal(t, before+1, after)

	var touched []snapshot.Owner
	s.Erase(func(_, id string) bool { return id != "a" }, func(o snapshot.Owner) { touched = append(touched, o) })
	require.ElementsMatch(t, []snapshot.Owner{headOf(plane.KeyOf("acme", "b")), s.PageOf(plane.KeyOf("acme", "b"), 0)},
		touched)
	require.Equal(t, [2]int{0, 2}, [2]int{s.Counts().Resident, s.Counts().Evicted})
	require.Equal(t, 2*(groups.Size+recentItems), s.Index.Len())
	require.Empty(t, s.Items)
	require.Equal(t, 2, s.Numbers.Len())
	complete(t, s, "d", 0, 1)
	require.Equal(t, 3, s.Numbers.End(), "the number is used again")
	require.Equal(t, "wi_c_7", s.record("acme", "wi_c_7").GetWorkItemId())
	require.Nil(t, s.record("acme", "wi_b_7"))
}
