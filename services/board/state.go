package board

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// keptRuns is how many ended runs of a partition can be read and are told apart
// when they come late.
const keptRuns = 4096

// State is one partition of the plane: sessions with their boards, runs, and
// the pools that may claim.
type State struct {
	term     time.Duration // of leases
	busy     map[*board]struct{}
	sessions map[key]*session
	runs     map[key]*run
	pools    map[key]*pool
	ended    []key        // runs, oldest first
	deleted  map[key]bool // orchestrators
}

type key struct{ namespace, id string }

// session is an orchestrator's boards.
type session struct {
	active map[string]*board
	order  []*board // active, by creation
	ended  []*board // without their steps, by end
	wals   []*board // all, by creation
	byWal  map[string]*board
}

// run is one worker's run.
type run struct {
	rec      *boardv1.WorkerRun // replaced, never edited
	board    *board
	dispatch *dispatch // standing; else nil
	allowed  map[string]bool
	bits     *bitset // allowed, by place
	step     *step   // claimed; it may be another run's by now
	lapsed   bool    // its lease was over
	// deadline is when its lease is over, in microseconds. Heartbeats move it
	// outside of the log (SPEC X12).
	deadline atomic.Int64
}

// dispatch is a standing one.
type dispatch struct {
	rec     *boardv1.StandingDispatch
	board   *board
	pool    *pool
	allowed map[string]bool
	bits    *bitset
	running int
	slot    int // in pool.claimable; -1: not there
}

// pool is where workers of a namespace look for steps.
type pool struct {
	claimable []*dispatch // those that would give a step now
}

// NewState returns the state of an empty log. term is that of leases.
func NewState(term time.Duration) *State {
	return &State{term: term, busy: map[*board]struct{}{}, sessions: map[key]*session{}, runs: map[key]*run{}, pools: map[key]*pool{}, deleted: map[key]bool{}}
}

// Apply folds one event in. A line that does not fit makes its board unusable
// and nothing else (SPEC B2).
func (s *State) Apply(ev *journal.Event) error {
	if p, ok := ev.Payload.(*boardv1.OwnerDeleted); ok {
		s.deleted[key{ev.Namespace, p.GetAgentId()}] = true
		return nil
	}
	if ev.TaskID == "" || ev.SessionID == "" {
		return fmt.Errorf("board: %s names no board", ev.Type)
	}
	if p, ok := ev.Payload.(*boardv1.TaskCreated); ok {
		s.create(ev, p)
		return nil
	}
	b := s.active(key{ev.Namespace, ev.SessionID}, ev.TaskID)
	if b == nil {
		return s.applyLate(ev)
	}
	if !inWAL(ev) {
		return s.applyRun(b, ev)
	}
	b.note(ev)
	if b.broken() {
		return nil
	}
	before := b.steps[ev.StepID]
	var holder *run
	if before != nil {
		holder = b.runs[before.rec.GetClaimedByRunId()]
	}
	if b.damage(b.apply(ev), ev) {
		s.withdraw(b)
		return nil
	}
	s.follow(b, before, holder, ev)
	return nil
}

// damage notes that a line does not fit.
func (b *board) damage(cause error, ev *journal.Event) bool {
	if cause != nil {
		b.damaged = fmt.Errorf("line %d, %s: %w", b.lines, ev.Type, cause)
	}
	return b.broken()
}

func (b *board) broken() bool { return b.damaged != nil }

// inWAL says whether an event is a line of its board's WAL.
func inWAL(ev *journal.Event) bool {
	switch ev.Payload.(type) {
	case *boardv1.BoardTerminating, *boardv1.ChildAgentCancelTimeout, *boardv1.WorkerDispatched, *boardv1.WorkerRunEnded,
		*boardv1.StandingDispatchOpened, *boardv1.StandingDispatchClosed:
		return false
	}
	return true
}

func (s *State) create(ev *journal.Event, p *boardv1.TaskCreated) {
	b := newBoard(boardKey{ev.Namespace, ev.SessionID, p.GetWalName()}, ev.TaskID)
	b.note(ev)
	b.damage(b.apply(ev), ev)
	s.admit(b)
}

// admit takes a new board in.
func (s *State) admit(b *board) {
	k := key{b.key.namespace, b.key.session}
	se := s.sessions[k]
	if se == nil {
		se = &session{active: map[string]*board{}, byWal: map[string]*board{}}
		s.sessions[k] = se
	}
	b.term = s.term
	se.active[b.id] = b
	se.order = append(se.order, b)
	se.wals = append(se.wals, b)
	se.byWal[b.key.wal] = b
}

