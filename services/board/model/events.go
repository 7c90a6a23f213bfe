package model

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// eventRows has a row for each event type of the plane: lines of a WAL about its board, lines about one step, and
// events that are not lines. State.Apply itself handles what creates a board or is about none.
var eventRows = plane.NewRows(
	boardLine((*Board).applyCreated, nil, pagesOfCreated),
	boardLine(foldUpdated, changeScopes, pageOfBoard),
	boardLine(foldRunning, nil, pageOfBoard),
	boardLine(becomes[*boardv1.TaskBlocked](BoardBlocked), nil, pageOfBoard),
	boardLine(becomes[*boardv1.TaskReopened](BoardPending), nil, pageOfBoard),
	boardLine(becomes[*boardv1.TaskCompleted](BoardCompleted), closeAll, pagesOfEnd),
	boardLine(becomes[*boardv1.TaskFailed](BoardFailed), closeAll, pagesOfEnd),
	boardLine(becomes[*boardv1.TaskCancelled](BoardCancelled), closeAll, pagesOfEnd),

	stepLine(foldStepReady, nil, pageOfBoard),
	stepLine(foldStepClaimed, claimByRun, pageOfBoard),
	stepLine(runs[*boardv1.TaskStepStarted], nil, pageOfBoard),
	stepLine(runs[*boardv1.TaskStepUpdated], nil, pageOfBoard),
	stepLine(stops[*boardv1.TaskStepBlocked](StepBlocked), nil, pagesOfHeld),
	stepLine(foldStepCompleted, nil, pagesOfHeld),
	stepLine(stops[*boardv1.TaskStepFailed](StepFailed), nil, pagesOfHeld),
	stepLine(stops[*boardv1.TaskStepCancelled](StepCancelled), nil, pagesOfHeld),
	stepLine(foldStepReopened, nil, pagesOfHeld),
	stepLine(foldStepLeaseExpired, loseRun, pagesOfHeld),

	outsideWAL(foldTerminating, pageOfBoard),
	outsideWAL(foldRunCancelling, pageOfBoard),
	outsideWAL[*boardv1.ChildAgentCancelTimeout](nil, noPage), // the end of the board, which follows, ends the runs
	outsideWAL(foldDispatched, pageOfBoard),
	outsideWAL(foldRunEnded, pagesOfRun),
	outsideWAL(foldStandingOpened, pageOfBoard),
	outsideWAL(foldStandingClosed, pageOfBoard),
	outsideWAL[*boardv1.OwnerDeleted](nil, pageOfSession),
)

// row is a row of eventRows.
type row struct {
	line    func(b *Board, ev *journal.Event) error // folds a line of a WAL; nil: the event is none
	runs    func(s *State, l appliedLine) *Run      // see lineRow; nil: l.holder
	outside func(s *State, b *Board, ev *journal.Event)
	pages   func(s *State, b *Board, ev *journal.Event, touch func(snapshot.Owner))
}

// appliedLine is a line of a WAL after it was folded.
type appliedLine struct {
	board  *Board
	step   *Step // that the line is about; nil: it is about the board
	holder *Run  // that held the step before the line; nil: none
	ev     *journal.Event
}

// pagesFunc is State.Owners for events of a type. b is the active board that the event names, nil if there is none.
type pagesFunc[P proto.Message] func(s *State, b *Board, ev *journal.Event, p P, touch func(snapshot.Owner))

// boardLine returns the row of lines about a board: fold applies one to the board, and runs to its runs and
// dispatches, which returns the run that has to learn the new status of its step; nil: it changes none of them.
func boardLine[P proto.Message](
	fold func(b *Board, ev *journal.Event, p P) error,
	runs func(s *State, l appliedLine, p P) *Run,
	pages pagesFunc[P],
) plane.Row[row] {
	r := row{
		line: func(b *Board, ev *journal.Event) error { return fold(b, ev, plane.PayloadOf[P](ev)) },
		pages: func(s *State, b *Board, ev *journal.Event, touch func(snapshot.Owner)) {
			pages(s, b, ev, plane.PayloadOf[P](ev), touch)
		},
	}
	if runs != nil {
		r.runs = func(s *State, l appliedLine) *Run { return runs(s, l, plane.PayloadOf[P](l.ev)) }
	}
	return plane.RowOf[P](r)
}

