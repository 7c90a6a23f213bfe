package board

import (
	"strings"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

type (
	status     = boardv1.StepStatus
	taskStatus = boardv1.BoardStatus
)

// Where steps and boards stand, in short.
const (
	stepPending   = boardv1.StepStatus_STEP_STATUS_PENDING
	stepReady     = boardv1.StepStatus_STEP_STATUS_READY
	stepClaimed   = boardv1.StepStatus_STEP_STATUS_CLAIMED
	stepRunning   = boardv1.StepStatus_STEP_STATUS_RUNNING
	stepBlocked   = boardv1.StepStatus_STEP_STATUS_BLOCKED
	stepCompleted = boardv1.StepStatus_STEP_STATUS_COMPLETED
	stepFailed    = boardv1.StepStatus_STEP_STATUS_FAILED
	stepCancelled = boardv1.StepStatus_STEP_STATUS_CANCELLED

	taskPending   = boardv1.BoardStatus_BOARD_STATUS_PENDING
	taskRunning   = boardv1.BoardStatus_BOARD_STATUS_RUNNING
	taskBlocked   = boardv1.BoardStatus_BOARD_STATUS_BLOCKED
	taskCompleted = boardv1.BoardStatus_BOARD_STATUS_COMPLETED
	taskFailed    = boardv1.BoardStatus_BOARD_STATUS_FAILED
	taskCancelled = boardv1.BoardStatus_BOARD_STATUS_CANCELLED
)

// mover is who moves a step or a board. One move may be several movers'.
type mover uint8

const (
	core         mover = 1 << iota // the plane itself
	holder                         // the run that holds the step
	orchestrator                   // the board's owner, by UpdateStep or UpdateBoard
	ending                         // the end of the board
)

type stepMove struct{ from, to status }

// stepMoves is the whole state machine of steps (S2-132 to S2-249, SPEC B5 to
// B8). What does not stand here does not happen; the tests go through all that
// does not.
var stepMoves = map[stepMove]mover{
	{stepPending, stepReady}:     core,
	{stepPending, stepBlocked}:   orchestrator,
	{stepPending, stepFailed}:    orchestrator | ending,
	{stepPending, stepCancelled}: orchestrator | ending,

	{stepReady, stepPending}:   core, // a dependency was added
	{stepReady, stepClaimed}:   holder,
	{stepReady, stepBlocked}:   orchestrator,
	{stepReady, stepCompleted}: orchestrator,
	{stepReady, stepFailed}:    orchestrator | ending,
	{stepReady, stepCancelled}: orchestrator | ending,

	{stepClaimed, stepRunning}:   holder,
	{stepClaimed, stepPending}:   core, // the lease is over
	{stepClaimed, stepBlocked}:   holder | orchestrator,
	{stepClaimed, stepCompleted}: holder | orchestrator,
	{stepClaimed, stepFailed}:    holder | orchestrator | core | ending,
	{stepClaimed, stepCancelled}: holder | ending,

	{stepRunning, stepRunning}:   holder, // it goes on
	{stepRunning, stepPending}:   core,   // the lease is over
	{stepRunning, stepBlocked}:   holder | orchestrator,
	{stepRunning, stepCompleted}: holder | orchestrator,
	{stepRunning, stepFailed}:    holder | orchestrator | core | ending,
	{stepRunning, stepCancelled}: holder | ending,

	{stepBlocked, stepPending}:   orchestrator,
	{stepBlocked, stepFailed}:    ending,
	{stepBlocked, stepCancelled}: ending,

	{stepFailed, stepPending}: orchestrator,
}

func mayStep(who mover, from, to status) bool { return stepMoves[stepMove{from, to}]&who != 0 }

type taskMove struct{ from, to taskStatus }

// taskMoves is the whole state machine of boards (S2-148 to S2-183).
var taskMoves = map[taskMove]mover{
	{taskPending, taskRunning}:   core,
	{taskPending, taskBlocked}:   orchestrator,
	{taskPending, taskCompleted}: ending,
	{taskPending, taskFailed}:    ending,
	{taskPending, taskCancelled}: ending,

	{taskRunning, taskBlocked}:   orchestrator,
	{taskRunning, taskCompleted}: ending,
	{taskRunning, taskFailed}:    ending,
	{taskRunning, taskCancelled}: ending,

	{taskBlocked, taskPending}:   orchestrator,
	{taskBlocked, taskCompleted}: ending,
	{taskBlocked, taskFailed}:    ending,
	{taskBlocked, taskCancelled}: ending,
}

func mayTask(who mover, from, to taskStatus) bool { return taskMoves[taskMove{from, to}]&who != 0 }

func held(s status) bool { return s == stepClaimed || s == stepRunning }

// settled steps are at the end of their own way; a failed one may be reopened.
func settledStep(s status) bool {
	return s == stepCompleted || s == stepFailed || s == stepCancelled
}

func terminal(s taskStatus) bool {
	return s == taskCompleted || s == taskFailed || s == taskCancelled
}

// word is a status as S2 writes it.
func word(s status) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STEP_STATUS_"))
}

func taskWord(s taskStatus) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "BOARD_STATUS_"))
}