// follow is what a line means for runs and dispatches.
func (s *State) follow(b *board, st *step, holder *run, ev *journal.Event) {
	switch p := ev.Payload.(type) {
	case *boardv1.TaskUpdated:
		s.rescope(b)
	case *boardv1.TaskStepClaimed:
		s.claimed(b, st, p, ev)
	case *boardv1.TaskStepStarted:
		holder.arm(p.GetLeaseExpiresAt())
	case *boardv1.TaskStepUpdated:
		holder.arm(p.GetLeaseExpiresAt())
	case *boardv1.TaskStepLeaseExpired:
		if holder != nil {
			holder.lapsed = true
			s.endRun(holder, boardv1.RunStatus_RUN_STATUS_LOST, stepPending, ev.CreatedAt)
		}
		holder = nil
	case *boardv1.TaskCompleted, *boardv1.TaskFailed, *boardv1.TaskCancelled:
		s.end(b, ev.CreatedAt)
	}
	if holder != nil && st != nil && !held(st.rec.GetStatus()) {
		n := copyRun(holder.rec)
		n.StepStatus, n.StepResultSummary = st.rec.GetStatus(), st.rec.GetResultSummary()
		holder.rec = n
		if holder.dispatch != nil {
			s.endRun(holder, boardv1.RunStatus_RUN_STATUS_FINISHED, st.rec.GetStatus(), ev.CreatedAt)
		}
	}
	s.refresh(b)
}

// claimed gives a step to its run, which a standing dispatch mints with it.
func (s *State) claimed(b *board, st *step, p *boardv1.TaskStepClaimed, ev *journal.Event) {
	r := b.runs[p.GetClaimedByRunId()]
	if r == nil && p.GetDispatchId() != "" {
		i := slices.IndexFunc(b.dispatches, func(d *dispatch) bool { return d.rec.GetDispatchId() == p.GetDispatchId() })
		r = &run{board: b, rec: &boardv1.WorkerRun{
			RunId: p.GetClaimedByRunId(), SessionId: b.key.session, BoardId: b.id, WorkerId: p.GetClaimedByAgentId(),
			WorkerPoolId: st.rec.GetWorkerPoolId(), DispatchId: p.GetDispatchId(),
			Status: boardv1.RunStatus_RUN_STATUS_RUNNING, DispatchedAt: timestamppb.New(ev.CreatedAt),
		}}
		if i >= 0 {
			r.dispatch = b.dispatches[i]
			r.dispatch.running++
			r.rec.Instruction, r.rec.AllowedStepIds = r.dispatch.rec.GetInstruction(), r.dispatch.rec.GetAllowedStepIds()
			r.allowed, r.bits = r.dispatch.allowed, r.dispatch.bits
		}
		s.addRun(r)
	}
	if r == nil {
		return // a run that this state never heard of: the board is right without it
	}
	n := copyRun(r.rec)
	n.ClaimedStepId, n.ClaimedStep = st.id(), st.claimed
	r.rec, r.step = n, st
	r.arm(p.GetLeaseExpiresAt())
}

func (s *State) addRun(r *run) {
	r.board.runs[r.rec.GetRunId()] = r
	s.runs[key{r.board.key.namespace, r.rec.GetRunId()}] = r
	s.busy[r.board] = struct{}{}
	if r.rec.GetDeadlineAt() != nil {
		r.board.soonest(r.rec.GetDeadlineAt().AsTime().UnixMicro())
	}
}

func (r *run) arm(at *timestamppb.Timestamp) {
	if r != nil && at != nil {
		r.lease(at.AsTime())
	}
}

func (r *run) live() bool { return r.rec.GetStatus() == boardv1.RunStatus_RUN_STATUS_RUNNING }

// holds says whether the run still has its step.
func (r *run) holds() bool {
	return r.step != nil && held(r.step.rec.GetStatus()) && r.step.rec.GetClaimedByRunId() == r.rec.GetRunId()
}

// endRun takes a run off its board. It stays readable for a while.
func (s *State) endRun(r *run, how boardv1.RunStatus, at status, when time.Time) {
	if !r.live() {
		return
	}
	n := copyRun(r.rec)
	n.Status, n.EndedAt = how, timestamppb.New(when)
	if r.step != nil {
		n.StepStatus = at
	}
	r.rec = n
	delete(r.board.runs, n.GetRunId())
	if len(r.board.runs) == 0 {
		delete(s.busy, r.board)
	}
	if r.dispatch != nil {
		r.dispatch.running--
	}
	s.ended = append(s.ended, key{r.board.key.namespace, n.GetRunId()})
	if len(s.ended) >= 2*keptRuns {
		for _, k := range s.ended[:keptRuns] {
			delete(s.runs, k)
		}
		s.ended = slices.Clone(s.ended[keptRuns:])
	}
}