// stepLine returns the row of lines about one step. fold changes next, a copy of the record of st.
func stepLine[P proto.Message](
	fold func(st *Step, next *boardv1.Step, p P) error,
	runs func(s *State, l appliedLine, p P) *Run,
	pages pagesFunc[P],
) plane.Row[row] {
	return boardLine(func(b *Board, ev *journal.Event, p P) error {
		return b.applyStep(ev, func(st *Step, next *boardv1.Step) error { return fold(st, next, p) })
	}, runs, pages)
}

// outsideWAL returns the row of events that are not lines of a WAL; fold nil: they change nothing of a board.
func outsideWAL[P proto.Message](fold func(s *State, b *Board, ev *journal.Event, p P), pages pagesFunc[P],
) plane.Row[row] {
	return plane.RowOf[P](row{
		outside: func(s *State, b *Board, ev *journal.Event) {
			if fold != nil {
				fold(s, b, ev, plane.PayloadOf[P](ev))
			}
		},
		pages: func(s *State, b *Board, ev *journal.Event, touch func(snapshot.Owner)) {
			pages(s, b, ev, plane.PayloadOf[P](ev), touch)
		},
	})
}

// InWAL reports whether an event of a board is a line of its WAL. An event that is not known is one, since it
// cannot be left out of a log of which each line follows the one before.
func InWAL(ev *journal.Event) bool {
	row, err := eventRows.Of(ev)
	return err != nil || row.line != nil
}

func foldUpdated(b *Board, ev *journal.Event, p *boardv1.TaskUpdated) error {
	return b.applyPatch(p.GetOperations(), ev.CreatedAt)
}

func foldRunning(b *Board, _ *journal.Event, _ *boardv1.TaskRunning) error {
	return b.setStatus(BoardRunning, "")
}

func becomes[P interface {
	proto.Message
	GetReason() string
}](to BoardStatus) func(*Board, *journal.Event, P) error {
	return func(b *Board, _ *journal.Event, p P) error { return b.setStatus(to, p.GetReason()) }
}

func foldStepReady(st *Step, next *boardv1.Step, _ *boardv1.TaskStepReady) error {
	next.Status, next.Reason = StepReady, st.Record.GetReason()
	if st.OpenDependencies > 0 {
		return fmt.Errorf("step %s is ready but has %d dependencies that are not completed", st.ID(),
			st.OpenDependencies)
	}
	return nil
}

func foldStepClaimed(st *Step, next *boardv1.Step, p *boardv1.TaskStepClaimed) error {
	next.Status, next.LeaseExpiresAt = StepClaimed, p.GetLeaseExpiresAt()
	next.ClaimedByAgentId, next.ClaimedByRunId = p.GetClaimedByAgentId(), p.GetClaimedByRunId()
	st.AtClaim = st.Record
	return nil
}

func runs[P interface {
	StepResult
	GetLeaseExpiresAt() *timestamppb.Timestamp
}](_ *Step, next *boardv1.Step, p P) error {
	next.Status, next.LeaseExpiresAt = StepRunning, p.GetLeaseExpiresAt()
	MergeResult(next, p)
	return nil
}

func stops[P interface {
	StepResult
	GetReason() string
}](status StepStatus) func(*Step, *boardv1.Step, P) error {
	return func(_ *Step, next *boardv1.Step, p P) error {
		next.Status, next.Reason = status, p.GetReason()
		MergeResult(next, p)
		return nil
	}
}

func foldStepCompleted(_ *Step, next *boardv1.Step, p *boardv1.TaskStepCompleted) error {
	next.Status = StepCompleted
	MergeResult(next, p)
	return nil
}

func foldStepReopened(_ *Step, next *boardv1.Step, p *boardv1.TaskStepReopened) error {
	next.Status, next.Reason = StepPending, p.GetReason()
	next.ResultSummary, next.ArtifactIds = "", nil // or they would count as those of the next run
	return nil
}

func foldStepLeaseExpired(_ *Step, next *boardv1.Step, _ *boardv1.TaskStepLeaseExpired) error {
	next.Status, next.ResultSummary, next.ArtifactIds = StepPending, "", nil
	return nil
}

func changeScopes(s *State, l appliedLine, _ *boardv1.TaskUpdated) *Run {
	s.refreshScopes(l.board)
	return l.holder
}

func closeAll[P proto.Message](s *State, l appliedLine, _ P) *Run {
	s.closeBoard(l.board, l.ev.CreatedAt)
	return l.holder
}

func claimByRun(s *State, l appliedLine, p *boardv1.TaskStepClaimed) *Run {
	s.applyClaimToRun(l.board, l.step, p, l.ev)
	return l.holder
}

