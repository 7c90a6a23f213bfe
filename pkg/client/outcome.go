package client

import (
	"errors"
	"fmt"
	"strings"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Why a turn's context ended before its handler returned.
var (
	// ErrAborted: an operator aborted the run (SPEC A7).
	ErrAborted = errors.New("the run was aborted by an operator")
	// ErrLost: the turn is no longer this runner's: its lease was lost, or its
	// agent was stopped or deleted.
	ErrLost = errors.New("the turn is no longer this runner's")
	// ErrStopping: the runner is told to end; the turn is handed back, which
	// counts no attempt.
	ErrStopping = errors.New("the runner stops")
)

// EndedError is the cause of a turn's context when the server ended the turn.
// It is ErrAborted or ErrLost.
type EndedError struct {
	// Turn as it ended; nil where the server could not say.
	Turn *agentv1.Turn
}

// Error says how the turn ended.
func (e *EndedError) Error() string {
	if e.Turn == nil {
		return e.Unwrap().Error()
	}
	state := strings.ToLower(strings.TrimPrefix(e.Turn.GetState().String(), "TURN_STATE_"))
	return fmt.Sprintf("%v: turn %s is %s (%s)", e.Unwrap(), e.Turn.GetTurnId(), state, endReason(e.Turn.GetEndReason()))
}

// Unwrap gives ErrAborted or ErrLost.
func (e *EndedError) Unwrap() error {
	if e.Turn.GetState() == agentv1.TurnState_TURN_STATE_ABORTED {
		return ErrAborted
	}
	return ErrLost
}

// ended is an error with the outcome that it gives its turn.
type ended struct {
	error
	outcome agentv1.TurnOutcome
}

func (e ended) Unwrap() error { return e.error }

// Retryable makes a turn fail in a way that may pass: its message goes back to
// the lane, and is put aside after three attempts. It is what an error without
// an outcome does.
func Retryable(err error) error {
	return ended{err, agentv1.TurnOutcome_TURN_OUTCOME_RETRYABLE}
}

// Released gives a turn back that has no part in why its runner cannot go on: the
// runner stops, or its credential is not good. Its message goes to the front of
// the lane and is offered at once, without an attempt counted; so whoever releases
// takes no further turn before that is mended.
func Released(err error) error { return ended{err, agentv1.TurnOutcome_TURN_OUTCOME_RELEASED} }

// Fatal makes a turn fail for good: its message is put aside at once.
func Fatal(err error) error { return ended{err, agentv1.TurnOutcome_TURN_OUTCOME_FATAL} }

// OverBudget says that what must be in the context does not fit the model. The
// message is put aside at once; trying again would not help.
func OverBudget(err error) error {
	return ended{err, agentv1.TurnOutcome_TURN_OUTCOME_BASELINE_OVER_BUDGET}
}

// Outcome is what a handler's error makes of its turn.
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
