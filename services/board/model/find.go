package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/plane"
)

// NotDispatchable returns the refusal of a dispatch or a claim on a board that is not
// dispatchable.
func NotDispatchable(b *Board) error {
	why := BoardStatusName(b.Status)
	if b.Terminating != nil {
		why = "about to be " + BoardStatusName(b.Terminating.GetStatus())
	}
	return fault.BoardNotDispatchable.Newf("board %q is %s; nothing is dispatched or claimed", b.ID, why).
		With("board_status", BoardStatusName(b.Status))
}

// CheckVacant returns ALREADY_EXISTS for an id that an active board of the session has, and
// PATH_CONFLICT for a WAL's name that any board of the session has or had (S2-038, S2-094).
func (s *State) CheckVacant(k Key, boardID, wal string) error {
	se := s.Sessions[k]
	if se == nil {
		return nil
	}
	if se.active[boardID] != nil {
		return fault.AlreadyExists.Newf("session %q has an active board %q; end it, or choose another board_id", k.ID,
			boardID).With("board_id", boardID)
	}
	if b := se.WAL(wal); b != nil {
		return fault.PathConflict.Newf("session %q has a WAL %q, of board %q; choose another wal_name", k.ID, wal,
			b.ID).
			With("wal_name", wal).With("wal_path", WalPath(b.Key))
	}
	return nil
}

// RunEnded returns RUN_STALE for a call of a run that has ended.
func RunEnded(runID string) error {
	return fault.RunStale.Newf("run %s has ended; stop working on it", runID).With("run_id", runID)
}

// NoStep returns NOT_FOUND for a step that the board does not have.
func NoStep(b *Board, stepID string) error {
	return fault.NotFound.Newf("board %q has no step %q; QuerySteps shows what it has", b.ID, stepID).
		With("step_id", stepID)
}

// CheckOwner returns AGENT_DELETED if the orchestrator k is deleted or being deleted.
func (s *State) CheckOwner(k Key) error {
	if s.Deleted[k] || s.WasErased(k.Namespace, k.ID) {
		return fault.AgentDeleted.Newf("agent %q is deleted; it gets no boards any more", k.ID).With("agent_id", k.ID)
	}
	return nil
}

// JoinIDs returns the first 20 ids, and how many more there are, for a message.
func JoinIDs(ids []string) string {
	const limit = 20
	if len(ids) <= limit {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:limit], ", "), len(ids)-limit)
}

// CallerRun returns the run by which a request about b is made, which may have ended, or nil if runID is
// empty. It returns RUN_STALE for a run that is not in memory, and PERMISSION_DENIED for a run of another
// board: a run may read only the board to which it was dispatched (S2-365). If the run's own board has ended
// and b is a newer one of the same session with the same board id, the error is TASK_TERMINAL.
func (s *State) CallerRun(b *Board, runID string) (*Run, error) {
	if runID == "" {
		return nil, nil
	}
	r := s.Runs[plane.KeyOf(b.Key.Namespace, runID)]
	switch {
	case r == nil:
		return nil, RunEnded(runID)
	case r.Board == b:
		return r, nil
	case r.Board.Key.Session == b.Key.Session && r.Board.ID == b.ID:
		if err := r.Board.CheckOpen(); err != nil { // the id means a newer one
			return nil, err
		}
	}
	return nil, fault.PermissionDenied.Newf("run %s was dispatched to board %s of session %s and sees no other", runID,
		r.Board.ID, r.Board.Key.Session).
		With("run_id", runID)
}

// OutOfScope returns PERMISSION_DENIED for a step that a run may not read or claim.
func OutOfScope(r *Run, stepID string) error {
	return fault.PermissionDenied.Newf("step %q is outside of what run %s was dispatched to", stepID,
		r.Record.GetRunId()).
		With("step_id", stepID).With("run_id", r.Record.GetRunId())
}

// ActiveBoard returns the active board of a session with an id, or nil.
func (s *State) ActiveBoard(k Key, boardID string) *Board {
	if se := s.Sessions[k]; se != nil {
		return se.active[boardID]
	}
	return nil
}

// FindBoard returns the board that an id means: the active one, or else the one that ended
// last. If wal is not empty, it is the board with that id and that WAL. It returns NOT_FOUND
// if there is none.
func (s *State) FindBoard(k Key, boardID, wal string) (*Board, error) {
	se := s.Sessions[k]
	if se != nil && wal != "" {
		if b := se.WAL(wal); b != nil && b.ID == boardID {
			return b, nil
		}
	} else if se != nil {
		if b := se.active[boardID]; b != nil {
			return b, nil
		}
		for _, b := range slices.Backward(se.Ended) {
			if b.ID == boardID {
				return b, nil
			}
		}
	}
	return nil, fault.NotFound.Newf("session %q has no board %q; ListBoards with include_terminal shows what it has",
		k.ID, boardID).With("board_id", boardID)
}

// CheckOpen returns TASK_TERMINAL for a board that has ended, nil otherwise.
func (b *Board) CheckOpen() error {
	if Ended(b.Status) {
		return fault.TaskTerminal.Newf("board %q is %s and takes no changes", b.ID, BoardStatusName(b.Status)).
			With("board_status", BoardStatusName(b.Status))
	}
	return nil
}

// CheckChangeable returns TASK_TERMINAL while the board is being failed or cancelled, when its
// orchestrator may not change it; nil otherwise, also for a board that has ended.
func (b *Board) CheckChangeable() error {
	if b.Terminating != nil {
		return fault.TaskTerminal.Newf("board %q is about to be %s and takes no changes", b.ID,
			BoardStatusName(b.Terminating.GetStatus())).
			With("board_status", BoardStatusName(b.Status))
	}
	return nil
}

// CheckUsable returns STORAGE for a board whose WAL cannot be replayed (S2-059), nil
// otherwise.
func (b *Board) CheckUsable() error {
	if b.Damaged == nil {
		return nil
	}
	return fault.Storage.Newf("board %q cannot be used, since its WAL cannot be replayed: %v", b.ID, b.Damaged).
		With("board_id", b.ID).With("wal_name", b.Key.WAL).WithCause(errors.Unwrap(b.Damaged))
}

// FindWAL returns the board, active or ended, that has a WAL; NOT_FOUND if there is none.
func (s *State) FindWAL(k BoardKey) (*Board, error) {
	if se := s.Sessions[plane.KeyOf(k.Namespace, k.Session)]; se != nil {
		if b := se.WAL(k.WAL); b != nil {
			return b, nil
		}
	}
	return nil, fault.NotFound.Newf("session %q has no WAL %q; ListWals shows what it has", k.Session, k.WAL).
		With("wal_name", k.WAL)
}
