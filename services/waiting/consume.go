package waiting

import (
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
)

// follows returns what this plane follows of other planes.
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
			Plane: "agent", Types: []string{
				"message_queued", "turn_completed", "agent_stopped", "agent_started",
				"agent_deleting",
			},
			Registry: journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto), Matters: matters,
		},
	}
}

// matters reports whether an event of another plane can change anything here. It excludes most
// of the frequent ones: updates of items that end no wait, messages that are no instructions,
// and turns that were shown no wait.
func matters(ev *journal.Event) bool {
	switch p := ev.Payload.(type) {
	case *workv1.WorkItemUpdated:
		return p.GetEndedWaitId() != ""
	case *agentv1.MessageQueued:
		return isInstruction(p.GetMessage())
	case *agentv1.TurnCompleted:
		return len(p.GetTurn().GetShownWaits()) > 0
	}
	return true
}

// react is the rule for the events of other planes. The actor of the events that it
// returns is that of ev for what an operator or an agent did; for the end of a task and of
// a turn it is the system, whoever ended them (SPEC X4).
func react(s *State, env journal.Env, ev *journal.Event) ([]*journal.Event, error) {
	events := reaction(s, env, ev)
	switch ev.Payload.(type) {
	case *taskv1.TaskCompleted, *taskv1.TaskFailed, *taskv1.TaskCancelled, *taskv1.TaskInterrupted,
		*agentv1.TurnCompleted:
		return events, nil
	}
	return plane.OnBehalf(ev, events), nil
}

// reaction returns the events of this plane that follow from ev; react sets their actor.
func reaction(s *State, env journal.Env, ev *journal.Event) []*journal.Event {
	k := plane.KeyOf(ev.Namespace, ev.AgentID)
	a := s.agents.Get(k)
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
		return a.operatorMessage(env, k, p.GetMessage())
	case *agentv1.TurnCompleted:
		return a.consumed(k, p.GetTurn())
	}
	// agent_stopped, agent_started and agent_deleting have the agent as it is then.
	if p, ok := ev.Payload.(interface{ GetAgent() *agentv1.Agent }); ok {
		return a.controlChanged(env, k, p.GetAgent())
	}
	return nil
}

// controlChanged records whether an agent is stopped in this plane's own journal, so that
// its decisions depend on its own journal alone (SPEC R8). The waits, triggers and timers of
// a deleted agent end (SPEC A8).
func (a *agentWaits) controlChanged(env journal.Env, k plane.Key, agent *agentv1.Agent) []*journal.Event {
	switch agent.GetLifecycle() {
	case agentv1.Lifecycle_LIFECYCLE_DELETING, agentv1.Lifecycle_LIFECYCLE_DELETED:
		return a.ownerDeleted(env, k)
	case agentv1.Lifecycle_LIFECYCLE_ACTIVE, agentv1.Lifecycle_LIFECYCLE_UNSPECIFIED:
	}
	stopped := agent.GetControl() == agentv1.Control_CONTROL_STOPPED
	if a == nil && !stopped || a != nil && a.stopped == stopped {
		return nil
	}
	return []*journal.Event{
		{Namespace: k.Namespace, AgentID: k.ID, Payload: &waitingv1.AgentNoted{AgentId: k.ID, Stopped: stopped}},
	}
}

// ownerDeleted returns the events that record that an agent is deleted, and end its waits, triggers and timers; if
// these are too many for one command, further commands end the rest (see endOwned). It returns no events if the
// deletion is recorded already.
func (a *agentWaits) ownerDeleted(env journal.Env, k plane.Key) []*journal.Event {
	if a != nil && a.deleted {
		return nil
	}
	events := []*journal.Event{{
		Namespace: k.Namespace, AgentID: k.ID, Payload: &waitingv1.AgentNoted{AgentId: k.ID, Stopped: a != nil &&
			a.stopped, Deleted: true},
	}}
	return append(events, a.endOwned(env, k, "")...)
}

// taskEnded returns events that record the end of a task for later waits, resolve the active waits for it, and record
// a mismatch for other waits of its item. It returns nil if the end is recorded already.
func (a *agentWaits) taskEnded(env journal.Env, k plane.Key, t *taskv1.Task) []*journal.Event {
	if a != nil && a.tasks.Has(t.GetTaskId()) {
		return nil
	}
	events := []*journal.Event{{
		Namespace: k.Namespace, AgentID: k.ID, TaskID: t.GetTaskId(), WorkItemID: t.GetWorkItemId(),
		Payload: &waitingv1.TaskNoted{
			TaskId: t.GetTaskId(), AgentId: k.ID, Revision: t.GetRevision(), Terminal: true,
			State: t.GetState().String(),
		},
	}}
	return append(events, a.arrive(env, k, input{
		arrival: arrival{causeTask, t.GetTaskId()}, itemID: t.GetWorkItemId(),
		matches: func(w *waitingv1.Wait) bool { return w.GetResource() == t.GetTaskId() },
	})...)
}

// arrive resolves the one-shot waits that an input satisfies, and records it as a mismatch for
// the other waits that it concerns (SPEC P2, P6).
func (a *agentWaits) arrive(env journal.Env, k plane.Key, h input) []*journal.Event {
	if a == nil {
		return nil
	}
	var events []*journal.Event
	for _, w := range a.expected(h) {
		events = append(events, resolved(k.Namespace, w, env, h.cause, h.id))
	}
	return append(events, a.mismatches(k, h)...)
}

