package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// facts begins with an agent that runs and has nothing to do.
func facts(change ...func(*Facts)) Facts {
	f := Facts{
		Now: now,
		Agent: &agentv1.AgentFacts{Agent: &agentv1.Agent{
			AgentId: "keeper", Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE, Control: agentv1.Control_CONTROL_RUNNING,
		}},
		Queue: &workv1.GetWorkQueueResponse{Counts: &workv1.WorkQueueCounts{}},
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func item(id string, r workv1.Readiness, waits ...*workv1.AttachedWait) *workv1.WorkItem {
	it := &workv1.WorkItem{
		WorkItemId: id, Objective: "objective of " + id, Revision: 7,
		State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN, Readiness: r, Waits: waits, ReasonCode: "why",
	}
	for _, w := range waits {
		it.HasTriggeredWaits = it.GetHasTriggeredWaits() || w.GetTriggerCount() > w.GetConsumedCount()
	}
	return it
}

const (
	runnable = workv1.Readiness_READINESS_RUNNABLE
	blocked  = workv1.Readiness_READINESS_BLOCKED
	asking   = workv1.Readiness_READINESS_WAITING_FOR_OPERATOR
)

func waitFor(kind waitingv1.WaitKind, triggers, consumed int64) *workv1.AttachedWait {
	return &workv1.AttachedWait{
		WaitId: "wt_1", Mode: waitingv1.WaitMode_WAIT_MODE_WAIT, Kind: kind, TriggerCount: triggers,
		ConsumedCount: consumed,
		Reason:        "the reply", Resource: "tsk_1", CreatedAt: timestamppb.New(now.Add(-90 * time.Second)),
	}
}

func control(c agentv1.Control) func(*Facts) { return func(f *Facts) { f.Agent.Agent.Control = c } }
func lifecycle(l agentv1.Lifecycle) func(*Facts) {
	return func(f *Facts) { f.Agent.Agent.Lifecycle = l }
}
func running(f *Facts) { f.Agent.Agent.CurrentRunId = "run_1" }
func queued(n int32) func(*Facts) {
	return func(f *Facts) {
		f.Agent.Queued = n
		f.Agent.HeadQueuedAt = timestamppb.New(now.Add(-5 * time.Second))
	}
}
func staleTick(f *Facts) { f.StaleTick = "the item was completed" }

// stalledItem is an item about which three turns made no progress.
func stalledItem(id string) func(*Facts) {
	return func(f *Facts) {
		f.Agent.StalledItems = append(f.Agent.StalledItems, &agentv1.StalledItem{
			WorkItemId: id, Turns: 3, Since: timestamppb.New(now),
		})
	}
}

func isPassedOver(it *workv1.WorkItem) func(*Facts) {
	return func(f *Facts) {
		f.Queue.PassedOver = append(f.Queue.PassedOver, it)
		f.Queue.Counts.QueuedRunnable++
		f.Queue.Counts.Open++
	}
}

func idleTurns(n int32) func(*Facts) { return func(f *Facts) { f.Agent.Agent.IdleTurns = n } }
func woken(f *Facts)                 { f.Agent.WakeHint, f.Agent.WakeHintSource = true, "trg_1" }
func shown(waitID string, n int64) func(*Facts) {
	return func(f *Facts) {
		f.Agent.ShownWaits = append(f.Agent.ShownWaits, &agentv1.ShownWait{WaitId: waitID, TriggerCount: n})
	}
}

func current(it *workv1.WorkItem) func(*Facts) {
	return func(f *Facts) { f.Queue.Current = it; f.Queue.Counts.Open++ }
}

func inQueue(it *workv1.WorkItem) func(*Facts) {
	return func(f *Facts) {
		f.Queue.QueuedRunnable = append(f.Queue.QueuedRunnable, it)
		f.Queue.Counts.QueuedRunnable++
		f.Queue.Counts.Open++
	}
}

func isTriggered(it *workv1.WorkItem) func(*Facts) {
	return func(f *Facts) {
		f.Queue.TriggeredBlocked = append(f.Queue.TriggeredBlocked, it)
		f.Queue.Counts.TriggeredBlocked++
		f.Queue.Counts.Open++
	}
}

func isBlocked(it *workv1.WorkItem) func(*Facts) {
	return func(f *Facts) {
		f.Queue.Blocked = append(f.Queue.Blocked, it)
		f.Queue.Counts.Blocked++
		f.Queue.Counts.Open++
	}
}

func asks(it *workv1.WorkItem) func(*Facts) {
	return func(f *Facts) {
		f.Queue.WaitingForOperator = append(f.Queue.WaitingForOperator, it)
		f.Queue.Counts.WaitingForOperator++
		f.Queue.Counts.Open++
	}
}

func completedItems(n int32) func(*Facts) {
	return func(f *Facts) { f.Queue.Counts.Completed = n }
}

func recheckIn(it *workv1.WorkItem, d time.Duration) func(*Facts) {
	return func(f *Facts) {
		it.RecheckAt = timestamppb.New(now.Add(d))
		f.Queue.Rechecks = append(f.Queue.Rechecks, it)
	}
}

const (
	task     = waitingv1.WaitKind_WAIT_KIND_TASK
	external = waitingv1.WaitKind_WAIT_KIND_EXTERNAL
	operator = waitingv1.WaitKind_WAIT_KIND_OPERATOR
	timed    = waitingv1.WaitKind_WAIT_KIND_TIMER
)

// Every row of SPEC D2, and what went wrong elsewhere.
func TestD2_Plan(t *testing.T) {
	all := []func(*Facts){
		queued(2), current(item("cur", runnable)), isTriggered(item("trig", blocked, waitFor(external, 1, 0))), woken,
		inQueue(item("next", runnable)), recheckIn(item("re", blocked), -time.Second),
	}
	with := func(changes ...func(*Facts)) []func(*Facts) { return append(changes, all...) }
	for name, c := range map[string]struct {
		facts []func(*Facts)
		want  string // action/reason/item
	}{
		"a deleted agent":        {with(lifecycle(agentv1.Lifecycle_LIFECYCLE_DELETED)), "nothing/agent_deleted/"},
		"one that is going":      {with(lifecycle(agentv1.Lifecycle_LIFECYCLE_DELETING)), "nothing/agent_deleted/"},
		"a stopped agent":        {with(control(agentv1.Control_CONTROL_STOPPED)), "nothing/agent_stopped/"},
		"a paused agent":         {with(control(agentv1.Control_CONTROL_PAUSED)), "nothing/agent_paused/"},
		"an open run":            {with(running), "nothing/run_open/"},
		"a message before all":   {all, "dispatch/message_queued/"},
		"the current item":       {all[1:], "tick/current_runnable/cur"},
		"then what was trigered": {all[2:], "tick/triggered_blocked/trig"},
		"then a wake hint":       {all[3:], "tick/agent_triggered/"},
		"then the queue":         {all[4:], "tick/queued_runnable/next"},
		"then a reminder":        {all[5:], "tick/recheck_due/re"},
		"then nothing":           {nil, "idle/no_work_items/"},

		"a reminder that is not due": {[]func(*Facts){
			recheckIn(item("re", blocked), time.Second),
			isBlocked(item("re", blocked)),
		}, "idle/all_waiting/"},
		"a reminder at its moment": {
			[]func(*Facts){recheckIn(item("re", blocked), 0)},
			"tick/recheck_due/re",
		},
		"the due one of two": {[]func(*Facts){
			recheckIn(item("a", blocked), -time.Hour),
			recheckIn(item("b", blocked), time.Hour),
		}, "tick/recheck_due/a"},
		"all completed": {[]func(*Facts){completedItems(3)}, "idle/all_completed/"},
		"only operators are waited for": {
			[]func(*Facts){asks(item("a", asking)), asks(item("b", asking, waitFor(operator, 0, 0)))},
			"idle/waiting_for_operator/",
		},
		"an operator and a task": {
			[]func(*Facts){asks(item("a", asking)), isBlocked(item("b", blocked, waitFor(task, 0, 0)))},
			"idle/all_waiting/",
		},
		"#843 blocked current: zero ticks": {[]func(*Facts){current(item("cur", blocked))}, "idle/all_waiting/"},
		"#843 current that needs input":    {[]func(*Facts){current(item("cur", asking))}, "idle/all_waiting/"},
		"blocked current, runnable queue": {
			[]func(*Facts){current(item("cur", blocked)), inQueue(item("next", runnable))},
			"tick/queued_runnable/next",
		},
		"#1064 a task wait starves nobody": {[]func(*Facts){
			isBlocked(item("w", blocked, waitFor(task, 0, 0))),
			inQueue(item("next", runnable)),
		}, "tick/queued_runnable/next"},
		"#1064 nor does one of the current": {[]func(*Facts){
			current(item("cur", blocked, waitFor(task, 0, 0))),
			inQueue(item("next", runnable)),
		}, "tick/queued_runnable/next"},
		"a trigger preempts no current work": {
			[]func(*Facts){current(item("cur", runnable)), isTriggered(item("trig", blocked, waitFor(external, 5, 0)))},
			"tick/current_runnable/cur",
		},
		"a triggered current is reviewed": {[]func(*Facts){
			current(item("cur", blocked, waitFor(external, 2, 1))),
			isTriggered(item("trig", blocked, waitFor(external, 1, 0))),
		}, "tick/triggered_blocked/cur"},
		"a consumed one is not": {
			[]func(*Facts){current(item("cur", blocked, waitFor(external, 2, 2)))},
			"idle/all_waiting/",
		},
		"#1472 idle turns": {
			[]func(*Facts){idleTurns(9), current(item("cur", runnable))},
			"idle/no_progress/cur",
		},
		"eight idle turns": {
			[]func(*Facts){idleTurns(8), current(item("cur", runnable))},
			"tick/current_runnable/cur",
		},
		"idle turns and a queue": {
			[]func(*Facts){idleTurns(9), inQueue(item("next", runnable))},
			"idle/no_progress/next",
		},
		"idle turns and a message": {
			[]func(*Facts){idleTurns(9), queued(1), current(item("cur", runnable))},
			"dispatch/message_queued/",
		},
		"idle turns and a trigger": {[]func(*Facts){
			idleTurns(9), current(item("cur", runnable)),
			isTriggered(item("trig", blocked, waitFor(external, 1, 0))),
		}, "tick/triggered_blocked/trig"},
		"idle turns and a wake": {
			[]func(*Facts){idleTurns(9), inQueue(item("next", runnable)), woken},
			"tick/agent_triggered/",
		},
		"idle turns and a reminder": {[]func(*Facts){
			idleTurns(9), current(item("cur", runnable)),
			recheckIn(item("re", blocked), 0),
		}, "tick/recheck_due/re"},
		"idle turns with nothing to do": {
			[]func(*Facts){idleTurns(9), isBlocked(item("b", blocked))},
			"idle/all_waiting/",
		},

		"a stalled current item": {
			[]func(*Facts){current(item("cur", runnable)), stalledItem("cur")},
			"idle/no_progress/cur",
		},
		"others go on": {[]func(*Facts){
			current(item("cur", runnable)), stalledItem("cur"),
			inQueue(item("next", runnable)),
		}, "tick/queued_runnable/next"},
		"a stalled queue": {
			[]func(*Facts){stalledItem("next"), isPassedOver(item("next", runnable))},
			"idle/no_progress/next",
		},
		"a stalled item that was written": {
			[]func(*Facts){
				current(&workv1.WorkItem{
					WorkItemId: "cur", Revision: 7, Readiness: runnable,
					UpdatedAt: timestamppb.New(now.Add(time.Second)),
				}), stalledItem("cur"),
			},
			"tick/current_runnable/cur",
		},
		"a stalled item and a message": {[]func(*Facts){
			queued(1), current(item("cur", runnable)),
			stalledItem("cur"),
		}, "dispatch/message_queued/"},
		"a stale tick": {
			[]func(*Facts){queued(1), staleTick, current(item("cur", runnable))},
			"tick/current_runnable/cur",
		},
		"a stale tick before a message": {
			[]func(*Facts){queued(2), staleTick, current(item("cur", runnable))},
			"dispatch/message_queued/",
		},

		"a trigger that a turn was shown": {
			[]func(*Facts){isTriggered(item("trig", blocked, waitFor(external, 2, 0))), shown("wt_1", 2)},
			"idle/all_waiting/",
		},
		"one that came after": {
			[]func(*Facts){isTriggered(item("trig", blocked, waitFor(external, 3, 0))), shown("wt_1", 2)},
			"tick/triggered_blocked/trig",
		},
		"another wait's count says nothing": {
			[]func(*Facts){isTriggered(item("trig", blocked, waitFor(external, 2, 0))), shown("wt_2", 9)},
			"tick/triggered_blocked/trig",
		},
		"the next of two when one was shown": {
			[]func(*Facts){
				isTriggered(item("a", blocked, waitFor(external, 2, 0))),
				isTriggered(item("b", blocked, waitFor(external, 3, 0))), shown("wt_1", 2),
			},
			"tick/triggered_blocked/b",
		},
		"what a wait inherited, and was shown": {
			[]func(*Facts){
				isTriggered(item("trig", blocked, &workv1.AttachedWait{
					WaitId: "wt_2", ReplacesWaitId: "wt_1", TriggerCount: 2,
				})), shown("wt_1", 2),
			}, "idle/all_waiting/",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts(c.facts...)
			v := Plan(f)
			require.Equal(t, c.want, actionName(v.Action)+"/"+v.Reason+"/"+v.ItemID)
			require.Equal(t, v, Plan(f), "pure")
			require.Equal(t, v.Action == ActionTick, v.Tick != 0)
			require.Equal(t, v.Reason == "recheck_due", v.Recheck != nil)
			if v.ItemID != "" {
				require.EqualValues(t, 7, v.Revision)
			}
			text := sentence(v, f)
			require.NotContains(t, text, "%!")
			require.Greater(t, len(text), len(actionName(v.Action))+2, "a sentence: %q", text)
		})
	}
}

func TestD6_DurationsForPeople(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "since just now", 999 * time.Millisecond: "since just now", time.Second: "since 1 s",
		119 * time.Second: "since 119 s", 2 * time.Minute: "since 2 min",
		119 * time.Minute: "since 119 min", 2 * time.Hour: "since 2 h", 47 * time.Hour: "since 47 h",
		100 * time.Hour: "since 4 days", -time.Second: "since just now",
	} {
		require.Equal(t, want, since(now.Add(-d), now), d)
	}
	require.Equal(t, "since an unknown time", since(time.Time{}, now))
	require.Equal(t, "since an unknown time", since((*timestamppb.Timestamp)(nil).AsTime(), now))
}