// applyRun is Apply for what is not in the WAL.
func (s *State) applyRun(b *board, ev *journal.Event) error {
	switch p := ev.Payload.(type) {
	case *boardv1.BoardTerminating:
		b.terminating = p
		b.endedBy = journal.Actor{Namespace: ev.Namespace, Principal: ev.Principal, Role: ev.Role, AgentID: ev.ActorAgentID, RunID: ev.ActorRunID}
		for _, id := range p.GetRunIds() {
			if r := b.runs[id]; r != nil {
				n := copyRun(r.rec)
				n.Cancelling = true
				r.rec = n
			}
		}
	case *boardv1.ChildAgentCancelTimeout:
	case *boardv1.WorkerDispatched:
		r := &run{rec: p.GetRun(), board: b}
		r.allowed, r.bits = b.scope(p.GetRun().GetAllowedStepIds())
		s.addRun(r)
		r.lease(ev.CreatedAt.Add(s.term))
	case *boardv1.WorkerRunEnded:
		s.runEnded(p, ev)
	case *boardv1.StandingDispatchOpened:
		d := &dispatch{rec: p.GetDispatch(), board: b, pool: s.pool(b.key.namespace, p.GetDispatch().GetWorkerPoolId()), slot: -1}
		d.allowed, d.bits = b.scope(d.rec.GetAllowedStepIds())
		b.dispatches = append(b.dispatches, d)
	case *boardv1.StandingDispatchClosed:
		b.dispatches = slices.DeleteFunc(b.dispatches, func(d *dispatch) bool {
			if d.rec.GetDispatchId() != p.GetDispatchId() {
				return false
			}
			d.unlist()
			return true
		})
	default:
		return fmt.Errorf("board: unknown event %T", ev.Payload)
	}
	s.refresh(b)
	return nil
}

func (s *State) runEnded(p *boardv1.WorkerRunEnded, ev *journal.Event) {
	r := s.runs[key{ev.Namespace, p.GetRunId()}]
	if r == nil {
		return
	}
	n := copyRun(r.rec)
	n.WorkerResult, n.EndReason, n.NoStepClaimed = p.GetWorkerResult(), p.GetEndReason(), p.GetNoStepClaimed()
	if !r.live() { // its step's end was its own
		n.Status = p.GetStatus()
	}
	r.rec = n
	at := n.GetStepStatus()
	if r.holds() {
		at = r.step.rec.GetStatus()
	}
	s.endRun(r, p.GetStatus(), at, ev.CreatedAt)
}

// applyLate is Apply for what comes after a board's end.
func (s *State) applyLate(ev *journal.Event) error {
	if p, ok := ev.Payload.(*boardv1.WorkerRunEnded); ok {
		s.runEnded(p, ev)
		return nil
	}
	return fmt.Errorf("board: %s of %s/%s, which has no active board", ev.Type, ev.SessionID, ev.TaskID)
}

// end puts a board away without its steps, which its WAL has (S2-061).
func (s *State) end(b *board, at time.Time) {
	for _, r := range b.runs {
		stands := status(0)
		if r.step != nil {
			stands = r.step.rec.GetStatus()
		}
		s.endRun(r, boardv1.RunStatus_RUN_STATUS_CANCELLED, stands, at)
	}
	for _, d := range b.dispatches {
		d.unlist()
	}
	b.dispatches, b.terminating = nil, nil
	se := s.sessions[key{b.key.namespace, b.key.session}]
	delete(se.active, b.id)
	se.order = slices.DeleteFunc(se.order, func(o *board) bool { return o == b })
	se.ended = append(se.ended, b)
	b.steps, b.order, b.ready, b.roots = nil, nil, nil, nil
}

func (s *State) pool(namespace, id string) *pool {
	k := key{namespace, id}
	if s.pools[k] == nil {
		s.pools[k] = &pool{}
	}
	return s.pools[k]
}

// scope is a list of allowed steps as sets; nil: no limit. Steps that are not
// there yet are in it by name.
func (b *board) scope(ids []string) (map[string]bool, *bitset) {
	if len(ids) == 0 {
		return nil, nil
	}
	allowed := make(map[string]bool, len(ids))
	for _, id := range ids {
		allowed[id] = true
	}
	return allowed, b.bitsOf(allowed)
}

func (b *board) bitsOf(allowed map[string]bool) *bitset {
	bits := &bitset{}
	for id := range allowed {
		if s := b.steps[id]; s != nil {
			bits.add(s.ord)
		}
	}
	return bits
}

// rescope follows a patch, which may have replaced steps.
func (s *State) rescope(b *board) {
	for _, d := range b.dispatches {
		if d.allowed != nil {
			d.bits = b.bitsOf(d.allowed)
		}
	}
	for _, r := range b.runs {
		if r.dispatch != nil {
			r.bits = r.dispatch.bits
		} else if r.allowed != nil {
			r.bits = b.bitsOf(r.allowed)
		}
	}
}

