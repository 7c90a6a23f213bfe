package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"quartet/pkg/journal"
	"quartet/pkg/journal/event"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// State is one partition of the plane.
type State struct {
	event.Tombstones
	term      time.Duration       // of leases
	WithRuns  map[*Board]struct{} // active boards with runs in progress
	Sessions  map[Key]*session    // by the orchestrator's id
	Runs      map[Key]*Run        // in progress, and those that ended last
	Pools     map[Key]*pool       // by pool id; those that have a dispatch with a step to claim
	ended     []Key               // ended runs in Runs, oldest first
	dropped   int                 // how many older ended runs are not in memory any more
	Deleted   map[Key]bool        // sessions whose orchestrator was deleted
	DeletedAt map[Key]time.Time   // when this plane read that
	awaited   map[BoardKey]*Board // boards that pages named and whose own page was not read yet
	contents  contents
}

// Key names a session, a run or a pool within a namespace.
type Key = plane.Key

// session has the boards of one orchestrator.
type session struct {
	key    Key
	active map[string]*Board // by board id; a nil map is empty
	Order  []*Board          // the active ones, in the order of creation
	Ended  []*Board          // without their content, in the order of their ends
	WALs   []*Board          // all, in the order of creation
	byWAL  []*Board          // all, by the name of the WAL: an order takes a third of the memory of a map
}

// NewState returns the state of an empty log. term is the term of leases.
func NewState(term time.Duration) *State {
	return &State{
		term: term, WithRuns: map[*Board]struct{}{}, Sessions: map[Key]*session{}, Runs: map[Key]*Run{},
		Pools: map[Key]*pool{}, Deleted: map[Key]bool{}, DeletedAt: map[Key]time.Time{},
	}
}

// Apply folds one event. A WAL line that cannot follow the lines before it makes its
// board unusable, and affects nothing else (SPEC B2). An event that is not known is
// an error.
func (s *State) Apply(ev *journal.Event) error {
	if p, ok := ev.Payload.(*boardv1.OwnerDeleted); ok {
		k := plane.KeyOf(ev.Namespace, p.GetAgentId())
		s.Deleted[k], s.DeletedAt[k] = true, ev.CreatedAt
		return nil
	}
	if ev.TaskID == "" || ev.SessionID == "" {
		return fmt.Errorf("board: %s names no board", ev.Type)
	}
	if p, ok := ev.Payload.(*boardv1.TaskCreated); ok {
		s.createBoard(ev, p)
		return nil
	}
	b := s.ActiveBoard(plane.KeyOf(ev.Namespace, ev.SessionID), ev.TaskID)
	if b == nil {
		return s.applyAfterEnd(ev)
	}
	row, err := eventRows.Of(ev)
	if err == nil && row.line == nil {
		row.outside(s, b, ev)
		s.refreshClaimable(b)
		return nil
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
	s.applyToRuns(row, appliedLine{b, before, holder, ev})
	return nil
}

// markDamaged records cause, if it is not nil, as why the line ev cannot be folded, and
// reports whether the board is damaged.
func (b *Board) markDamaged(cause error, ev *journal.Event) bool {
	if cause != nil {
		b.Damaged = newDamage(fmt.Sprintf("line %d, %s", b.Lines, ev.Type), cause)
		_ = b.rebuild() // the line may be applied in part; nobody uses the steps
	}
	return b.IsDamaged()
}

// IsDamaged reports whether the board's WAL cannot be replayed, so that the board cannot be
// used.
func (b *Board) IsDamaged() bool { return b.Damaged != nil }

// createBoard adds the board of task_created. A damaged event adds an unusable board.
func (s *State) createBoard(ev *journal.Event, p *boardv1.TaskCreated) {
	b := NewBoard(BoardKey{ev.Namespace, ev.SessionID, p.GetWalName()}, ev.TaskID)
	b.AddLine(ev)
	b.markDamaged(b.Apply(ev), ev)
	s.addBoard(b)
}

// sessionOf returns the session of a board, which it creates if necessary.
func (s *State) sessionOf(b *Board) *session {
	k := plane.KeyOf(b.Key.Namespace, b.Key.Session)
	se := s.Sessions[k]
	if se == nil {
		se = &session{key: k}
		s.Sessions[k] = se
	}
	b.Key.Namespace, b.Key.Session = se.key.Namespace, se.key.ID // the same, once in memory
	return se
}

// find returns where the board with a WAL is in byWAL, or belongs, and whether it is there.
func (se *session) find(wal string) (int, bool) {
	return slices.BinarySearchFunc(se.byWAL, wal, func(b *Board, wal string) int { return cmp.Compare(b.Key.WAL, wal) })
}

// WAL returns the board, active or ended, with a WAL, nil if there is none.
func (se *session) WAL(name string) *Board {
	if at, is := se.find(name); is {
		return se.byWAL[at]
	}
	return nil
}

// name adds a board to byWAL, in place of a board with the same WAL if there is one.
func (se *session) name(b *Board) {
	at, is := se.find(b.Key.WAL)
	if is {
		se.byWAL[at] = b
		return
	}
	se.byWAL = slices.Insert(se.byWAL, at, b)
}

// activate makes a board the active one with its id.
func (se *session) activate(b *Board) {
	if se.active == nil {
		se.active = map[string]*Board{}
	}
	se.active[b.ID] = b
}

// addBoard adds a new board to its session.
func (s *State) addBoard(b *Board) {
	se := s.sessionOf(b)
	b.LeaseTerm = s.term
	s.contents.boards++
	se.activate(b)
	se.Order = append(se.Order, b)
	se.WALs = append(se.WALs, b)
	se.name(b)
}

// closeBoard ends the runs and dispatches of a board that ended, and moves it to the ended
// boards. Its steps are dropped; readers replay them from the WAL (S2-061). What else it has leaves memory, see Whole.
func (s *State) closeBoard(b *Board, at time.Time) {
	for _, id := range slices.Sorted(maps.Keys(b.Runs)) {
		r, status := b.Runs[id], StepStatus(0)
		if r.Step != nil {
			status = r.Step.Record.GetStatus()
		}
		s.endRun(r, boardv1.RunStatus_RUN_STATUS_CANCELLED, status, at)
	}
	for _, d := range b.Dispatches {
		s.unlist(d)
	}
	b.Dispatches, b.Terminating = nil, nil
	se := s.Sessions[plane.KeyOf(b.Key.Namespace, b.Key.Session)]
	if delete(se.active, b.ID); len(se.active) == 0 {
		se.active = nil
	}
	if se.Order = slices.DeleteFunc(se.Order, func(o *Board) bool { return o == b }); len(se.Order) == 0 {
		se.Order = nil
	}
	se.Ended = append(se.Ended, b)
	s.offload(b)
}
