package waiting

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/snapshot"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/services/waiting/records"
)

// checkPages writes and reads the state that events lead to in pages, a few times in between.
func checkPages(t *testing.T, events []*journal.Event) {
	t.Helper()
	s := journaltest.Checked(NewState, max(50, len(events)/4), nil)
	for _, ev := range events {
		require.NoError(t, s.Apply(ev))
	}
	require.NoError(t, s.Check())
	_, err := s.EraseDeleted()
	require.NoError(t, err)
}

// The pages of random events, also of such as no rule emits, are all that the state has.
func TestPagesOfRandomEvents(t *testing.T) {
	var seen journaltest.Seen
	rapid.Check(t, func(rt *rapid.T) {
		s := journaltest.Checked(NewState, 20, &seen)
		generations := map[string]int{}
		for i := range rapid.IntRange(1, 100).Draw(rt, "events") {
			agent := rapid.SampledFrom([]string{"keeper", "other"}).Draw(rt, "agent")
			namespace := rapid.SampledFrom([]string{"acme", "zeta"}).Draw(rt, "namespace")
			ev := &journal.Event{
				Namespace: namespace, AgentID: agent, WalSeq: uint64(i + 1),
				CreatedAt: time.Unix(int64(i+1), 0).UTC(), Payload: randomPayload(rt, namespace+"/"+agent, generations),
			}
			require.NoError(rt, s.Apply(ev))
		}
		require.NoError(rt, s.Check())
		for _, k := range slices.Collect(s.Paged.agents.Keys()) {
			require.NoError(rt,
				s.Apply(&journal.Event{Namespace: k.Namespace, AgentID: k.ID, Payload: &waitingv1.AgentNoted{
					Deleted: true,
				}}))
		}
		_, err := s.EraseDeleted()
		require.NoError(rt, err)
		require.NoError(rt, journaltest.Same(NewState(), s.Paged), "nothing is left of anybody")
	})
	const of2 = "quartet.waiting.v1.AgentWaitsPage." // what pages of format 2 have
	require.Equal(t, []string{of2 + "ended_timer_ids", of2 + "ended_trigger_ids", of2 + "ended_wait_ids"},
		seen.Missing(&waitingv1.AgentWaitsPage{}))
}

// randomPayload returns a payload about an agent. generations has how often triggers were rotated.
func randomPayload(rt *rapid.T, agent string, generations map[string]int) proto.Message {
	name := func(what string, most int) string { return fmt.Sprint(what, rapid.IntRange(1, most).Draw(rt, what)) }
	kind := rapid.Int32Range(0, waitKinds).Draw(rt, "kind") // a wait has the same one all its life
	wait := &waitingv1.Wait{
		WaitId: fmt.Sprint("wt_", kind), Kind: waitingv1.WaitKind(kind), TriggerCount: rapid.Int64Range(0, 5).
			Draw(rt, "count"),
		Status: waitingv1.WaitStatus(rapid.Int32Range(1, 3).Draw(rt, "wait status")),
	}
	trigger := func(rotate int) *waitingv1.Trigger {
		tr := &waitingv1.Trigger{TriggerId: name("trg_", 4), Status: waitingv1.TriggerStatus(rapid.Int32Range(1, 3).
			Draw(rt, "trigger status"))}
		key := agent + "/" + tr.GetTriggerId()
		generations[key] += rotate
		tr.TokenHash = fmt.Sprint("hash of ", key, "/", generations[key])
		return tr
	}
	timer := &waitingv1.Timer{TimerId: name("tmr_", 4), Status: waitingv1.TimerStatus(rapid.Int32Range(1, 3).
		Draw(rt, "timer status"))}
	switch rapid.IntRange(0, 12).Draw(rt, "what") {
	case 0, 1:
		return &waitingv1.WaitRegistered{Wait: wait}
	case 2:
		return &waitingv1.WaitResolved{Wait: wait}
	case 3, 4:
		return &waitingv1.WaitMismatched{
			WaitId: wait.GetWaitId(),
			Cause:  waitingv1.WaitCause(rapid.Int32Range(1, 3).Draw(rt, "cause")), CauseId: name("msg_", 3),
		}
	case 5:
		return &waitingv1.TimerFired{Timer: timer}
	case 6:
		return &waitingv1.TimerCancelled{Timer: timer}
	case 7:
		return &waitingv1.TaskNoted{TaskId: name("tsk_", 5), Terminal: rapid.Bool().Draw(rt, "terminal")}
	case 8:
		return &waitingv1.WorkItemNoted{WorkItemId: name("wi_", 5)}
	case 9:
		return &waitingv1.AgentNoted{Stopped: rapid.Bool().Draw(rt, "stopped"), Deleted: rapid.Bool().
			Draw(rt, "deleted")}
	case 10:
		return &waitingv1.ExternalTriggerCreated{Trigger: trigger(0)}
	case 11:
		return &waitingv1.ExternalTriggerRotated{Trigger: trigger(1)}
	}
	return &waitingv1.DeliveriesCounted{
		TriggerId: name("trg_", 4), DeliveryId: name("dlv_", 9), Count: 2, WaitIds: []string{wait.GetWaitId()},
		DeliveredAt: timestamppb.New(epoch),
	}
}