// dispatchable says whether runs may be started and steps claimed.
func (b *board) dispatchable() bool {
	return b.damaged == nil && b.terminating == nil && (b.status == taskPending || b.status == taskRunning)
}

// refresh keeps the pools' lists of dispatches that would give a step.
func (s *State) refresh(b *board) {
	for _, d := range b.dispatches {
		gives := b.dispatchable() && d.running < int(d.rec.GetMaxParallel()) && b.ready[d.rec.GetWorkerPoolId()].next(0, d.bits) >= 0
		switch {
		case gives && d.slot < 0:
			d.slot = len(d.pool.claimable)
			d.pool.claimable = append(d.pool.claimable, d)
		case !gives && d.slot >= 0:
			d.unlist()
		}
	}
}

func (d *dispatch) unlist() {
	if d.slot < 0 {
		return
	}
	list := d.pool.claimable
	last := list[len(list)-1]
	list[d.slot], last.slot = last, d.slot
	d.pool.claimable, d.slot = list[:len(list)-1], -1
}

// shown is a dispatch as readers see it.
func (d *dispatch) shown() *boardv1.StandingDispatch {
	return &boardv1.StandingDispatch{
		DispatchId: d.rec.GetDispatchId(), SessionId: d.rec.GetSessionId(), BoardId: d.rec.GetBoardId(), WorkerPoolId: d.rec.GetWorkerPoolId(),
		MaxParallel: d.rec.GetMaxParallel(), AllowedStepIds: d.rec.GetAllowedStepIds(), Instruction: d.rec.GetInstruction(),
		Open: true, Running: int32(d.running & 0xffff), OpenedAt: d.rec.GetOpenedAt(),
	}
}

func copyRun(o *boardv1.WorkerRun) *boardv1.WorkerRun {
	return &boardv1.WorkerRun{
		RunId: o.GetRunId(), SessionId: o.GetSessionId(), BoardId: o.GetBoardId(), WorkerPoolId: o.GetWorkerPoolId(), WorkerId: o.GetWorkerId(),
		DispatchId: o.GetDispatchId(), AllowedStepIds: o.GetAllowedStepIds(), Instruction: o.GetInstruction(), Context: o.GetContext(),
		AllowedTools: o.GetAllowedTools(), Status: o.GetStatus(), ClaimedStepId: o.GetClaimedStepId(), ClaimedStep: o.GetClaimedStep(),
		StepStatus: o.GetStepStatus(), StepResultSummary: o.GetStepResultSummary(), NoStepClaimed: o.GetNoStepClaimed(),
		WorkerResult: o.GetWorkerResult(), EndReason: o.GetEndReason(), DispatchedAt: o.GetDispatchedAt(), DeadlineAt: o.GetDeadlineAt(),
		EndedAt: o.GetEndedAt(), Cancelling: o.GetCancelling(),
	}
}

func (s *State) active(k key, boardID string) *board {
	if se := s.sessions[k]; se != nil {
		return se.active[boardID]
	}
	return nil
}

// find is the board that an id means: the active one, else the newest that
// ended; with a WAL's name the one of that name.
func (s *State) find(k key, boardID, wal string) (*board, error) {
	se := s.sessions[k]
	if se != nil && wal != "" {
		if b := se.byWal[wal]; b != nil && b.id == boardID {
			return b, nil
		}
	} else if se != nil {
		if b := se.active[boardID]; b != nil {
			return b, nil
		}
		for _, b := range slices.Backward(se.ended) {
			if b.id == boardID {
				return b, nil
			}
		}
	}
	return nil, fault.NotFound.Newf("session %q has no board %q; ListBoards with include_terminal shows what it has", k.id, boardID).With("board_id", boardID)
}

// unended refuses a change of a board that has ended.
func (b *board) unended() error {
	if terminal(b.status) {
		return fault.TaskTerminal.Newf("board %q is %s and takes no changes", b.id, taskWord(b.status)).With("board_status", taskWord(b.status))
	}
	return nil
}

// changeable refuses an orchestrator's change also while the board is being ended.
func (b *board) changeable() error {
	if b.terminating != nil {
		return fault.TaskTerminal.Newf("board %q is about to be %s and takes no changes", b.id, taskWord(b.terminating.GetStatus())).
			With("board_status", taskWord(b.status))
	}
	return nil
}

// usable refuses a board whose WAL cannot be replayed (S2-059).
func (b *board) usable() error {
	if b.damaged == nil {
		return nil
	}
	return fault.Storage.Newf("board %q cannot be used, since its WAL cannot be replayed: %v", b.id, b.damaged).
		With("board_id", b.id).With("wal_name", b.key.wal).WithCause(errors.Unwrap(b.damaged))
}