func loseRun(s *State, l appliedLine, _ *boardv1.TaskStepLeaseExpired) *Run {
	if l.holder != nil {
		l.holder.LeaseExpired = true
		s.endRun(l.holder, boardv1.RunStatus_RUN_STATUS_LOST, StepPending, l.ev.CreatedAt)
	}
	return nil
}

func foldTerminating(_ *State, b *Board, ev *journal.Event, p *boardv1.BoardTerminating) {
	b.Terminating = p
	b.EndedBy = journal.Actor{
		Namespace: ev.Namespace, Principal: ev.Principal, Role: ev.Role,
		AgentID: ev.ActorAgentID, RunID: ev.ActorRunID,
	}
	for _, id := range p.GetRunIds() {
		b.Runs[id].cancel()
	}
}

func foldRunCancelling(_ *State, b *Board, _ *journal.Event, p *boardv1.WorkerRunCancelling) {
	b.Runs[p.GetRunId()].cancel()
}

func foldDispatched(s *State, b *Board, _ *journal.Event, p *boardv1.WorkerDispatched) {
	r := &Run{Record: p.GetRun(), Board: b}
	r.Allowed, r.AllowedSet = b.stepSet(p.GetRun().GetAllowedStepIds())
	s.addRun(r)
}

func foldRunEnded(s *State, _ *Board, ev *journal.Event, p *boardv1.WorkerRunEnded) {
	s.applyWorkerRunEnded(p, ev)
}

func foldStandingOpened(_ *State, b *Board, _ *journal.Event, p *boardv1.StandingDispatchOpened) {
	d := &Dispatch{Record: p.GetDispatch(), Board: b}
	d.Allowed, d.AllowedSet = b.stepSet(d.Record.GetAllowedStepIds())
	b.Dispatches = append(b.Dispatches, d)
}

func foldStandingClosed(s *State, b *Board, _ *journal.Event, p *boardv1.StandingDispatchClosed) {
	b.Dispatches = slices.DeleteFunc(b.Dispatches, func(d *Dispatch) bool {
		if d.Record.GetDispatchId() != p.GetDispatchId() {
			return false
		}
		s.unlist(d)
		d.closed, d.AllowedSet = true, nil
		return true
	})
}

func noPage[P proto.Message](*State, *Board, *journal.Event, P, func(snapshot.Owner)) {}

func pageOfBoard[P proto.Message](_ *State, b *Board, _ *journal.Event, _ P, touch func(snapshot.Owner)) {
	if b != nil {
		touch(b.Key.owner())
	}
}

// pagesOfHeld has the board, and what changes if the run that holds the step ends.
func pagesOfHeld[P proto.Message](s *State, b *Board, ev *journal.Event, _ P, touch func(snapshot.Owner)) {
	if b == nil {
		return
	}
	touch(b.Key.owner())
	if st := b.Steps[ev.StepID]; st != nil && b.Runs[st.Record.GetClaimedByRunId()] != nil {
		s.touchEnds(1, touch)
	}
}

// pagesOfEnd has the board, and what changes if all its runs end.
func pagesOfEnd[P proto.Message](s *State, b *Board, _ *journal.Event, _ P, touch func(snapshot.Owner)) {
	if b != nil {
		touch(b.Key.owner())
		s.touchEnds(len(b.Runs), touch)
	}
}

func pagesOfCreated(_ *State, b *Board, ev *journal.Event, p *boardv1.TaskCreated, touch func(snapshot.Owner)) {
	touch(BoardKey{ev.Namespace, ev.SessionID, p.GetWalName()}.owner())
	if b != nil { // it is damaged; the new board becomes the active one with the id
		touch(b.Key.owner())
	}
}

func pagesOfRun(s *State, _ *Board, ev *journal.Event, p *boardv1.WorkerRunEnded, touch func(snapshot.Owner)) {
	if r := s.Runs[plane.KeyOf(ev.Namespace, p.GetRunId())]; r != nil && r.Running() {
		touch(r.Board.Key.owner())
		s.touchEnds(1, touch)
	} else if r != nil {
		touch(endedOwner(r.place / pageRuns))
	}
}

func pageOfSession(_ *State, _ *Board, ev *journal.Event, p *boardv1.OwnerDeleted, touch func(snapshot.Owner)) {
	touch(sessionOwner(plane.KeyOf(ev.Namespace, p.GetAgentId())))
}
