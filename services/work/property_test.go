package work

import (
	"context"
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
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/work/derive"
)

// TestX7_RandomHistories runs random commands, refused ones among them, and
// checks after each history that replaying the log gives the live state, and
// that every invariant holds at every step of the log. The state is written and read in pages
// in between, and the pages of all histories have every field.
func TestX7_RandomHistories(t *testing.T) {
	var seen journaltest.Seen
	fresh := evicting(t)
	history := func(rt *rapid.T) {
		r := openRig(t)
		defer r.down()
		h := &randomRun{rig: r, rt: rt, agents: []string{"keeper", "other"}}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			h.step()
		}
		if rapid.Bool().Draw(rt, "deleted") {
			h.hear(&journal.Event{Namespace: "acme", AgentID: "other", Payload: &agentv1.AgentDeleting{
				Agent: &agentv1.Agent{AgentId: "other"},
			}})
			h.step()
		}
		live, _, err := journal.View(context.Background(), r.service.engine.All()[0], func(s *State) (*State, error) {
			return s, nil
		})
		require.NoError(rt, err)
		replayed, whole := journaltest.Checked(fresh, 10, &seen), NewState() // whole evicts nothing
		items := map[string]*workv1.WorkItemRecord{}
		events := r.events()
		for i, ev := range events {
			checkStep(rt, items, ev)
			require.NoError(rt, replayed.Apply(ev))
			require.NoError(rt, whole.Apply(ev))
			// A focus is released by the second event of a commit.
			if i+1 == len(events) || events[i+1].Type != "focus_released" {
				checkState(rt, replayed.Paged)
				if rapid.Bool().Draw(rt, "evicted") {
					journaltest.EvictAll(rt, replayed.Paged)
				}
				sameAnswers(rt, whole, replayed.Paged)
			}
		}
		require.NoError(rt, replayed.Check())
		require.NoError(rt, journaltest.Same(live, replayed.Paged))
		checkState(rt, live)
	}
	manyCompleted(t, 2, &seen)
	rapid.Check(t, history)
	for range 20 { // a few histories need not have every field
		if len(seen.Missing(&workv1.AgentWorkPage{})) == 0 {
			break
		}
		rapid.Check(t, history)
	}
	require.Empty(t, seen.Missing(&workv1.AgentWorkPage{}))
}

type randomRun struct {
	*rig
	rt     *rapid.T
	agents []string
	items  []string
	waits  []*waitingv1.Wait
	n      int
}

// step does one random thing. Whether it is refused does not matter here.
func (h *randomRun) step() {
	rt := h.rt
	h.clk.Advance(time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(rt, "pause")))
	agent := rapid.SampledFrom(h.agents).Draw(rt, "agent")
	ctx := rpc.WithActor(context.Background(), rpc.Actor{
		Namespace: "acme", Principal: "agent/" + agent, Role: rpc.RoleAgent, AgentID: agent,
	})
	service := planetest.As(context.Background(), rpc.RoleService)
	item := "wi_00000000000000000000000zzz"
	if len(h.items) > 0 && rapid.IntRange(0, 9).Draw(rt, "known") > 0 {
		item = rapid.SampledFrom(h.items).Draw(rt, "item")
	}
	request := ""
	if rapid.Bool().Draw(rt, "repeatable") {
		request = fmt.Sprint("r", rapid.IntRange(0, 5).Draw(rt, "request"))
	}
	switch rapid.IntRange(0, 9).Draw(rt, "what") {
	case 0, 1:
		resp, err := h.service.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: agent, RequestId: request, Objective: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "objective"),
			PlanStatus: workv1.PlanStatus(rapid.Int32Range(0, 3).Draw(rt, "plan")),
		})
		if err == nil && !slices.Contains(h.items, resp.GetWorkItem().GetWorkItemId()) {
			h.items = append(h.items, resp.GetWorkItem().GetWorkItemId())
		}
	case 2, 3:
		_, _ = h.service.PickWorkItem(ctx, &workv1.PickWorkItemRequest{
			AgentId: agent, RequestId: request, WorkItemId: item,
		})
	case 4, 5:
		req := &workv1.UpdateWorkItemRequest{
			AgentId: agent, RequestId: request, WorkItemId: item,
			PlanStatus: workv1.PlanStatus(rapid.Int32Range(0, 3).Draw(rt, "plan")),
		}
		switch rapid.IntRange(0, 3).Draw(rt, "blocker") {
		case 0:
			req.BlockedBy = new(string)
			*req.BlockedBy = "why"
		case 1:
			req.ClearBlockedBy = true
		case 2:
			req.RecheckAt = timestamppb.New(h.clk.Now().
				Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(rt, "in"))))
		}
		if rapid.Bool().Draw(rt, "fenced") {
			rev := rapid.Int64Range(1, 4).Draw(rt, "revision")
			req.ExpectedRevision = &rev
		}
		_, _ = h.service.UpdateWorkItem(ctx, req)
	case 6:
		_, _ = h.service.CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{
			AgentId: agent, RequestId: request, WorkItemId: item,
		})
		_, _ = h.service.PromoteReport(service, &workv1.PromoteReportRequest{
			AgentId: agent, WorkItemId: item, Text: "report",
		})
	case 7:
		h.beginWait(service, agent, item)
	default:
		h.moveWait(service)
	}
}

