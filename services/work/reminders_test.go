package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/work/derive"
)

const (
	firstWait  = "wt_00000000000000000000000001"
	secondWait = "wt_00000000000000000000000002"
)

// reminded is an item and what comes for it, in seconds from now.
type reminded struct {
	*rig
	itemID string
	waits  int64
}

func (r *reminded) own(at int) {
	must.Value(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
		AgentId: "keeper", WorkItemId: r.itemID,
		RecheckAt: timestamppb.New(epoch.Add(time.Duration(at) * time.Second)),
	}))(r.t)
}

func (r *reminded) wait(id string, at int) {
	r.waits++
	w := &workv1.AttachedWait{
		WaitId: id, Revision: 1, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL,
		Reason: "a reply", CreatedAt: timestamppb.New(epoch.Add(time.Duration(r.waits) * time.Millisecond)),
	}
	if at > 0 {
		w.RecheckAt = timestamppb.New(epoch.Add(time.Duration(at) * time.Second))
	}
	must.Value(r.service.AttachWait(planetest.As(r.t.Context(), "service"), &workv1.AttachWaitRequest{
		AgentId: "keeper", WorkItemId: r.itemID, Wait: w,
	}))(r.t)
}

func (r *reminded) triggered(id string, at int) {
	r.hear(&journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitTriggered{Wait: &waitingv1.Wait{
		WaitId: id, AgentId: "keeper", WorkItemId: r.itemID, Revision: 2, Mode: waitingv1.WaitMode_WAIT_MODE_WAIT,
		Kind: waitingv1.WaitKind_WAIT_KIND_EXTERNAL, Status: waitingv1.WaitStatus_WAIT_STATUS_ACTIVE, TriggerCount: 1,
		RecheckAt: timestamppb.New(epoch.Add(time.Duration(at) * time.Second)),
	}}})
}

func (r *reminded) ends(id string, resolved bool) {
	w := &waitingv1.Wait{WaitId: id, AgentId: "keeper", WorkItemId: r.itemID, Revision: 9}
	ev := &journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &waitingv1.WaitCancelled{Wait: w}}
	if resolved {
		ev.Payload = &waitingv1.WaitResolved{Wait: w}
	}
	r.hear(ev)
}

// consume gives the reminder that is shown.
func (r *reminded) consume() {
	r.clk.Advance(time.Second)
	must.Value(r.service.ConsumeRecheck(planetest.As(r.t.Context(), "service"), &workv1.ConsumeRecheckRequest{
		AgentId: "keeper", WorkItemId: r.itemID, RecheckAt: r.get(r.itemID).GetRecheckAt(),
	}))(r.t)
}

// An item's own reminder and that of its wait stand beside each other: the
// earlier is shown, each is given once, none is lost by the other's coming,
// going or being given (SPEC P5, P8).
func TestP5_AWaitDoesNotTakeTheItemsOwnReminderAway(t *testing.T) {
	const none = 0
	type step struct {
		do    func(r *reminded)
		at    int  // what the item shows, in seconds
		given bool // and whether it has been given
	}
	own := func(at int) func(*reminded) { return func(r *reminded) { r.own(at) } }
	wait := func(id string, at int) func(*reminded) { return func(r *reminded) { r.wait(id, at) } }
	cancel := func(id string) func(*reminded) { return func(r *reminded) { r.ends(id, false) } }
	resolve := func(id string) func(*reminded) { return func(r *reminded) { r.ends(id, true) } }
	consume := (*reminded).consume
	for name, steps := range map[string][]step{
		"the own one is earlier": {
			{own(2), 2, false},
			{wait(firstWait, 3600), 2, false},
			{consume, 3600, false},
			{consume, 3600, true},
			{consume, 3600, true},
		},
		"the wait's is earlier": {
			{own(3600), 3600, false},
			{wait(firstWait, 2), 2, false},
			{consume, 3600, false},
			{consume, 3600, true},
		},
		"the wait is cancelled": {
			{own(3600), 3600, false},
			{wait(firstWait, 2), 2, false},
			{cancel(firstWait), 3600, false},
		},
		"the wait is resolved": {
			{own(2), 2, false},
			{wait(firstWait, 3600), 2, false},
			{resolve(firstWait), 2, false},
			{consume, 2, true},
		},
		"the wait is replaced": {
			{own(60), 60, false},
			{wait(firstWait, 2), 2, false},
			{wait(secondWait, 3600), 60, false},
			{cancel(firstWait), 60, false},
			{cancel(secondWait), 60, false},
		},
		"a wait without reminder": {
			{own(60), 60, false},
			{wait(firstWait, none), 60, false},
			{cancel(firstWait), 60, false},
		},
		"only the wait's": {{wait(firstWait, 60), 60, false}, {cancel(firstWait), none, false}},
		"a new one of its own": {
			{wait(firstWait, 60), 60, false},
			{own(70), 60, false},
			{own(50), 50, false},
			{own(80), 60, false},
			{consume, 80, false},
			{consume, 80, true},
		},
		"both at the same moment": {
			{own(60), 60, false},
			{wait(firstWait, 60), 60, false},
			{consume, 60, true},
			{cancel(firstWait), 60, true},
		},
		"the given one comes back": {
			{own(2), 2, false},
			{consume, 2, true},
			{wait(firstWait, 60), 60, false},
			{cancel(firstWait), 2, true},
		},
		"a given one stays given": {
			{wait(firstWait, 60), 60, false},
			{consume, 60, true},
			{func(r *reminded) { r.triggered(firstWait, 60) }, 60, true},
			{own(70), 70, false},
			{consume, 70, true},
		},
		"the blocker is cleared": {{own(60), 60, false}, {wait(firstWait, 2), 2, false}, {func(r *reminded) {
			must.Value(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
				AgentId: "keeper", WorkItemId: r.itemID, ClearBlockedBy: true,
			}))(r.t)
		}, 60, false}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &reminded{rig: newRig(t)}
			r.itemID = r.create("watch it").GetWorkItemId()
			for i, s := range steps {
				s.do(r)
				for range 2 { // and the same after a restart
					it := r.get(r.itemID)
					shown := none
					if it.GetRecheckAt() != nil {
						shown = int(it.GetRecheckAt().AsTime().Sub(epoch) / time.Second)
					}
					require.Equal(t, s.at, shown, "step %d", i)
					require.Equal(t, s.given, it.GetRecheckConsumedAt() != nil, "step %d", i)
					q := must.Value(r.client.GetWorkQueue(r.ctx, &workv1.GetWorkQueueRequest{AgentId: "keeper"}))(t)
					require.Equal(t, s.at != none && !s.given, len(q.GetRechecks()) == 1,
						"step %d: what fires is what is shown", i)
					r.restart()
				}
			}
		})
	}
}

