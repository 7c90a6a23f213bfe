package model

import (
	"strings"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// StepStatus is a short name of the type of a step's status.
type StepStatus = boardv1.StepStatus

// BoardStatus is a short name of the type of a board's status.
type BoardStatus = boardv1.BoardStatus

// Short names of the statuses of steps and boards.
const (
	StepPending   = boardv1.StepStatus_STEP_STATUS_PENDING
	StepReady     = boardv1.StepStatus_STEP_STATUS_READY
	StepClaimed   = boardv1.StepStatus_STEP_STATUS_CLAIMED
	StepRunning   = boardv1.StepStatus_STEP_STATUS_RUNNING
	StepBlocked   = boardv1.StepStatus_STEP_STATUS_BLOCKED
	StepCompleted = boardv1.StepStatus_STEP_STATUS_COMPLETED
	StepFailed    = boardv1.StepStatus_STEP_STATUS_FAILED
	StepCancelled = boardv1.StepStatus_STEP_STATUS_CANCELLED

	BoardPending   = boardv1.BoardStatus_BOARD_STATUS_PENDING
	BoardRunning   = boardv1.BoardStatus_BOARD_STATUS_RUNNING
	BoardBlocked   = boardv1.BoardStatus_BOARD_STATUS_BLOCKED
	BoardCompleted = boardv1.BoardStatus_BOARD_STATUS_COMPLETED
	BoardFailed    = boardv1.BoardStatus_BOARD_STATUS_FAILED
	BoardCancelled = boardv1.BoardStatus_BOARD_STATUS_CANCELLED
)

// Mover is who moves a step or a board. One change may be allowed to several.
type Mover uint8

// The movers. A set of them is their sum.
const (
	byPlane        Mover = 1 << iota // the plane, as a consequence of something else
	ByHolder                         // the run that holds the step
	ByOrchestrator                   // the board's owner, by UpdateStep or UpdateBoard
	byBoardEnd                       // the end of the board
)

// stepMove is a change of the status of a step.
type stepMove struct{ from, to StepStatus }

// stepMoves is the status machine of steps (S2-132 to S2-249, SPEC B5 to B8): every
// allowed change, and who may make it. A test tries all others.
var stepMoves = map[stepMove]Mover{
	{StepPending, StepReady}:     byPlane,
	{StepPending, StepBlocked}:   ByOrchestrator,
	{StepPending, StepFailed}:    ByOrchestrator | byBoardEnd,
	{StepPending, StepCancelled}: ByOrchestrator | byBoardEnd,

	{StepReady, StepPending}:   byPlane, // a dependency was added
	{StepReady, StepClaimed}:   ByHolder,
	{StepReady, StepBlocked}:   ByOrchestrator,
	{StepReady, StepCompleted}: ByOrchestrator,
	{StepReady, StepFailed}:    ByOrchestrator | byBoardEnd,
	{StepReady, StepCancelled}: ByOrchestrator | byBoardEnd,

	{StepClaimed, StepRunning}:   ByHolder,
	{StepClaimed, StepPending}:   byPlane, // the lease expired
	{StepClaimed, StepBlocked}:   ByHolder | ByOrchestrator,
	{StepClaimed, StepCompleted}: ByHolder | ByOrchestrator,
	{StepClaimed, StepFailed}:    ByHolder | ByOrchestrator | byPlane | byBoardEnd,
	{StepClaimed, StepCancelled}: ByHolder | byBoardEnd,

	{StepRunning, StepRunning}:   ByHolder, // a report on progress
	{StepRunning, StepPending}:   byPlane,  // the lease expired
	{StepRunning, StepBlocked}:   ByHolder | ByOrchestrator,
	{StepRunning, StepCompleted}: ByHolder | ByOrchestrator,
	{StepRunning, StepFailed}:    ByHolder | ByOrchestrator | byPlane | byBoardEnd,
	{StepRunning, StepCancelled}: ByHolder | byBoardEnd,

	{StepBlocked, StepPending}:   ByOrchestrator,
	{StepBlocked, StepFailed}:    byBoardEnd,
	{StepBlocked, StepCancelled}: byBoardEnd,

	{StepFailed, StepPending}: ByOrchestrator,
}

// StepMayMove reports whether one of the movers who may change the status of a step in this
// way.
func StepMayMove(who Mover, from, to StepStatus) bool { return stepMoves[stepMove{from, to}]&who != 0 }

// BoardMove is a change of the status of a board.
type BoardMove struct{ From, To BoardStatus }

// BoardMoves is the status machine of boards (S2-148 to S2-183): every allowed change, and
// who may make it.
var BoardMoves = map[BoardMove]Mover{
	{BoardPending, BoardRunning}:   byPlane,
	{BoardPending, BoardBlocked}:   ByOrchestrator,
	{BoardPending, BoardCompleted}: byBoardEnd,
	{BoardPending, BoardFailed}:    byBoardEnd,
	{BoardPending, BoardCancelled}: byBoardEnd,

	{BoardRunning, BoardBlocked}:   ByOrchestrator,
	{BoardRunning, BoardCompleted}: byBoardEnd,
	{BoardRunning, BoardFailed}:    byBoardEnd,
	{BoardRunning, BoardCancelled}: byBoardEnd,

	{BoardBlocked, BoardPending}:   ByOrchestrator,
	{BoardBlocked, BoardCompleted}: byBoardEnd,
	{BoardBlocked, BoardFailed}:    byBoardEnd,
	{BoardBlocked, BoardCancelled}: byBoardEnd,
}

// BoardMayMove reports whether one of the movers who may change the status of a board in this
// way.
func BoardMayMove(who Mover, from, to BoardStatus) bool {
	return BoardMoves[BoardMove{from, to}]&who != 0
}

// Held reports whether a step with this status is held by a run, under a lease.
func Held(s StepStatus) bool { return s == StepClaimed || s == StepRunning }

// Finished reports whether a step is completed, failed or cancelled. A failed step may be
// reopened.
func Finished(s StepStatus) bool {
	return s == StepCompleted || s == StepFailed || s == StepCancelled
}

// Ended reports whether a board is completed, failed or cancelled, which is final.
func Ended(s BoardStatus) bool {
	return s == BoardCompleted || s == BoardFailed || s == BoardCancelled
}

// StepStatusName returns the name of a status in lower case, such as "running".
func StepStatusName(s StepStatus) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STEP_STATUS_"))
}

// BoardStatusName returns the name of a status in lower case, such as "running".
func BoardStatusName(s BoardStatus) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "BOARD_STATUS_"))
}
