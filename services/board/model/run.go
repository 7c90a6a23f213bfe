package model

import (
	"cmp"
	"slices"
	"time"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// FindRun returns a run of a board as readers see it; NOT_FOUND if it does not exist or is no
// longer in memory.
func (s *State) FindRun(k Key, boardID, runID string) (*boardv1.WorkerRun, error) {
	r := s.Runs[plane.KeyOf(k.Namespace, runID)]
	if r == nil || r.Board.Key.Session != k.ID || r.Board.ID != boardID {
		return nil, fault.NotFound.Newf("board %q has no run %q; those that ended long ago are in the events only",
			boardID, runID).With("run_id", runID)
	}
	return r.Shown(), nil
}

// Shown returns the run as readers see it: with the current status of the step that
// it holds.
func (r *Run) Shown() *boardv1.WorkerRun {
	if !r.Running() || r.Step == nil {
		return r.Record
	}
	n := CopyRun(r.Record)
	n.StepStatus = r.Record.GetStepStatus()
	if r.HoldsStep() {
		n.StepStatus = r.Step.Record.GetStatus()
	}
	return n
}

// VisibleSteps returns the steps that a run may read (SPEC B11), in the order of creation.
func (r *Run) VisibleSteps(b *Board, leases LeaseExpiry) []*boardv1.Step {
	var out []*boardv1.Step
	for _, s := range b.Order {
		if s != nil && r.Sees(s) {
			out = append(out, b.ShownStep(s, leases))
		}
	}
	return out
}

// Sees reports whether the run may read a step: one in its scope, or one that such a
// step depends on, whose result it may need.
func (r *Run) Sees(s *Step) bool {
	if r.Allowed == nil || r.Allowed[s.ID()] {
		return true
	}
	for _, k := range s.Dependents {
		if r.Allowed[k.ID()] {
			return true
		}
	}
	return false
}

// OpenDispatches returns the board's standing dispatches as readers see them.
func (b *Board) OpenDispatches() []*boardv1.StandingDispatch {
	out := make([]*boardv1.StandingDispatch, len(b.Dispatches))
	for i, d := range b.Dispatches {
		out[i] = d.shown()
	}
	return out
}

// RunsOf returns at most limit runs of a board, newest first: those in progress, then, unless
// runningOnly is set, the ended ones that are in memory, the latest end first. more reports
// that there are others.
func (s *State) RunsOf(b *Board, limit int, runningOnly bool) (out []*boardv1.WorkerRun, more bool) {
	running := make([]*Run, 0, len(b.Runs))
	for _, r := range b.Runs {
		running = append(running, r)
	}
	slices.SortFunc(running, func(x, y *Run) int { return cmp.Compare(y.Record.GetRunId(), x.Record.GetRunId()) })
	for _, r := range running {
		if len(out) == limit {
			return out, true
		}
		out = append(out, r.Shown())
	}
	if runningOnly {
		return out, false
	}
	for _, k := range slices.Backward(s.ended) {
		r := s.Runs[k]
		if r == nil || r.Board != b {
			continue
		}
		if len(out) == limit {
			return out, true
		}
		out = append(out, r.Record)
	}
	return out, false
}

// Run is the run of one worker.
type Run struct {
	Record       *boardv1.WorkerRun // replaced, never modified
	Board        *Board
	Allowed      map[string]bool // the only steps that it may claim; nil: all
	LeaseExpired bool            // it ended because its lease expired
	place        int             // of a run that has ended: its number among all ended runs of the partition, from 0

	// The fields below are those of a run in progress.
	Dispatch   *Dispatch // the standing dispatch that created it, or nil
	AllowedSet *Bitset   // the indexes of the allowed steps that exist; nil: all; always nil if Dispatch is set
	Step       *Step     // the step that it claimed; another run may hold the step by now, and the step may be deleted
}

// Dispatch is a standing dispatch that is open, or whose runs are in progress.
type Dispatch struct {
	Record     *boardv1.StandingDispatch
	Board      *Board
	Allowed    map[string]bool // the only steps that its runs may claim; nil: all
	AllowedSet *Bitset         // the indexes of those that exist; nil: all, or the dispatch is closed
	Running    int             // how many of its runs are in progress
	listed     bool            // it is in Claimable of its pool
	closed     bool            // it is not open any more; its runs continue
}

// pool is a worker pool of a namespace.
type pool struct {
	Claimable []*Dispatch // the dispatches that have a step to claim, by id
}

// Running reports whether the run is in progress.
func (r *Run) Running() bool { return r.Record.GetStatus() == boardv1.RunStatus_RUN_STATUS_RUNNING }

// HasClaimed reports whether the run has claimed a step, whether or not it holds it.
func (r *Run) HasClaimed() bool { return r.Record.GetClaimedStepId() != "" }

// HoldsStep reports whether the run still holds the step that it claimed. It is false for a run that has ended.
func (r *Run) HoldsStep() bool {
	return r.Step != nil && Held(r.Step.Record.GetStatus()) && r.Step.Record.GetClaimedByRunId() == r.Record.GetRunId()
}

// stepSet returns a list of allowed steps as a set of ids and as a set of the indexes
// of those that exist. Both are nil for an empty list, which allows all steps.
func (b *Board) stepSet(ids []string) (byID map[string]bool, byIndex *Bitset) {
	if len(ids) == 0 {
		return nil, nil
	}
	allowed := setOf(ids)
	return allowed, b.bitsOf(allowed)
}

// setOf returns a list of allowed steps as a set, nil for an empty list, which allows all steps.
func setOf(ids []string) map[string]bool {
	if len(ids) == 0 {
		return nil
	}
	allowed := make(map[string]bool, len(ids))
	for _, id := range ids {
		allowed[id] = true
	}
	return allowed
}

// bitsOf returns the indexes of the allowed steps that exist.
func (b *Board) bitsOf(allowed map[string]bool) *Bitset {
	bits := &Bitset{}
	for id := range allowed {
		if s := b.Steps[id]; s != nil {
			bits.add(s.Index)
		}
	}
	return bits
}

// DefaultRunTime is how long a run may take if its dispatch does not say.
const DefaultRunTime = time.Hour

// StepTimeout returns how long the dispatch's runs may take. A dispatch that was opened before
// there was a limit has the default.
func (d *Dispatch) StepTimeout() time.Duration {
	if t := d.Record.GetStepTimeout(); t != nil {
		return t.AsDuration()
	}
	return DefaultRunTime
}

// compare orders the dispatches of a pool by their ids.
func (d *Dispatch) compare(other *Dispatch) int {
	return cmp.Or(cmp.Compare(d.Record.GetDispatchId(), other.Record.GetDispatchId()),
		cmp.Compare(d.Board.Key.Session, other.Board.Key.Session), cmp.Compare(d.Board.Key.WAL, other.Board.Key.WAL))
}

// poolKey returns the key of the dispatch's pool.
func (d *Dispatch) poolKey() Key {
	return plane.KeyOf(d.Board.Key.Namespace, d.Record.GetWorkerPoolId())
}

// list adds a dispatch to the claimable ones of its pool, unless it is there.
func (s *State) list(d *Dispatch) {
	if d.listed {
		return
	}
	p := s.Pools[d.poolKey()]
	if p == nil {
		p = &pool{}
		s.Pools[d.poolKey()] = p
	}
	at, _ := slices.BinarySearchFunc(p.Claimable, d, (*Dispatch).compare)
	p.Claimable, d.listed = slices.Insert(p.Claimable, at, d), true
}

// unlist removes a dispatch from the claimable ones of its pool, if it is there.
func (s *State) unlist(d *Dispatch) {
	if !d.listed {
		return
	}
	p := s.Pools[d.poolKey()]
	at, _ := slices.BinarySearchFunc(p.Claimable, d, (*Dispatch).compare)
	p.Claimable, d.listed = slices.Delete(p.Claimable, at, at+1), false
	if len(p.Claimable) == 0 {
		delete(s.Pools, d.poolKey())
	}
}

// shown returns a new message of the dispatch for readers. The dispatch must be open; lists and timestamps are
// shared with its record and must not be modified.
func (d *Dispatch) shown() *boardv1.StandingDispatch {
	return &boardv1.StandingDispatch{
		DispatchId: d.Record.GetDispatchId(), SessionId: d.Record.GetSessionId(), BoardId: d.Record.GetBoardId(),
		WorkerPoolId: d.Record.GetWorkerPoolId(),
		MaxParallel:  d.Record.GetMaxParallel(), AllowedStepIds: d.Record.GetAllowedStepIds(),
		Instruction: d.Record.GetInstruction(),
		Open:        true, Running: int32(d.Running & 0xffff), OpenedAt: d.Record.GetOpenedAt(),
		StepTimeout: d.Record.GetStepTimeout(),
	}
}

// CopyRun returns a copy of a record that the caller may modify. It is written by hand like
// CopyStep.
func CopyRun(o *boardv1.WorkerRun) *boardv1.WorkerRun {
	return &boardv1.WorkerRun{
		RunId: o.GetRunId(), SessionId: o.GetSessionId(), BoardId: o.GetBoardId(), WorkerPoolId: o.GetWorkerPoolId(),
		WorkerId:   o.GetWorkerId(),
		DispatchId: o.GetDispatchId(), AllowedStepIds: o.GetAllowedStepIds(), Instruction: o.GetInstruction(),
		Context:      o.GetContext(),
		AllowedTools: o.GetAllowedTools(), Status: o.GetStatus(), ClaimedStepId: o.GetClaimedStepId(),
		ClaimedStep: o.GetClaimedStep(),
		StepStatus:  o.GetStepStatus(), StepResultSummary: o.GetStepResultSummary(),
		NoStepClaimed: o.GetNoStepClaimed(),
		WorkerResult:  o.GetWorkerResult(), EndReason: o.GetEndReason(), DispatchedAt: o.GetDispatchedAt(),
		DeadlineAt: o.GetDeadlineAt(),
		EndedAt:    o.GetEndedAt(), Cancelling: o.GetCancelling(),
	}
}
