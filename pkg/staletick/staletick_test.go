package staletick

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

const (
	runnable = workv1.Readiness_READINESS_RUNNABLE
	blocked  = workv1.Readiness_READINESS_BLOCKED
)

func item(id string, r workv1.Readiness) *workv1.WorkItem {
	return &workv1.WorkItem{WorkItemId: id, Readiness: r, Revision: 7, UpdatedAt: timestamppb.New(time.Unix(100, 0))}
}

// A tick is stale exactly when what it is about is no longer true (SPEC D4, D8).
func TestD4_StaleTicks(t *testing.T) {
	const (
		continues = agentv1.TickReason_TICK_REASON_CONTINUE_CURRENT
		pick      = agentv1.TickReason_TICK_REASON_PICK_QUEUED
		review    = agentv1.TickReason_TICK_REASON_REVIEW_TRIGGERED
		recheck   = agentv1.TickReason_TICK_REASON_RECHECK
		wake      = agentv1.TickReason_TICK_REASON_WAKE_HINT
	)
	type queue = workv1.GetWorkQueueResponse
	triggered := item("wi_1", blocked)
	triggered.HasTriggeredWaits = true
	reminded := item("wi_1", blocked)
	reminded.RecheckAt = timestamppb.New(time.Unix(50, 0))
	picked := item("wi_1", runnable)
	picked.IsCurrent = true
	stalled := []*agentv1.StalledItem{{WorkItemId: "wi_2", Turns: 3, Since: timestamppb.New(time.Unix(100, 0))}}
	changed := []*agentv1.StalledItem{{
		WorkItemId: "wi_2", Turns: 3, Since: timestamppb.New(time.Unix(200, 0)), Revision: 6,
	}}
	// the clock was set back
	ahead := []*agentv1.StalledItem{{
		WorkItemId: "wi_2", Turns: 3, Since: timestamppb.New(time.Unix(1, 0)), Revision: 7,
	}}
	written := []*agentv1.StalledItem{{WorkItemId: "wi_2", Turns: 3, Since: timestamppb.New(time.Unix(99, 0))}}
	for name, c := range map[string]struct {
		reason agentv1.TickReason
		item   string
		facts  Facts
		stale  bool
	}{
		"no tick at all": {0, "", Facts{}, false},
		"the current goes on": {
			continues, "wi_1",
			Facts{Queue: &queue{Current: item("wi_1", runnable)}},
			false,
		},
		"the current was blocked": {
			continues, "wi_1",
			Facts{Queue: &queue{Current: item("wi_1", blocked)}},
			true,
		},
		"another is current": {
			continues, "wi_1",
			Facts{Queue: &queue{Current: item("wi_2", runnable)}},
			true,
		},
		"nothing is current":     {continues, "wi_1", Facts{Queue: &queue{}}, true},
		"the item is queued":     {pick, "wi_1", Facts{Queue: &queue{Named: item("wi_1", runnable)}}, false},
		"the item was blocked":   {pick, "wi_1", Facts{Queue: &queue{Named: item("wi_1", blocked)}}, true},
		"the item was completed": {pick, "wi_1", Facts{Queue: &queue{}}, true},
		"the item was picked":    {pick, "wi_1", Facts{Queue: &queue{Named: picked}}, true},
		"another was picked": {
			pick, "wi_1", Facts{Queue: &queue{Current: item("wi_2", runnable), Named: item("wi_1", runnable)}}, true,
		},
		"another was picked and is blocked": {
			pick, "wi_1", Facts{Queue: &queue{Current: item("wi_2", blocked), Named: item("wi_1", runnable)}}, false,
		},
		"the current is stalled": {
			pick, "wi_1", Facts{
				Queue:   &queue{Current: item("wi_2", runnable), Named: item("wi_1", runnable)},
				Stalled: stalled,
			}, false,
		},
		"the stalled one was written since": {
			pick, "wi_1", Facts{
				Queue:   &queue{Current: item("wi_2", runnable), Named: item("wi_1", runnable)},
				Stalled: written,
			}, true,
		},
		"the stalled one has changed": {
			pick, "wi_1", Facts{
				Queue:   &queue{Current: item("wi_2", runnable), Named: item("wi_1", runnable)},
				Stalled: changed,
			}, true,
		},
		"the clock was set back": {
			pick, "wi_1", Facts{
				Queue:   &queue{Current: item("wi_2", runnable), Named: item("wi_1", runnable)},
				Stalled: ahead,
			}, false,
		},
		"a trigger is there": {
			review, "wi_1", Facts{Queue: &queue{TriggeredBlocked: []*workv1.WorkItem{triggered}}}, false,
		},
		"one of the current": {review, "wi_1", Facts{Queue: &queue{Current: triggered}}, false},
		"it was looked at": {
			review, "wi_1",
			Facts{Queue: &queue{Current: item("wi_1", blocked)}},
			true,
		},
		"the reminder stands": {recheck, "wi_1", Facts{Queue: &queue{Named: reminded}}, false},
		"the reminder was cleared": {
			recheck, "wi_1",
			Facts{Queue: &queue{Named: item("wi_1", blocked)}},
			true,
		},
		"the reminded item was completed": {recheck, "wi_1", Facts{Queue: &queue{}}, true},
		"the wake was not shown": {
			wake, "",
			Facts{Queue: &queue{}, WakePending: true, LastTurnID: "trn_2"},
			false,
		},
		"a turn has shown the wake": {wake, "", Facts{Queue: &queue{}, LastTurnID: "trn_2"}, true},
		"no turn since":             {wake, "", Facts{Queue: &queue{}, LastTurnID: "trn_1"}, false},
		"its waits are triggered": {
			wake, "", Facts{
				Queue: &queue{}, WakePending: true, WakeWaits: []string{"wt_1"}, OwnTriggered: true,
				LastTurnID: "trn_1",
			}, false,
		},
		"its waits are over": {
			wake, "",
			Facts{Queue: &queue{}, WakePending: true, WakeWaits: []string{"wt_1"}, LastTurnID: "trn_1"},
			true,
		},
	} {
		var tick *agentv1.Tick
		if c.reason != 0 {
			tick = &agentv1.Tick{Reason: c.reason, WorkItemId: c.item, LastTurnId: "trn_1"}
		}
		require.Equal(t, c.stale, Reason(tick, c.facts) != "", name)
	}
}
