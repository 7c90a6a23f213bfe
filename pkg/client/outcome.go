package client

import (
	"errors"
	"fmt"
	"strings"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// The causes with which a turn's context ends before its handler returns.
var (
	// ErrAborted means that an operator aborted the run (SPEC A7).
	ErrAborted = errors.New("the run was aborted by an operator")
	// ErrLost means that this runner does not hold the turn any more: its lease expired, or
	// its agent was stopped or deleted.
	ErrLost = errors.New("the turn is no longer this runner's")
	// ErrStopping means that the runner, or the worker, stops. If the handler of a turn then returns
	// any error, the turn is released, which does not count as an attempt.
	ErrStopping = errors.New("the runner stops")
)

// EndedError is the cause of a turn's context when the server ended the turn.
// errors.Is finds ErrAborted or ErrLost in it.
type EndedError struct {
	// Turn is the turn after its end, or nil if the server did not return it.
	Turn *agentv1.Turn
}

// Error returns how the turn ended.
func (e *EndedError) Error() string {
	if e.Turn == nil {
		return e.Unwrap().Error()
	}
	state := strings.ToLower(strings.TrimPrefix(e.Turn.GetState().String(), "TURN_STATE_"))
	return fmt.Sprintf("%v: turn %s is %s (%s)", e.Unwrap(), e.Turn.GetTurnId(), state,
		endReason(e.Turn.GetEndReason()))
}

// Unwrap returns ErrAborted or ErrLost.
func (e *EndedError) Unwrap() error {
	if e.Turn.GetState() == agentv1.TurnState_TURN_STATE_ABORTED {
		return ErrAborted
	}
	return ErrLost
}

// ended is a handler's error that determines the outcome of its turn.
type ended struct {
	error
	outcome agentv1.TurnOutcome
}

func (e ended) Unwrap() error { return e.error }

// Retryable returns an error with which a turn fails transiently: its message returns to the lane, and
// is quarantined after three attempts. A handler's error that none of these functions made counts as
// retryable.
func Retryable(err error) error {
	return ended{err, agentv1.TurnOutcome_TURN_OUTCOME_RETRYABLE}
}

// Released returns an error with which a turn is released for a reason that is not in the turn: the
// runner stops, or its credential is refused. The message returns to the front of the lane and can be
// acquired at once, and no attempt is counted. So the runner must not acquire another turn before the
// reason is repaired: it would receive the same message again and again.
func Released(err error) error { return ended{err, agentv1.TurnOutcome_TURN_OUTCOME_RELEASED} }

// Fatal returns an error with which a turn fails permanently: its message is quarantined at once.
func Fatal(err error) error { return ended{err, agentv1.TurnOutcome_TURN_OUTCOME_FATAL} }

// OverBudget returns an error with which a turn fails because the sections that its context must have do not fit
// the model. The turn's message is quarantined at once, because another attempt would fail as well.
func OverBudget(err error) error {
	return ended{err, agentv1.TurnOutcome_TURN_OUTCOME_BASELINE_OVER_BUDGET}
}

// Outcome returns the outcome of a turn whose handler returned err.
func Outcome(err error) agentv1.TurnOutcome {
	var e ended
	switch {
	case err == nil:
		return agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED
	case errors.As(err, &e):
		return e.outcome
	}
	return agentv1.TurnOutcome_TURN_OUTCOME_RETRYABLE
}

// endReason returns the name of a reason in lower case, such as lease_lost.
func endReason(r agentv1.TurnEndReason) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "TURN_END_REASON_"))
}