// itemCompleted returns the events that record that an item is completed, and end its waits, intents and timers
// (SPEC P9); if these are too many for one command, further commands end the rest (see endOwned). The item's triggers
// stay active. It returns no events if the completion is recorded already.
func (a *agentWaits) itemCompleted(env journal.Env, k plane.Key, itemID string) []*journal.Event {
	if a != nil && a.items.Has(itemID) {
		return nil
	}
	events := []*journal.Event{{
		Namespace: k.Namespace, AgentID: k.ID, WorkItemID: itemID,
		Payload: &waitingv1.WorkItemNoted{WorkItemId: itemID, AgentId: k.ID},
	}}
	return append(events, a.endOwned(env, k, itemID)...)
}

// cancel cancels a wait for a reason. It returns no events if the agent has no such active
// wait.
func (a *agentWaits) cancel(env journal.Env, k plane.Key, waitID string,
	reason waitingv1.WaitEndReason,
) []*journal.Event {
	if a == nil || waitID == "" {
		return nil
	}
	if w := a.waits.Get(waitID); w != nil && active(w) {
		return []*journal.Event{cancelled(k.Namespace, w, env, reason)}
	}
	return nil
}

// isInstruction reports whether a message can answer a wait for an operator: it is of an
// operator, or a follow-up of a private child's supervisor, because nobody else can send
// messages to the child (SPEC A2).
func isInstruction(m *agentv1.Message) bool {
	return m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT ||
		m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_INTERNAL_FOLLOWUP &&
			m.GetOrigin() == agentv1.Origin_ORIGIN_PARENT
}

// operatorMessage resolves the operator wait that an instruction answers: the active one whose id
// the message names, or if it names none the only one of the item that it names, or if it names no
// item the only one of the agent and all its items. If there are several, it resolves none
// (SPEC P2). A message that is no instruction resolves none.
func (a *agentWaits) operatorMessage(env journal.Env, k plane.Key, m *agentv1.Message) []*journal.Event {
	if a == nil || !isInstruction(m) {
		return nil
	}
	waits := a.activeWaits(func(w *waitingv1.Wait) bool {
		return w.GetKind() == waitingv1.WaitKind_WAIT_KIND_OPERATOR && blocks(w) &&
			(m.GetWorkItemId() == "" || w.GetWorkItemId() == m.GetWorkItemId()) &&
			(m.GetAnsweredWaitId() == "" || w.GetWaitId() == m.GetAnsweredWaitId())
	})
	in := input{
		arrival: arrival{causeOperator, m.GetMessageId()}, itemID: m.GetWorkItemId(),
		everywhere: m.GetWorkItemId() == "",
	}
	in.matches = func(w *waitingv1.Wait) bool { return len(waits) == 1 && waits[0] == w }
	if m.GetAnsweredWaitId() != "" { // it concerns the waits of the same item only
		in.itemID, in.everywhere = a.waits.Get(m.GetAnsweredWaitId()).GetWorkItemId(), false
	}
	return a.arrive(env, k, in)
}

// successor returns the active wait that holds the counts of a wait: itself, or the one
// that replaced it and took over the counts; nil if none is active. A turn that was shown a
// trigger usually waits for the next one, so most waits were replaced.
func (a *agentWaits) successor(waitID string) *waitingv1.Wait {
	if w := a.waits.Get(waitID); w != nil && active(w) {
		return w
	}
	for _, next := range a.activeWaits(func(n *waitingv1.Wait) bool { return n.GetReplacesWaitId() != "" }) {
		// A wait replaces an older one only, so the loop ends.
		for w := next; w != nil && w.GetReplacesWaitId() != ""; w = a.waits.Get(w.GetReplacesWaitId()) {
			if w.GetReplacesWaitId() == waitID {
				return next
			}
		}
	}
	return nil
}

// consumed marks as consumed the triggers that a completed turn was shown. A turn that failed
// has no such event, so it marks none (SPEC P2).
func (a *agentWaits) consumed(k plane.Key, t *agentv1.Turn) []*journal.Event {
	if a == nil {
		return nil
	}
	// A turn may have been shown a wait and the one that it replaced, which are one now.
	var shown []*waitingv1.Wait
	counts := map[string]int64{}
	for _, sw := range t.GetShownWaits() {
		w := a.successor(sw.GetWaitId())
		if w == nil {
			continue
		}
		if _, known := counts[w.GetWaitId()]; !known {
			shown = append(shown, w)
		}
		counts[w.GetWaitId()] = max(counts[w.GetWaitId()], sw.GetTriggerCount())
	}
	var events []*journal.Event
	for _, w := range shown {
		count := min(counts[w.GetWaitId()], w.GetTriggerCount())
		if w.GetConsumedCount() >= count {
			continue
		}
		n := nextWait(w)
		n.ConsumedCount = count
		events = append(events, waitEvent(k.Namespace, n, &waitingv1.WaitConsumed{Wait: n, TurnId: t.GetTurnId()}))
		if a.unpublished(w) && unseen(n) && n.GetWorkItemId() == "" {
			// Deliveries came during the turn that the agent was not woken by
			// yet. Those for an item are published with WaitConsumed.
			events = append(events, a.publishCount(k, n))
		}
	}
	return events
}
