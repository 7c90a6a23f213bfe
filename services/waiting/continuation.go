package waiting

import (
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane"
)

// Short names for the causes of inputs. The first four end a one-shot wait.
const (
	causeTask        = waitingv1.WaitCause_WAIT_CAUSE_TASK_RESULT
	causeTaskPresent = waitingv1.WaitCause_WAIT_CAUSE_TASK_RESULT_PRESENT
	causeTimer       = waitingv1.WaitCause_WAIT_CAUSE_TIMER
	causeOperator    = waitingv1.WaitCause_WAIT_CAUSE_OPERATOR_INPUT
	causeExternal    = waitingv1.WaitCause_WAIT_CAUSE_EXTERNAL
)

// Short names for what an input does to a wait (SPEC P6).
const (
	resumesExpected = waitingv1.Continuation_CONTINUATION_RESUME_EXPECTED_WAIT
	resumesOverride = waitingv1.Continuation_CONTINUATION_RESUME_OVERRIDE
	livenessOnly    = waitingv1.Continuation_CONTINUATION_LIVENESS_ONLY
)

// endReasonOf returns the end reason of a wait that was resolved by a cause; unspecified for a
// cause that ends no wait.
func endReasonOf(cause waitingv1.WaitCause) waitingv1.WaitEndReason {
	switch cause {
	case causeTask:
		return waitingv1.WaitEndReason_WAIT_END_REASON_TASK_RESULT
	case causeTaskPresent:
		return waitingv1.WaitEndReason_WAIT_END_REASON_TASK_RESULT_PRESENT
	case causeTimer:
		return waitingv1.WaitEndReason_WAIT_END_REASON_TIMER
	case causeOperator:
		return waitingv1.WaitEndReason_WAIT_END_REASON_OPERATOR_INPUT
	case causeExternal, waitingv1.WaitCause_WAIT_CAUSE_UNSPECIFIED:
		// External waits stay active over many deliveries.
	}
	return waitingv1.WaitEndReason_WAIT_END_REASON_UNSPECIFIED
}

// maxMismatches is how many mismatches are recorded for a wait, and for one input. They are
// evidence for people, which a storm of inputs must not make useless.
const maxMismatches = 16

// continuation returns what an input does to a wait of a kind (the matrix of SPEC P6).
// matched says that the input is the task, time, trigger or message that this wait names.
func continuation(kind waitingv1.WaitKind, cause waitingv1.WaitCause, matched bool) waitingv1.Continuation {
	expects := map[waitingv1.WaitKind]waitingv1.WaitCause{
		waitingv1.WaitKind_WAIT_KIND_OPERATOR: causeOperator,
		waitingv1.WaitKind_WAIT_KIND_TASK:     causeTask,
		waitingv1.WaitKind_WAIT_KIND_TIMER:    causeTimer,
		waitingv1.WaitKind_WAIT_KIND_EXTERNAL: causeExternal,
	}[kind]
	switch {
	case matched && cause == expects:
		return resumesExpected
	case cause == causeOperator && expects != causeOperator:
		// It is a new decision, to which the agent may turn; the wait stays active.
		return resumesOverride
	}
	return livenessOnly
}

// arrival identifies an input that waits may be for.
type arrival struct {
	cause waitingv1.WaitCause
	id    string // of the task, timer, trigger or message
}

// input is something that arrived and that waits may be for.
type input struct {
	arrival
	// The input concerns the waits of the item itemID, or for "" those of the agent itself.
	// With everywhere, it concerns all waits of the agent and its items.
	itemID     string
	everywhere bool
	// matches reports whether the input is the very one that a wait names.
	matches func(*waitingv1.Wait) bool
}

// expected returns the active waits and intents that an input satisfies, in order of creation.
func (a *agentWaits) expected(h input) []*waitingv1.Wait {
	return a.activeWaits(func(w *waitingv1.Wait) bool {
		return continuation(w.GetKind(), h.cause, h.matches(w)) == resumesExpected
	})
}

// mismatches returns the events that record an input for the active waits of mode wait that it
// concerns and does not satisfy. Those waits stay active (SPEC P6). An input is recorded once
// for a wait; at most maxMismatches inputs are recorded for a wait, and at most as many events
// returned.
func (a *agentWaits) mismatches(k plane.Key, h input) []*journal.Event {
	var events []*journal.Event
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool {
		return blocks(w) && (h.everywhere || w.GetWorkItemId() == h.itemID)
	}) {
		c := continuation(w.GetKind(), h.cause, h.matches(w))
		known := a.mismatched[w.GetWaitId()]
		if c == resumesExpected || known[h.arrival] || len(known) == maxMismatches || len(events) == maxMismatches {
			continue
		}
		events = append(events, waitEvent(k.Namespace, w, &waitingv1.WaitMismatched{
			WaitId: w.GetWaitId(), Cause: h.cause, CauseId: h.id, Continuation: c,
		}))
	}
	return events
}
