package model

import (
	"fmt"
	"slices"
	"time"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// State is one partition of the plane: sessions with their boards, runs, and
// the pools that may claim.
type State struct {
	term     time.Duration // of leases
	WithRuns map[*Board]struct{}
	Sessions map[Key]*session
	Runs     map[Key]*Run
	Pools    map[Key]*pool
	ended    []Key        // runs, oldest first
	Deleted  map[Key]bool // orchestrators
}

type Key struct{ Namespace, ID string }

// session is an orchestrator's boards.
type session struct {
	active map[string]*Board
	Order  []*Board // active, by creation
	Ended  []*Board // without their steps, by end
	WALs   []*Board // all, by creation
	ByWAL  map[string]*Board
}

// NewState returns the state of an empty log. term is that of leases.
func NewState(term time.Duration) *State {
	return &State{term: term, WithRuns: map[*Board]struct{}{}, Sessions: map[Key]*session{}, Runs: map[Key]*Run{}, Pools: map[Key]*pool{}, Deleted: map[Key]bool{}}
}

// Apply folds one event in. A line that does not fit makes its board unusable
// and nothing else (SPEC B2).
func (s *State) Apply(ev *journal.Event) error {
	if p, ok := ev.Payload.(*boardv1.OwnerDeleted); ok {
		s.Deleted[Key{ev.Namespace, p.GetAgentId()}] = true
		return nil
	}
	if ev.TaskID == "" || ev.SessionID == "" {
		return fmt.Errorf("board: %s names no board", ev.Type)
	}
	if p, ok := ev.Payload.(*boardv1.TaskCreated); ok {
		s.createBoard(ev, p)
		return nil
	}
	b := s.ActiveBoard(Key{ev.Namespace, ev.SessionID}, ev.TaskID)
	if b == nil {
		return s.applyAfterEnd(ev)
	}
	if !InWAL(ev) {
		return s.applyOutsideWAL(b, ev)
	}
	b.AddLine(ev)
	if b.IsDamaged() {
		return nil
	}
	before := b.Steps[ev.StepID]
	var holder *Run
	if before != nil {
		holder = b.Runs[before.Record.GetClaimedByRunId()]
	}
	if b.markDamaged(b.Apply(ev), ev) {
		s.withdraw(b)
		return nil
	}
	s.applyToRuns(b, before, holder, ev)
	return nil
}

// markDamaged notes that a line does not fit.
func (b *Board) markDamaged(cause error, ev *journal.Event) bool {
	if cause != nil {
		b.Damaged = fmt.Errorf("line %d, %s: %w", b.Lines, ev.Type, cause)
	}
	return b.IsDamaged()
}

func (b *Board) IsDamaged() bool { return b.Damaged != nil }

// InWAL says whether an event is a line of its board's WAL.
func InWAL(ev *journal.Event) bool {
	switch ev.Payload.(type) {
	case *boardv1.BoardTerminating, *boardv1.ChildAgentCancelTimeout, *boardv1.WorkerDispatched, *boardv1.WorkerRunCancelling, *boardv1.WorkerRunEnded,
		*boardv1.StandingDispatchOpened, *boardv1.StandingDispatchClosed:
		return false
	}
	return true
}

func (s *State) createBoard(ev *journal.Event, p *boardv1.TaskCreated) {
	b := NewBoard(BoardKey{ev.Namespace, ev.SessionID, p.GetWalName()}, ev.TaskID)
	b.AddLine(ev)
	b.markDamaged(b.Apply(ev), ev)
	s.addBoard(b)
}

// addBoard takes a new board in.
func (s *State) addBoard(b *Board) {
	k := Key{b.Key.Namespace, b.Key.Session}
	se := s.Sessions[k]
	if se == nil {
		se = &session{active: map[string]*Board{}, ByWAL: map[string]*Board{}}
		s.Sessions[k] = se
	}
	b.LeaseTerm = s.term
	se.active[b.ID] = b
	se.Order = append(se.Order, b)
	se.WALs = append(se.WALs, b)
	se.ByWAL[b.Key.WAL] = b
}

// closeBoard puts a board away without its steps, which its WAL has (S2-061).
func (s *State) closeBoard(b *Board, at time.Time) {
	for _, r := range b.Runs {
		stands := StepStatus(0)
		if r.Step != nil {
			stands = r.Step.Record.GetStatus()
		}
		s.endRun(r, boardv1.RunStatus_RUN_STATUS_CANCELLED, stands, at)
	}
	for _, d := range b.Dispatches {
		d.unlist()
	}
	b.Dispatches, b.Terminating = nil, nil
	se := s.Sessions[Key{b.Key.Namespace, b.Key.Session}]
	delete(se.active, b.ID)
	se.Order = slices.DeleteFunc(se.Order, func(o *Board) bool { return o == b })
	se.Ended = append(se.Ended, b)
	b.Steps, b.Order, b.Ready, b.roots = nil, nil, nil, nil
}