// beginWait makes a wait and tells of it by the call, by the event, or by both.
func (h *randomRun) beginWait(ctx context.Context, agent, item string) {
	h.n++
	w := &waitingv1.Wait{
		WaitId: fmt.Sprintf("wt_%026d", h.n), AgentId: agent, WorkItemId: item,
		Mode: waitingv1.WaitMode(rapid.Int32Range(1, 2).Draw(h.rt, "mode")),
		Kind: waitingv1.WaitKind(rapid.Int32Range(1, 5).Draw(h.rt, "kind")), Reason: "wait", Revision: 1,
		Status:    waitingv1.WaitStatus_WAIT_STATUS_ACTIVE,
		CreatedAt: timestamppb.New(h.clk.Now().Truncate(time.Microsecond)),
	}
	h.waits = append(h.waits, w)
	h.tell(ctx, w, &waitingv1.WaitRegistered{Wait: w})
}

// moveWait triggers or ends a wait, or says again what was said.
func (h *randomRun) moveWait(ctx context.Context) {
	if len(h.waits) == 0 {
		return
	}
	i := rapid.IntRange(0, len(h.waits)-1).Draw(h.rt, "wait")
	w := proto.CloneOf(h.waits[i])
	switch rapid.IntRange(0, 4).Draw(h.rt, "outcome") {
	case 0:
		w.Revision++
		w.TriggerCount++
		w.LastTriggeredAt = timestamppb.New(h.clk.Now().Truncate(time.Microsecond))
		h.tell(ctx, w, &waitingv1.WaitTriggered{Wait: w})
	case 1:
		w.Revision++
		w.ConsumedCount = w.GetTriggerCount()
		h.tell(ctx, w, &waitingv1.WaitConsumed{Wait: w})
	case 2:
		w.Revision++
		w.Status = waitingv1.WaitStatus_WAIT_STATUS_RESOLVED
		h.tell(ctx, w, &waitingv1.WaitResolved{Wait: w})
	case 3:
		w.Revision++
		w.Status = waitingv1.WaitStatus_WAIT_STATUS_CANCELLED
		h.tell(ctx, w, &waitingv1.WaitCancelled{Wait: w})
	default:
		h.tell(ctx, w, &waitingv1.WaitRegistered{Wait: w})
	}
	h.waits[i] = w
}

func (h *randomRun) tell(ctx context.Context, w *waitingv1.Wait, payload proto.Message) {
	if rapid.Bool().Draw(h.rt, "call") && w.GetStatus() == waitingv1.WaitStatus_WAIT_STATUS_ACTIVE {
		_, _ = h.service.AttachWait(ctx, &workv1.AttachWaitRequest{
			AgentId: w.GetAgentId(), WorkItemId: w.GetWorkItemId(), Wait: AttachedWaitOf(w),
		})
	}
	if rapid.Bool().Draw(h.rt, "event") {
		h.hear(&journal.Event{Namespace: "acme", AgentID: w.GetAgentId(), Payload: payload})
	}
}

