package model

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/resident"
)

// CountUnfinished returns how many steps are neither completed nor failed nor cancelled. The caller must not call it
// for an ended board of a State: such a board has no steps in memory, nor has the result of Whole.
func (b *Board) CountUnfinished() int {
	return len(b.Steps) - b.Count[StepCompleted] - b.Count[StepFailed] - b.Count[StepCancelled]
}

// HoldingRuns returns the ids of the runs that hold steps, sorted.
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

// BoardKey names a board among all boards. It has the name of the WAL, since a
// board_id may be reused once its board has ended.
type BoardKey struct{ Namespace, Session, WAL string }

// Board is a directed acyclic graph of steps. Apply sets the fields that its WAL
// determines, and nothing else does; State.Apply sets the others.
type Board struct {
	Key          BoardKey
	ID           string
	Status       BoardStatus
	UpdatedAt    time.Time
	Lines        int64         // how many lines the WAL has, which is the wal_seq of the last one
	first        uint64        // journal position of the first line
	LastPosition uint64        // journal position of the last line
	Damaged      error         // not nil: the WAL cannot be replayed, so the board cannot be used (SPEC B2)
	stored       resident.Blob // what an ended board has: a StoredBoard; zero: it has not ended

	*content // closed, whose fields are all zero, if the board has ended; see Whole
}

// content is what a board has in memory until it has ended.
type content struct {
	title       string
	summary     string
	DefaultPool string // of steps that name none
	reason      string
	creator     struct{ agent, run string }
	CreatedAt   time.Time
	lineOffsets []byte // journal positions of the lines, each as a varint of the distance to the one before

	Steps        map[string]*Step   // by id
	Order        []*Step            // by Step.Index; nil where a step was deleted
	roots        []string           // ids of the steps without dependencies, in order
	Count        [9]int             // of steps by status
	RequiredOpen int                // required steps that are not completed
	IDBytes      int                // bytes of all step ids
	Ready        map[string]*Bitset // ready steps by pool: the set of their indexes

	// The fields below are not determined by the WAL.
	LeaseTerm   time.Duration
	Terminating *boardv1.BoardTerminating // not nil: the board is being failed or cancelled
	EndedBy     journal.Actor             // who requested the end
	Runs        map[string]*Run           // in progress, by id
	Dispatches  []*Dispatch               // open
}

// NewBoard returns a board to which no event was applied.
func NewBoard(key BoardKey, id string) *Board {
	return &Board{Key: key, ID: id, content: &content{
		Steps: map[string]*Step{}, Ready: map[string]*Bitset{},
		Runs: map[string]*Run{},
	}}
}

// AddLine records that ev is the next line of the WAL. It does not apply ev.
func (b *Board) AddLine(ev *journal.Event) {
	if b.Lines++; b.Lines == 1 {
		b.first = ev.WalSeq
	}
	b.lineOffsets = binary.AppendUvarint(b.lineOffsets, ev.WalSeq-b.LastPosition)
	b.LastPosition = ev.WalSeq
	b.UpdatedAt = ev.CreatedAt
}

// LinePositions returns the journal positions of the lines after line number after, in order,
// at most limit of them.
func (b *Board) LinePositions(after int64, limit int) []uint64 {
	var out []uint64
	var at uint64
	rest := b.Whole().lineOffsets
	for n := int64(1); len(rest) > 0 && len(out) < limit; n++ {
		d, size := binary.Uvarint(rest)
		rest = rest[size:]
		at += d
		if n > after {
			out = append(out, at)
		}
	}
	return out
}

// Apply folds one line of the WAL. An error means that the line cannot follow the
// lines before it; the board must not be used any more.
func (b *Board) Apply(ev *journal.Event) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if Ended(b.Status) {
		return fmt.Errorf("%s follows the end of the board", ev.Type)
	}
	row, err := eventRows.Of(ev)
	if err != nil || row.line == nil {
		return journal.UnknownEvent(ev)
	}
	return row.line(b, ev)
}

// setStatus changes the status, if the status machine of boards allows it.
func (b *Board) setStatus(to BoardStatus, reason string) error {
	if BoardMoves[BoardMove{b.Status, to}] == 0 {
		return fmt.Errorf("the board is %s and cannot become %s", BoardStatusName(b.Status), BoardStatusName(to))
	}
	b.Status, b.reason = to, reason
	return nil
}

// applyCreated folds task_created: it sets the fields and adds the steps.
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

// NewEvent returns an event about the board or, if stepID is not empty, about one of
// its steps.
func (b *Board) NewEvent(stepID string, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace: b.Key.Namespace, AgentID: b.Key.Session, SessionID: b.Key.Session,
		TaskID: b.ID, StepID: stepID, Payload: payload,
	}
}

// Dispatchable reports whether runs may be started and steps claimed: the board is pending or
// running, is not being ended and not damaged.
func (b *Board) Dispatchable() bool {
	return b.Damaged == nil && b.Terminating == nil && (b.Status == BoardPending || b.Status == BoardRunning)
}

// DefaultPool is the worker pool of boards that name none.
const DefaultPool = "default"
