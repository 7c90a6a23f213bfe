package model

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// CountUnfinished is how many steps have not come to an end of their own.
func (b *Board) CountUnfinished() int {
	return len(b.Steps) - b.Count[StepCompleted] - b.Count[StepFailed] - b.Count[StepCancelled]
}

// HoldingRuns are the runs that hold steps, in order.
func (b *Board) HoldingRuns() []string {
	var out []string
	for id, r := range b.Runs {
		if r.HoldsStep() {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// BoardKey names a board among all. The WAL's name is in it because a board_id
// may be used again after a board has ended.
type BoardKey struct{ Namespace, Session, WAL string }

// Board is one DAG. Only apply changes it, so that a board that was replayed
// from its WAL is the same as the live one.
type Board struct {
	Key         BoardKey
	ID          string
	title       string
	summary     string
	DefaultPool string // the default
	Status      BoardStatus
	reason      string
	creator     struct{ agent, run string }
	CreatedAt   time.Time
	UpdatedAt   time.Time

	Steps        map[string]*Step
	Order        []*Step // by ord; nil: deleted
	roots        []string
	Count        [9]int // of steps by status
	RequiredOpen int    // required steps that are not completed
	IDBytes      int    // bytes of all step ids
	Ready        map[string]*Bitset

	Lines        int64  // wal_seq of the last line
	lineOffsets  []byte // where the lines are in the journal: distances, as varints
	LastPosition uint64
	Damaged      error // the board cannot be used (SPEC B2)

	// What is not in the WAL.
	LeaseTerm   time.Duration // of leases
	Terminating *boardv1.BoardTerminating
	EndedBy     journal.Actor   // who asked for that
	Runs        map[string]*Run // under way
	Dispatches  []*Dispatch     // open
}

func NewBoard(key BoardKey, id string) *Board {
	return &Board{Key: key, ID: id, Steps: map[string]*Step{}, Ready: map[string]*Bitset{}, Runs: map[string]*Run{}}
}

// AddLine counts one line of the WAL.
func (b *Board) AddLine(ev *journal.Event) {
	b.Lines++
	b.lineOffsets = binary.AppendUvarint(b.lineOffsets, ev.WalSeq-b.LastPosition)
	b.LastPosition = ev.WalSeq
	b.UpdatedAt = ev.CreatedAt
}

// LinePositions are where some lines behind one are in the journal.
func (b *Board) LinePositions(after int64, most int) []uint64 {
	var out []uint64
	var at uint64
	rest := b.lineOffsets
	for n := int64(1); len(rest) > 0 && len(out) < most; n++ {
		d, size := binary.Uvarint(rest)
		rest = rest[size:]
		at += d
		if n > after {
			out = append(out, at)
		}
	}
	return out
}

// Apply folds one line in. An error means that the line cannot follow what was
// there; the board is of no use then.
func (b *Board) Apply(ev *journal.Event) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if Ended(b.Status) {
		return fmt.Errorf("%s follows the end of the board", ev.Type)
	}
	switch p := ev.Payload.(type) {
	case *boardv1.TaskCreated:
		return b.applyCreated(ev, p)
	case *boardv1.TaskUpdated:
		return b.applyPatch(p.GetOperations(), ev.CreatedAt)
	case *boardv1.TaskRunning:
		return b.setStatus(BoardRunning, "")
	case *boardv1.TaskBlocked:
		return b.setStatus(BoardBlocked, p.GetReason())
	case *boardv1.TaskReopened:
		return b.setStatus(BoardPending, p.GetReason())
	case *boardv1.TaskCompleted:
		return b.setStatus(BoardCompleted, p.GetReason())
	case *boardv1.TaskFailed:
		return b.setStatus(BoardFailed, p.GetReason())
	case *boardv1.TaskCancelled:
		return b.setStatus(BoardCancelled, p.GetReason())
	}
	return b.applyStep(ev)
}

// setStatus moves the board, if it may.
func (b *Board) setStatus(to BoardStatus, reason string) error {
	if BoardMoves[BoardMove{b.Status, to}] == 0 {
		return fmt.Errorf("the board is %s and cannot become %s", BoardStatusName(b.Status), BoardStatusName(to))
	}
	b.Status, b.reason = to, reason
	return nil
}

func (b *Board) applyCreated(ev *journal.Event, p *boardv1.TaskCreated) error {
	if b.Status != 0 {
		return fmt.Errorf("a second task_created")
	}
	b.title, b.summary, b.DefaultPool, b.Status = p.GetTitle(), p.GetSummary(), p.GetDefaultWorkerPoolId(), BoardPending
	b.creator.agent, b.creator.run = p.GetCreatedByAgentId(), p.GetCreatedByRunId()
	b.CreatedAt = ev.CreatedAt
	for _, in := range p.GetSteps() {
		if err := b.addStep(in, ev.CreatedAt); err != nil {
			return err
		}
	}
	for _, in := range p.GetSteps() {
		if err := b.linkDependencies(b.Steps[in.GetStepId()]); err != nil {
			return err
		}
	}
	b.findRoots()
	return nil
}

// NewEvent is a line about the board, or with stepID about one step.
func (b *Board) NewEvent(stepID string, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace: b.Key.Namespace, AgentID: b.Key.Session, SessionID: b.Key.Session,
		TaskID: b.ID, StepID: stepID, Payload: payload,
	}
}

// Dispatchable says whether runs may be started and steps claimed.
func (b *Board) Dispatchable() bool {
	return b.Damaged == nil && b.Terminating == nil && (b.Status == BoardPending || b.Status == BoardRunning)
}

// DefaultPool is the pool of boards that name none.
const DefaultPool = "default"