// Records from before reminders stood beside each other keep theirs.
func TestP5_RemindersOfOldRecords(t *testing.T) {
	at := func(s int) *timestamppb.Timestamp { return timestamppb.New(epoch.Add(time.Duration(s) * time.Second)) }
	waits := func(s int) []*workv1.AttachedWait {
		return []*workv1.AttachedWait{{WaitId: firstWait, RecheckAt: at(s)}}
	}
	open := workv1.WorkItemState_WORK_ITEM_STATE_OPEN
	for name, c := range map[string]struct {
		old       *workv1.WorkItemRecord
		own, next *timestamppb.Timestamp
	}{
		"its own":             {&workv1.WorkItemRecord{State: open, RecheckAt: at(5)}, at(5), at(5)},
		"the wait's":          {&workv1.WorkItemRecord{State: open, RecheckAt: at(5), Waits: waits(5)}, nil, at(5)},
		"its own over a wait": {&workv1.WorkItemRecord{State: open, RecheckAt: at(5), Waits: waits(9)}, at(5), at(5)},
		"its own, given": {
			&workv1.WorkItemRecord{State: open, RecheckAt: at(5), RecheckConsumedAt: at(6)}, nil,
			nil,
		},
		"the wait's, given": {&workv1.WorkItemRecord{
			State: open, RecheckAt: at(5), RecheckConsumedAt: at(6), Waits: waits(5),
		}, nil, nil},
	} {
		it := next(c.old, journal.Env{Now: epoch})
		require.Equal(t, c.own.AsTime(), it.GetOwnRecheckAt().AsTime(), name)
		require.Equal(t, c.next.AsTime(), derive.NextReminder(it).AsTime(), name)
	}
}

// A reminder lies within the horizon of every other time (SPEC P4, P5, X5).
func TestP5_AReminderHasAHorizon(t *testing.T) {
	r := newRig(t)
	itemID := r.create("watch it").GetWorkItemId()
	update := func(at time.Time) error {
		return must.Err(r.client.UpdateWorkItem(r.ctx, &workv1.UpdateWorkItemRequest{
			AgentId: "keeper", WorkItemId: itemID, RecheckAt: timestamppb.New(at),
		}))
	}
	for _, within := range []time.Duration{-time.Hour, fault.Horizon - time.Second, fault.Horizon} {
		require.NoError(t, update(epoch.Add(within)))
	}
	before := len(r.events())
	require.ErrorIs(t, update(epoch.Add(fault.Horizon+time.Microsecond)), fault.LimitExceeded)
	err := update(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))
	require.ErrorIs(t, err, fault.LimitExceeded)
	require.ErrorContains(t, err, "recheck_at is 9999-12-31T00:00:00Z; it must be at most 100 years ahead")
	require.Len(t, r.events(), before)
}
