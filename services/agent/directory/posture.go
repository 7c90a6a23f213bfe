package directory

import (
	"fmt"
	"slices"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
)

// derivePosture returns the first posture whose condition holds, with a sentence that
// explains it (SPEC A4). Waits of queued items do not count while the agent has a
// current item. staleTick says that the message at the head of the lane is a tick that is no
// longer true: no turn takes it. asking are the delegations whose children ask something.
func derivePosture(a *agentv1.Agent, lane *agentv1.Lane, staleTick bool, q *workv1.GetWorkQueueResponse,
	own []*waitingv1.Wait, asking []*agentv1.Delegation,
) (agentv1.Posture, string) {
	n := q.GetCounts()
	current := q.GetCurrent()
	switch {
	case a.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETING,
		a.GetLifecycle() == agentv1.Lifecycle_LIFECYCLE_DELETED:
		return agentv1.Posture_POSTURE_STOPPED, "it is " + pbjson.EnumText(a.GetLifecycle())
	case a.GetControl() == agentv1.Control_CONTROL_STOPPED:
		return agentv1.Posture_POSTURE_STOPPED, controlReason("stopped", a)
	case a.GetControl() == agentv1.Control_CONTROL_PAUSED:
		return agentv1.Posture_POSTURE_PAUSED, controlReason("paused", a)
	case a.GetCurrentTurnId() != "":
		return agentv1.Posture_POSTURE_RUNNING_TURN, "turn " + a.GetCurrentTurnId() + " is open"
	case lane.GetQueued() > 1 || lane.GetQueued() == 1 && !staleTick:
		return agentv1.Posture_POSTURE_QUEUED_INPUT, fmt.Sprintf("%d message(s) queued, no runner has taken the turn",
			lane.GetQueued())
	case current.GetReadiness() == workv1.Readiness_READINESS_RUNNABLE:
		return agentv1.Posture_POSTURE_RUNNABLE_WORK, "the current work item " + current.GetWorkItemId() +
			" is runnable"
	case n.GetQueuedRunnable() > 0:
		return agentv1.Posture_POSTURE_RUNNABLE_WORK, fmt.Sprintf("%d runnable work item(s) queued",
			n.GetQueuedRunnable())
	}
	items := slices.Concat(q.GetTriggeredBlocked(), q.GetBlocked(), q.GetWaitingForOperator())
	if current != nil {
		items = []*workv1.WorkItem{current}
	}
	for _, want := range []struct {
		states  []workv1.SchedulingState
		kinds   []waitingv1.WaitKind
		posture agentv1.Posture
		verb    string
	}{
		{[]workv1.SchedulingState{workv1.SchedulingState_SCHEDULING_STATE_WAITING_TASK}, []waitingv1.WaitKind{
			waitingv1.WaitKind_WAIT_KIND_TASK,
		}, agentv1.Posture_POSTURE_WAITING_TASK, "waits for a task"},
		{
			[]workv1.SchedulingState{
				workv1.SchedulingState_SCHEDULING_STATE_WAITING_EXTERNAL,
				workv1.SchedulingState_SCHEDULING_STATE_WAITING_TIMER,
				workv1.SchedulingState_SCHEDULING_STATE_WAITING_SYSTEM,
			},
			[]waitingv1.WaitKind{
				waitingv1.WaitKind_WAIT_KIND_EXTERNAL, waitingv1.WaitKind_WAIT_KIND_TIMER,
				waitingv1.WaitKind_WAIT_KIND_SYSTEM,
			},
			agentv1.Posture_POSTURE_WAITING_EXTERNAL,
			"waits for an event or a time",
		},
		{[]workv1.SchedulingState{workv1.SchedulingState_SCHEDULING_STATE_WAITING_OPERATOR}, []waitingv1.WaitKind{
			waitingv1.WaitKind_WAIT_KIND_OPERATOR,
		}, agentv1.Posture_POSTURE_WAITING_OPERATOR, "waits for an operator"},
		{
			[]workv1.SchedulingState{workv1.SchedulingState_SCHEDULING_STATE_BLOCKED},
			nil,
			agentv1.Posture_POSTURE_BLOCKED, "is blocked",
		},
	} {
		for _, it := range items {
			if slices.Contains(want.states, it.GetSchedulingState()) {
				for _, w := range it.GetWaits() {
					if chain := awaitedOf(a, asking, w); chain != "" && slices.Contains(want.kinds, w.GetKind()) {
						return want.posture, fmt.Sprintf("work item %s waits for %s", it.GetWorkItemId(), chain)
					}
				}
				return want.posture, fmt.Sprintf("work item %s %s: %s", it.GetWorkItemId(), want.verb,
					it.GetBlockedBy())
			}
		}
		for _, w := range own {
			if current == nil && slices.Contains(want.kinds, w.GetKind()) {
				if chain := awaitedOf(a, asking, w); chain != "" {
					return want.posture, "it waits by itself for " + chain
				}
				return want.posture, fmt.Sprintf("it %s by itself: %s", want.verb, w.GetReason())
			}
		}
	}
	return agentv1.Posture_POSTURE_IDLE, "nothing is open that it could do"
}

// awaitedWait is a wait as the waiting plane or its item shows it.
type awaitedWait interface {
	GetMode() waitingv1.WaitMode
	GetKind() waitingv1.WaitKind
	GetResource() string
	GetReason() string
}

// awaitedOf describes a wait that stands for a question between a child and its supervisor (SPEC
// A14.3): the wait of a child for its supervisor's answer, or the wait of a parent for the task of
// a child that asks something. It returns "" for all other waits.
func awaitedOf(a *agentv1.Agent, asking []*agentv1.Delegation, w awaitedWait) string {
	switch {
	case w.GetMode() == waitingv1.WaitMode_WAIT_MODE_INTENT:
	case w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR && a.GetSupervisorAgentId() != "":
		return fmt.Sprintf("its supervisor %s: %s", a.GetSupervisorAgentId(), w.GetReason())
	case w.GetKind() == waitingv1.WaitKind_WAIT_KIND_TASK:
		for _, d := range asking {
			if d.GetTaskId() == w.GetResource() {
				return fmt.Sprintf("task %s, whose child %s asks: %s", d.GetTaskId(), d.GetChildAgentId(),
					d.GetQuestions()[0].GetText())
			}
		}
	}
	return ""
}

// controlReason returns who set the control of an agent, and why.
func controlReason(how string, a *agentv1.Agent) string {
	text := "it was " + how
	if a.GetControlBy() != "" {
		text += " by " + a.GetControlBy()
	}
	if a.GetControlReason() != "" {
		text += ": " + a.GetControlReason()
	}
	return text
}
