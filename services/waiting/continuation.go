package waiting

import (
	"quartet/pkg/journal"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// Short names for what arrives for waits. The first four end a one-shot wait.
const (
	causeTask        = waitingv1.WaitCause_WAIT_CAUSE_TASK_RESULT
	causeTaskPresent = waitingv1.WaitCause_WAIT_CAUSE_TASK_RESULT_PRESENT
	causeTimer       = waitingv1.WaitCause_WAIT_CAUSE_TIMER
	causeOperator    = waitingv1.WaitCause_WAIT_CAUSE_OPERATOR_INPUT
	causeExternal    = waitingv1.WaitCause_WAIT_CAUSE_EXTERNAL
)

// Short names for what an arrival means for a wait (SPEC P6).
const (
	resumesExpected = waitingv1.Continuation_CONTINUATION_RESUME_EXPECTED_WAIT
	resumesOverride = waitingv1.Continuation_CONTINUATION_RESUME_OVERRIDE
	livenessOnly    = waitingv1.Continuation_CONTINUATION_LIVENESS_ONLY
)

// endReasonOf is the end reason of a wait that a cause resolved.
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

// most is how many mismatches are recorded for a wait, and of one cause: they are
// evidence for people, and a storm must not drown them.
const most = 16

// continuation is the matrix of SPEC P6: what a cause means for a wait of a
// kind. matched says that it is the task, the time, the trigger or the operator's
// word that this very wait waits for.
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
		// A new decision: the agent may turn to it, and the wait stands.
		return resumesOverride
	}
	return livenessOnly
}

// arrival identifies what arrived for waits.
type arrival struct {
	cause waitingv1.WaitCause
	id    string // of the task, timer, trigger or message
}

// happening is something that came, as waits see it.
type happening struct {
	arrival
	// itemID is the item that it is about. With everywhere it is about all the
	// agent waits for.
	itemID     string
	everywhere bool
	// matches says which waits it is what they wait for.
	matches func(*waitingv1.Wait) bool
}

// expected are the waits that something satisfies.
func (a *agentWaits) expected(h happening) []*waitingv1.Wait {
	return a.activeWaits(func(w *waitingv1.Wait) bool {
		return continuation(w.GetKind(), h.cause, h.matches(w)) == resumesExpected
	})
}

// mismatches records for the waits of the same owner that it is not what they
// wait for: they stay, and nobody pretends (SPEC P6).
func (a *agentWaits) mismatches(k key, h happening) []*journal.Event {
	var events []*journal.Event
	for _, w := range a.activeWaits(func(w *waitingv1.Wait) bool {
		return yields(w) && (h.everywhere || w.GetWorkItemId() == h.itemID)
	}) {
		c := continuation(w.GetKind(), h.cause, h.matches(w))
		known := a.mismatched[w.GetWaitId()]
		if c == resumesExpected || known[h.arrival] || len(known) == most || len(events) == most {
			continue
		}
		events = append(events, waitEvent(k.namespace, w, &waitingv1.WaitMismatched{
			WaitId: w.GetWaitId(), Cause: h.cause, CauseId: h.id, Continuation: c,
		}))
	}
	return events
}