// D4: after turns that changed nothing, whatever somebody else changed since
// the last one began is worth another; without that the agent is left alone.
func TestD4_WhatOthersChangeWakesAnAgentWithoutProgress(t *testing.T) {
	last := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	facts := func(changed time.Time) Facts {
		it := &workv1.WorkItem{WorkItemId: "wi_1", Revision: 3, Readiness: workv1.Readiness_READINESS_RUNNABLE}
		return Facts{
			Now: last.Add(time.Hour),
			Agent: &agentv1.AgentFacts{
				Agent: &agentv1.Agent{
					Lifecycle: agentv1.Lifecycle_LIFECYCLE_ACTIVE, Control: agentv1.Control_CONTROL_RUNNING,
					IdleTurns: 9,
				},
				LastTurnStartedAt: timestamppb.New(last),
			},
			Queue: &workv1.GetWorkQueueResponse{
				QueuedRunnable: []*workv1.WorkItem{it},
				ChangedAt:      timestamppb.New(changed),
			},
		}
	}
	require.Equal(t, "no_progress", Plan(facts(last.Add(-time.Second))).Reason)
	require.Equal(t, "no_progress", Plan(facts(last)).Reason)
	require.Equal(t, ActionTick, Plan(facts(last.Add(time.Second))).Action)
}