// checkStep holds an event against what its item was before.
func checkStep(t require.TestingT, seen map[string]*workv1.WorkItemRecord, ev *journal.Event) {
	written, ok := ev.Payload.(interface{ GetWorkItem() *workv1.WorkItemRecord })
	if _, picked := ev.Payload.(*workv1.WorkItemPicked); picked || !ok {
		require.Empty(t, ev.ReadinessTo, "%s changes no readiness", ev.Type)
		return
	}
	it := written.GetWorkItem()
	old := seen[it.GetWorkItemId()]
	seen[it.GetWorkItemId()] = it
	require.Equal(t, old.GetRevision()+1, it.GetRevision(), "%s", ev.Type)
	require.Equal(t, it.GetWorkItemId(), ev.WorkItemID)
	if old == nil {
		require.Equal(t, derive.ReadinessOf(it).Name(), ev.ReadinessTo)
		return
	}
	if old.GetState() == completed {
		require.Equal(t, completed, it.GetState(), "a completed item stays completed (SPEC X7)")
		require.Equal(t, "report_promoted", ev.Type)
		require.Empty(t, old.GetResultBriefId(), "an item has one report (SPEC W7)")
	}
	if from, to := derive.ReadinessOf(old), derive.ReadinessOf(it); from != to {
		require.Equal(t, []string{from.Name(), to.Name(), to.Reason}, []string{
			ev.ReadinessFrom, ev.ReadinessTo,
			ev.ReadinessReason,
		})
	} else {
		require.Empty(t, ev.ReadinessTo)
	}
}

// checkState recomputes every index from the records.
func checkState(t require.TestingT, s *State) {
	for k := range s.ByOwner.Keys() {
		a := s.ByOwner.Get(k)
		want := map[string][]*workv1.WorkItemRecord{}
		waiting := 0
		var items []*item // that are not packed
		for _, g := range a.items.Groups {
			items = append(items, g.Items...)
		}
		for _, e := range items {
			it := e.rec
			require.Equal(t, k.ID, it.GetAgentId())
			if it.GetState() == open {
				want["open"] = append(want["open"], it)
				waiting += min(len(it.GetWaits()), 1)
			} else {
				want["done"] = append(want["done"], it)
			}
			if derive.RecheckPending(it) {
				want["rechecks"] = append(want["rechecks"], it)
				require.True(t, proto.Equal(derive.NextReminder(it), it.GetRecheckAt()),
					"what is shown is what comes next (SPEC P5)")
			} else {
				require.Nil(t, derive.NextReminder(it), "no reminder is forgotten (SPEC P5)")
			}
			class := derive.ClassOf(it).String()
			want[class] = append(want[class], it)

			waits := 0
			for _, w := range it.GetWaits() {
				if w.GetMode() == waitingv1.WaitMode_WAIT_MODE_WAIT {
					waits++
				}
			}
			require.LessOrEqual(t, waits, 1, "one WaitFor wait per item (SPEC P1)")
			if it.GetState() == completed {
				require.Empty(t, it.GetWaits(), "a completed item waits for nothing (SPEC W6)")
				require.Empty(t, it.GetBlockedBy())
				require.Nil(t, it.GetRecheckAt())
			}
			if id := it.GetBlockedByWaitId(); id != "" {
				require.NotNil(t, attached(it, id), "a blocker names a wait that stands")
			}
		}
		require.Equal(t, waiting, a.waiting)
		sameItems(t, want["done"], a.done, byCreation)
		sameItems(t, want["open"], a.open, byCreation)
		sameItems(t, want["rechecks"], a.rechecks, byRecheck)
		for c := range a.classes {
			sameItems(t, want[workv1.CandidateClass(c).String()], a.classes[c], classOrder[c])
		}
		if a.current != "" {
			it := s.record(k.Namespace, a.current)
			require.NotNil(t, it)
			require.Equal(t, k.ID, it.GetAgentId())
			require.Equal(t, open, it.GetState(), "no completed item is in focus")
		}
	}
}

func sameItems(t require.TestingT, want []*workv1.WorkItemRecord, sorted tree, o *order) {
	slices.SortFunc(want, func(a, b *workv1.WorkItemRecord) int {
		x, y := place{o.key(a), &item{rec: a}}, place{o.key(b), &item{rec: b}}
		switch {
		case o.less(x, y):
			return -1
		case o.less(y, x):
			return 1
		}
		return 0
	})
	require.Equal(t, len(want), sorted.size())
	var got []*workv1.WorkItemRecord
	sorted.each(o, nil, func(it *workv1.WorkItemRecord) bool {
		got = append(got, it)
		return true
	})
	require.Len(t, got, len(want))
	for i := range want {
		require.Same(t, want[i], got[i])
	}
}