// What ended is kept in the order of its end, and what was forgotten stays forgotten.
func TestPagesOfALongLife(t *testing.T) {
	s := journaltest.Checked(NewState, 0, nil)
	apply := func(payload proto.Message) {
		require.NoError(t, s.Apply(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: payload}))
	}
	for i := range 3 * 133 {
		id := fmt.Sprintf("%04d", i)
		apply(&waitingv1.WaitRegistered{Wait: &waitingv1.Wait{
			WaitId: "wt_" + id, Status: stands,
			Kind: waitingv1.WaitKind_WAIT_KIND_TASK,
		}})
		apply(&waitingv1.ExternalTriggerCreated{Trigger: &waitingv1.Trigger{
			TriggerId: "trg_" + id, TokenHash: id,
			Status: waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE,
		}})
		for end := i; i%3 == 2 && end > i-2; end-- {
			id := fmt.Sprintf("%04d", end)
			apply(&waitingv1.WaitCancelled{
				Wait: &waitingv1.Wait{WaitId: "wt_" + id, Status: over, Kind: waitingv1.WaitKind_WAIT_KIND_TASK},
			})
			apply(&waitingv1.TriggerExpired{Trigger: &waitingv1.Trigger{
				TriggerId: "trg_" + id, TokenHash: id,
				Status: waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED,
			}})
		}
	}
	require.NoError(t, s.Check())
	keeper := snapshot.Owner{Namespace: "acme", ID: "keeper"}
	page := s.Paged.Page(keeper).(*waitingv1.AgentWaitsPage)
	require.Len(t, page.GetWaits(), 133)
	require.Len(t, page.GetEndedWaits().GetPlaces(), records.KeptEnded)
	require.Len(t, page.GetSecrets(), 3*133)
	const remembered = 256
	for i := range remembered + 100 {
		require.NoError(t,
			s.Paged.Apply(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WorkItemNoted{
				WorkItemId: fmt.Sprint("wi_", i),
			}}))
		if i == remembered {
			page = s.Paged.Page(keeper).(*waitingv1.AgentWaitsPage)
		}
	}
	require.Len(t, page.GetCompletedWorkItemIds(), remembered)
	require.Equal(t, "wi_1", page.GetCompletedWorkItemIds()[0], "a page stays as it was taken")
	require.NoError(t, journaltest.RoundTrip(s.Paged, NewState))
}

func TestPagesThatAreInvalid(t *testing.T) {
	keeper, other := snapshot.Owner{Namespace: "acme", ID: "keeper"}, snapshot.Owner{Namespace: "acme", ID: "other"}
	wait := &waitingv1.Wait{WaitId: "wt_1"}
	secret := &waitingv1.TriggerSecret{Hash: "hash", TriggerId: "trg_1"}
	for want, page := range map[string]proto.Message{
		"a page of type *emptypb.Empty": &emptypb.Empty{},
		"agent acme/keeper: waits: \"\" is there twice, or no id": &waitingv1.AgentWaitsPage{
			Waits: []*waitingv1.Wait{{}},
		},
		"agent acme/keeper: waits: \"wt_1\" is there twice, or no id": &waitingv1.AgentWaitsPage{
			Waits: []*waitingv1.Wait{wait, wait},
		},
		"waits: wt_2 has ended and is not there": &waitingv1.AgentWaitsPage{
			Waits: []*waitingv1.Wait{wait}, EndedWaitIds: []string{"wt_1", "wt_2"},
		},
		"triggers: trg_1 has ended and is not there": &waitingv1.AgentWaitsPage{
			EndedTriggerIds: []string{"trg_1"},
		},
		"timers: tmr_1 has ended and is not there": &waitingv1.AgentWaitsPage{
			EndedTimerIds: []string{"tmr_1"},
		},
		`a secret of trigger "trg_1" is there twice`: &waitingv1.AgentWaitsPage{
			Secrets: []*waitingv1.TriggerSecret{secret, secret},
		},
		`a secret of trigger "" is there twice, or leads nowhere`: &waitingv1.AgentWaitsPage{
			Secrets: []*waitingv1.TriggerSecret{{Hash: "hash"}},
		},
	} {
		require.ErrorContains(t, NewState().AddPage(keeper, page), want)
	}
	s := NewState()
	page := &waitingv1.AgentWaitsPage{Secrets: []*waitingv1.TriggerSecret{secret}}
	require.NoError(t, s.AddPage(keeper, page))
	require.ErrorContains(t, s.AddPage(keeper, page), "a second page of agent acme/keeper")
	require.ErrorContains(t, s.AddPage(other, page), "agent acme/other: a secret")
	require.Nil(t, s.Page(snapshot.Owner{Namespace: "zeta", ID: "keeper"}))
}
