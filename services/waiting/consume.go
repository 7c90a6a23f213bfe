package waiting

import (
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// follows is what this plane hears of others.
func follows() []plane.Followed {
	return []plane.Followed{
		{
			Plane: "task", Types: []string{"task_completed", "task_failed", "task_cancelled", "task_interrupted"},
			Registry: journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto),
		},
		{
			Plane: "work", Types: []string{"work_item_completed", "work_item_updated", "wait_attach_refused"},
			Registry: journal.NewRegistry(workv1.File_quartet_work_v1_work_event_proto), Matters: matters,
		},
		{
			// Each event of the agent plane that carries the agent says by its
			// control whether it is stopped, and by its lifecycle whether it lives.
			Plane: "agent", Types: []string{"message_queued", "turn_completed", "agent_stopped", "agent_started", "agent_deleting"},
			Registry: journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto), Matters: matters,
		},
	}
}

// matters keeps the two most frequent events from waking this plane for
// nothing: most updates end no wait, and few messages are an operator's or a
// supervisor's.
func matters(ev *journal.Event) bool {
	switch p := ev.Payload.(type) {
	case *workv1.WorkItemUpdated:
		return p.GetEndedWaitId() != ""
	case *agentv1.MessageQueued:
		return instructs(p.GetMessage())
	case *agentv1.TurnCompleted:
		return len(p.GetTurn().GetShownWaits()) > 0
	}
	return true
}

// react is the rule for what other planes say. What an operator or an agent did
// there is theirs here too; that a task ended, or that a turn was shown a trigger,
// is the system's, whoever stopped the task or finished the turn (SPEC X4).
func react(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	events := reaction(s, env, ev)
	switch ev.Payload.(type) {
	case *taskv1.TaskCompleted, *taskv1.TaskFailed, *taskv1.TaskCancelled, *taskv1.TaskInterrupted, *agentv1.TurnCompleted:
		return events, nil
	}
	return plane.OnBehalf(ev, events), nil
}

func reaction(s *State, env journal.Env, ev *journal.Event) []*journal.Event {
	k := key{ev.Namespace, ev.AgentID}
	a := s.agents[k]
	switch p := ev.Payload.(type) {
	case *taskv1.TaskCompleted:
		return a.taskEnded(env, k, p.GetTask())
	case *taskv1.TaskFailed:
		return a.taskEnded(env, k, p.GetTask())
	case *taskv1.TaskCancelled:
		return a.taskEnded(env, k, p.GetTask())
	case *taskv1.TaskInterrupted:
		return a.taskEnded(env, k, p.GetTask())
	case *workv1.WorkItemCompleted:
		return a.itemCompleted(env, k, ev.WorkItemID)
	case *workv1.WorkItemUpdated:
		return a.cancel(env, k, p.GetEndedWaitId(), waitingv1.WaitEndReason_WAIT_END_REASON_BLOCKER_CLEARED)
	case *workv1.WaitAttachRefused:
		return a.cancel(env, k, p.GetWaitId(), waitingv1.WaitEndReason_WAIT_END_REASON_ATTACH_REFUSED)
	case *agentv1.MessageQueued:
		return a.operatorSaid(env, k, p.GetMessage())
	case *agentv1.TurnCompleted:
		return a.consumed(k, p.GetTurn())
	}
	if p, ok := ev.Payload.(interface{ GetAgent() *agentv1.Agent }); ok {
		return a.controlled(env, k, p.GetAgent())
	}
	return nil
}

// controlled notes whether an agent is stopped: in this plane's own log, so that
// what it refuses and holds back is decided by what it knew (ARCHITECTURE R8).
// A deleted agent waits for nothing, and nothing comes for it (SPEC A8).
func (a *agentWaits) controlled(env journal.Env, k key, agent *agentv1.Agent) []*journal.Event {
	switch agent.GetLifecycle() {
	case agentv1.Lifecycle_LIFECYCLE_DELETING, agentv1.Lifecycle_LIFECYCLE_DELETED:
		return a.ownerDeleted(env, k)
	case agentv1.Lifecycle_LIFECYCLE_ACTIVE, agentv1.Lifecycle_LIFECYCLE_UNSPECIFIED:
	}
	stopped := agent.GetControl() == agentv1.Control_CONTROL_STOPPED
	if a == nil && !stopped || a != nil && a.stopped == stopped {
		return nil
	}
	return []*journal.Event{{Namespace: k.namespace, AgentID: k.id, Payload: &waitingv1.AgentNoted{AgentId: k.id, Stopped: stopped}}}
}

func (a *agentWaits) ownerDeleted(env journal.Env, k key) []*journal.Event {
	if a != nil && a.deleted {
		return nil
	}
	events := []*journal.Event{{
		Namespace: k.namespace, AgentID: k.id, Payload: &waitingv1.AgentNoted{AgentId: k.id, Stopped: a != nil && a.stopped, Deleted: true},
	}}
	if a == nil {
		return events
	}
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool { return !ownInterest(w) }) {
		events = append(events, cancelled(k.namespace, w, env, waitingv1.WaitEndReason_WAIT_END_REASON_AGENT_DELETED))
	}
	for _, t := range a.triggers.list("", len(a.triggers.order), lives) {
		events = append(events, a.endTrigger(k, t, env, waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED)...)
	}
	for _, t := range a.timers.list("", len(a.timers.order), ticking) {
		events = append(events, cancelledTimer(k.namespace, t))
	}
	return events
}

