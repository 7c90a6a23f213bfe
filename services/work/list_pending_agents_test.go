package work

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/page"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/resident"
	"quartet/pkg/rpc"
)

// pendingOf returns what ListPendingAgents lists, by agent.
func (r *rig) pendingOf() map[string]*timestamppb.Timestamp {
	r.t.Helper()
	found := map[string]*timestamppb.Timestamp{}
	req := &workv1.ListPendingAgentsRequest{}
	for {
		resp := must.Value(r.client.ListPendingAgents(planetest.As(r.t.Context(), rpc.RoleService), req))(r.t)
		for _, a := range resp.GetAgents() {
			require.NotContains(r.t, found, a.GetAgentId())
			found[a.GetAgentId()] = a.GetRecheckAt()
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return found
		}
	}
}

// The scheduler is told of the agents whose work may call for a turn, and reads no other: not to decide, and not to
// list them (SPEC D1).
func TestD1_AgentsWithPendingWork(t *testing.T) {
	r := newRig(t)
	require.Empty(t, r.pendingOf())
	f := journaltest.NewFile(t)
	require.NoError(t, r.look(func(s *State) { s.UseFile(f) }))
	// both lists what is pending while everybody is in memory, and while nobody is, which reads nobody.
	both := func() map[string]*timestamppb.Timestamp {
		t.Helper()
		found := r.pendingOf()
		require.NoError(t, r.look(func(s *State) { journaltest.EvictAll(t, s) }))
		var before resident.Counts
		require.NoError(t, r.look(func(s *State) { before = s.Counts() }))
		require.Zero(t, before.Resident)
		require.Equal(t, found, r.pendingOf())
		require.NoError(t, r.look(func(s *State) { require.Equal(t, before, s.Counts()) }))
		return found
	}
	now := map[string]*timestamppb.Timestamp{"keeper": nil}
	it := r.create("one").GetWorkItemId()
	require.Equal(t, now, both(), "it is runnable")
	r.pick(it)
	require.Equal(t, now, both(), "it is runnable and in focus")

	reason, late, soon := "no key", epoch.Add(2*time.Hour), epoch.Add(time.Hour)
	block := func(id string, at time.Time) {
		must.Value(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: id, BlockedBy: &reason, RecheckAt: timestamppb.New(at),
		}))(t)
	}
	block(it, late)
	require.Equal(t, map[string]*timestamppb.Timestamp{"keeper": timestamppb.New(late)}, both())
	other := r.create("two").GetWorkItemId()
	require.Equal(t, now, both())
	block(other, soon)
	require.Equal(t, map[string]*timestamppb.Timestamp{"keeper": timestamppb.New(soon)}, both(),
		"the earliest reminder")
	for _, id := range []string{other, it} {
		must.Value(r.client.ConsumeRecheck(planetest.As(t.Context(), rpc.RoleService), &workv1.ConsumeRecheckRequest{
			AgentId: "keeper", WorkItemId: id, RecheckAt: r.get(id).GetRecheckAt(),
		}))(t)
	}
	require.Empty(t, both(), "both were given")

	wait := &waitingv1.Wait{
		WaitId: "wt_1", AgentId: "keeper", WorkItemId: it, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
		Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE, Revision: 1, Reason: "a reply",
		CreatedAt: timestamppb.New(epoch),
	}
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitRegistered{Wait: wait}})
	require.Empty(t, both())
	wait.Revision, wait.TriggerCount, wait.LastTriggeredAt = 2, 1, timestamppb.New(epoch)
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitTriggered{Wait: wait}})
	require.Equal(t, now, both(), "it was triggered")
	wait.Revision, wait.ConsumedCount = 3, 1
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitConsumed{Wait: wait}})
	require.Empty(t, both(), "a turn has seen it")
	wait.Revision, wait.Status = 4, waitingv1.WaitStatus_WAIT_STATUS_RESOLVED
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitResolved{Wait: wait}})
	require.Equal(t, now, both(), "it is runnable again")
}

// Pages are bounded by how many agents are listed and by how many are looked at, and have everybody once. The number of
// an agent that was erased is passed over.
func TestPagesOfPendingAgents(t *testing.T) {
	s := NewState()
	const each = page.MaxSize + 5
	open := func(ns, agentID string, seq int) {
		rec := &workv1.WorkItemRecord{
			WorkItemId: "wi_" + ns + agentID, AgentId: agentID, State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN,
			CreatedAt: timestamppb.New(epoch), UpdatedAt: timestamppb.New(epoch),
		}
		require.NoError(t, s.Apply(&journal.Event{
			Namespace: ns, AgentID: agentID, WorkItemID: rec.GetWorkItemId(),
			WalSeq: uint64(seq), CreatedAt: epoch, Payload: &workv1.WorkItemCreated{WorkItem: rec},
		}))
	}
	for n := range each {
		open("acme", fmt.Sprint("a", n), 2*n+1)
		open("umbrella", fmt.Sprint("a", n), 2*n+2)
	}
	s.Numbers.Give(3)
	for _, most := range []int{1, 7, 2 * each, 2*each + 1} {
		var sizes []int
		seen := map[plane.Key]bool{}
		for first := 0; ; {
			found, next := s.pending(first, most)
			sizes = append(sizes, len(found))
			for _, a := range found {
				require.False(t, seen[plane.KeyOf(a.GetNamespace(), a.GetAgentId())])
				seen[plane.KeyOf(a.GetNamespace(), a.GetAgentId())] = true
			}
			if first = next; next == 0 {
				break
			}
		}
		require.Len(t, seen, 2*each-1, "all but the one whose number was given back")
		require.LessOrEqual(t, slices.Max(sizes), min(most, page.MaxSize))
	}
}

func TestPendingAgentsOfAWrongPage(t *testing.T) {
	r := newRig(t)
	r.create("one")
	for _, token := range []string{
		"x", page.Token("pending-agents", "x"), page.Token("pending-agents", "-1"),
		page.Token("pending-agents", "0", "0"), page.Token("facts", "0"),
	} {
		_, err := r.client.ListPendingAgents(planetest.As(t.Context(), rpc.RoleService),
			&workv1.ListPendingAgentsRequest{PageToken: token})
		require.ErrorIs(t, fault.From(err), fault.CursorInvalid, token)
	}
	resp := must.Value(r.client.ListPendingAgents(planetest.As(t.Context(), rpc.RoleService),
		&workv1.ListPendingAgentsRequest{PageToken: page.Token("pending-agents", "99")}))(t)
	require.Empty(t, resp.GetAgents(), "agents that were erased meanwhile")
	for _, n := range []int32{-1, 1} {
		_, err := r.client.ListPendingAgents(planetest.As(t.Context(), rpc.RoleService),
			&workv1.ListPendingAgentsRequest{Partition: n})
		require.ErrorIs(t, fault.From(err), fault.InvalidArgument)
		require.Equal(t, "partition", fault.From(err).Violations()[0].Field)
	}
}