// taskEnded notes the end, for waits to come, and resolves those that stand.
func (a *agentWaits) taskEnded(env journal.Env, k key, t *taskv1.Task) []*journal.Event {
	if a != nil && a.tasks.has(t.GetTaskId()) {
		return nil
	}
	events := []*journal.Event{{
		Namespace: k.namespace, AgentID: k.id, TaskID: t.GetTaskId(), WorkItemID: t.GetWorkItemId(),
		Payload: &waitingv1.TaskNoted{TaskId: t.GetTaskId(), AgentId: k.id, Revision: t.GetRevision(), Terminal: true, State: t.GetState().String()},
	}}
	return append(events, a.comes(env, k, happening{
		arrival: arrival{causeTask, t.GetTaskId()}, itemID: t.GetWorkItemId(),
		matches: func(w *waitingv1.Wait) bool { return w.GetResource() == t.GetTaskId() },
	})...)
}

// comes resolves the one-shot waits that something satisfies, and records for
// the others that it came (SPEC P2, P6).
func (a *agentWaits) comes(env journal.Env, k key, h happening) []*journal.Event {
	if a == nil {
		return nil
	}
	var events []*journal.Event
	for _, w := range a.expected(h) {
		events = append(events, resolved(k.namespace, w, env, h.cause, h.id))
	}
	return append(events, a.mismatches(k, h)...)
}

// itemCompleted ends all that the item waited for (SPEC P9). Triggers stay.
func (a *agentWaits) itemCompleted(env journal.Env, k key, itemID string) []*journal.Event {
	if a != nil && a.items.has(itemID) {
		return nil
	}
	events := []*journal.Event{{
		Namespace: k.namespace, AgentID: k.id, WorkItemID: itemID,
		Payload: &waitingv1.WorkItemNoted{WorkItemId: itemID, AgentId: k.id},
	}}
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool { return w.GetWorkItemId() == itemID }) {
		events = append(events, cancelled(k.namespace, w, env, waitingv1.WaitEndReason_WAIT_END_REASON_WORK_ITEM_COMPLETED))
	}
	return events
}

func (a *agentWaits) cancel(env journal.Env, k key, waitID string, reason waitingv1.WaitEndReason) []*journal.Event {
	if a == nil || waitID == "" {
		return nil
	}
	if w := a.waits.byID[waitID]; w != nil && active(w) {
		return []*journal.Event{cancelled(k.namespace, w, env, reason)}
	}
	return nil
}

// instructs says whether a message is an operator's word. Nobody reaches a private
// child but its supervisor (SPEC A2), whose follow-up is the only answer that the
// child's question to an operator can get.
func instructs(m *agentv1.Message) bool {
	return m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT ||
		m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP && m.GetOrigin() == agentv1.Origin_ORIGIN_PARENT
}

// operatorSaid resolves the named item's operator wait, else the only one of
// the agent, else none (SPEC P2): two waits and one answer is a guess.
func (a *agentWaits) operatorSaid(env journal.Env, k key, m *agentv1.Message) []*journal.Event {
	if !instructs(m) {
		return nil
	}
	waits := a.activeWaits(func(w *waitingv1.Wait) bool {
		return w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR && yields(w) &&
			(m.GetWorkItemId() == "" || w.GetWorkItemId() == m.GetWorkItemId())
	})
	return a.comes(env, k, happening{
		arrival: arrival{causeOperator, m.GetMessageId()}, itemID: m.GetWorkItemId(), everywhere: m.GetWorkItemId() == "",
		matches: func(w *waitingv1.Wait) bool { return len(waits) == 1 && waits[0] == w },
	})
}

// successor returns the active wait that holds the counts of a wait: itself, or the one
// that replaced it and took over the counts; nil if none is active. A turn that was shown a
// trigger usually waits for the next one, so most waits were replaced.
func (a *agentWaits) successor(waitID string) *waitingv1.Wait {
	if w := a.waits.byID[waitID]; w != nil && active(w) {
		return w
	}
	for _, next := range a.activeWaits(func(n *waitingv1.Wait) bool { return n.GetReplacesWaitId() != "" }) {
		// A wait replaces an older one only, so the loop ends.
		for at := next; at != nil && at.GetReplacesWaitId() != ""; at = a.waits.byID[at.GetReplacesWaitId()] {
			if at.GetReplacesWaitId() == waitID {
				return next
			}
		}
	}
	return nil
}

// consumed marks the triggers that a completed turn has shown. A turn that failed marks
// none (SPEC P2).
func (a *agentWaits) consumed(k key, t *agentv1.Turn) []*journal.Event {
	if a == nil {
		return nil
	}
	var events []*journal.Event
	for _, sw := range t.GetShownWaits() {
		w := a.successor(sw.GetWaitId())
		if w == nil || w.GetConsumedCount() >= min(sw.GetTriggerCount(), w.GetTriggerCount()) {
			continue
		}
		n := nextWait(w)
		n.ConsumedCount = min(sw.GetTriggerCount(), w.GetTriggerCount())
		events = append(events, waitEvent(k.namespace, n, &waitingv1.WaitConsumed{Wait: n, TurnId: t.GetTurnId()}))
		if a.unpublished(w) && unseen(n) && n.GetWorkItemId() == "" {
			// Deliveries came during the turn that the agent was not woken by
			// yet. An item shows them by the event above.
			events = append(events, a.tellAgain(k, n))
		}
	}
	return events
}
