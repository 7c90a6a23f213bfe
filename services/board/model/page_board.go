package model

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// page returns the page of a board. se is the board's session, and may be nil if the board has ended.
func (b *Board) page(se *session) *boardv1.StoredBoard {
	if b.content == closed {
		return b.storedPage()
	}
	out := &boardv1.StoredBoard{
		SessionId: b.Key.Session, WalName: b.Key.WAL, BoardId: b.ID, Title: b.title, Summary: b.summary,
		DefaultWorkerPoolId: b.DefaultPool,
		Status:              b.Status, Reason: b.reason, CreatedByAgentId: b.creator.agent,
		CreatedByRunId: b.creator.run,
		CreatedAt:      storedTime(b.CreatedAt), UpdatedAt: storedTime(b.UpdatedAt), Terminating: b.Terminating,
		LinePositions: b.lineOffsets, // later lines are appended behind them
	}
	if b.EndedBy != (journal.Actor{}) {
		out.EndedBy = &boardv1.StoredActor{
			Namespace: b.EndedBy.Namespace, Principal: b.EndedBy.Principal, Role: b.EndedBy.Role,
			AgentId: b.EndedBy.AgentID, RunId: b.EndedBy.RunID,
		}
	}
	if d := (*damage)(nil); errors.As(b.Damaged, &d) {
		out.Damage = &boardv1.StoredDamage{Place: d.place, Cause: d.cause}
	}
	if Ended(b.Status) {
		out.Counts = b.counts()
		return out
	}
	out.Superseded = se.active[b.ID] != b
	b.pageSteps(out)
	b.pageRuns(out)
	return out
}

// pageSteps adds the steps to the page of a board.
func (b *Board) pageSteps(out *boardv1.StoredBoard) {
	out.Steps = make([]*boardv1.Step, 0, len(b.Steps))
	for i, s := range b.Order {
		if s == nil {
			out.DeletedSteps = append(out.DeletedSteps, int32(i&(1<<31-1)))
			continue
		}
		out.Steps = append(out.Steps, s.Record)
		if s.AtClaim != nil {
			out.StepsAtClaim = append(out.StepsAtClaim, &boardv1.StepAtClaim{
				Index: int32(i & (1<<31 - 1)),
				Step:  s.AtClaim,
			})
		}
	}
}

// pageRuns adds the runs in progress and the standing dispatches to the page of a board.
func (b *Board) pageRuns(out *boardv1.StoredBoard) {
	closed := map[string]*boardv1.StandingDispatch{}
	for _, id := range slices.Sorted(maps.Keys(b.Runs)) {
		r := b.Runs[id]
		stored := &boardv1.RunInProgress{Run: r.Record, Standing: r.Dispatch != nil}
		if r.Step != nil && b.Steps[r.Step.ID()] != r.Step {
			stored.DeletedStep = r.Step.Record
		}
		if r.Dispatch != nil && r.Dispatch.closed {
			closed[r.Dispatch.Record.GetDispatchId()] = r.Dispatch.Record
		}
		out.Runs = append(out.Runs, stored)
	}
	for _, d := range b.Dispatches {
		out.Dispatches = append(out.Dispatches, d.Record)
	}
	for _, id := range slices.Sorted(maps.Keys(closed)) {
		out.ClosedDispatches = append(out.ClosedDispatches, closed[id])
	}
}

// addBoardPage adds a board that is read from its page.
func (s *State) addBoardPage(o snapshot.Owner, p *boardv1.StoredBoard) error {
	k := BoardKey{o.Namespace, p.GetSessionId(), p.GetWalName()}
	b := s.boardFor(k)
	_, known := boardv1.BoardStatus_name[int32(p.GetStatus())]
	switch {
	case k.owner() != o:
		return fmt.Errorf("it has WAL %q of session %q", k.WAL, k.Session)
	case s.awaited[k] != b:
		return errors.New("the board was read before")
	case p.GetBoardId() == "":
		return errors.New("the board has no id")
	case !known || p.GetStatus() == 0 && p.GetDamage() == nil:
		return fmt.Errorf("the board has the unknown status %d", p.GetStatus())
	}
	delete(s.awaited, k)
	b.set(p)
	if err := b.setLines(p.GetLinePositions()); err != nil {
		return err
	}
	if Ended(b.Status) {
		b.setCounts(p.GetCounts())
		if err := s.insertBoard(b, false); err != nil {
			return err
		}
		s.offload(b)
		return nil
	}
	if err := b.setSteps(p); err != nil {
		return err
	}
	if err := s.setRuns(b, p); err != nil {
		return err
	}
	return s.insertBoard(b, p.GetSuperseded())
}

// set sets what the pages of active and of ended boards have, except the lines of the WAL.
func (b *Board) set(p *boardv1.StoredBoard) {
	b.ID, b.title, b.summary, b.DefaultPool = p.GetBoardId(), p.GetTitle(), p.GetSummary(), p.GetDefaultWorkerPoolId()
	b.Status, b.reason, b.Terminating = p.GetStatus(), p.GetReason(), p.GetTerminating()
	b.creator.agent, b.creator.run = p.GetCreatedByAgentId(), p.GetCreatedByRunId()
	b.CreatedAt, b.UpdatedAt = timeOf(p.GetCreatedAt()), timeOf(p.GetUpdatedAt())
	if by := p.GetEndedBy(); by != nil {
		b.EndedBy = journal.Actor{
			Namespace: by.GetNamespace(), Principal: by.GetPrincipal(), Role: by.GetRole(),
			AgentID: by.GetAgentId(), RunID: by.GetRunId(),
		}
	}
	if d := p.GetDamage(); d != nil {
		b.Damaged = &damage{place: d.GetPlace(), cause: d.GetCause()}
	}
}

// setLines sets the positions of the lines of the WAL, of which there must be at least one.
func (b *Board) setLines(offsets []byte) error {
	b.lineOffsets = offsets
	b.first, _ = binary.Uvarint(offsets)
	for rest := offsets; len(rest) > 0; {
		d, size := binary.Uvarint(rest)
		if size <= 0 {
			return fmt.Errorf("the position of line %d is cut off", b.Lines+1)
		}
		rest = rest[size:]
		b.Lines++
		b.LastPosition += d
	}
	if b.Lines == 0 {
		return errors.New("the WAL has no lines")
	}
	return nil
}

// setSteps sets the steps of an active board.
func (b *Board) setSteps(p *boardv1.StoredBoard) error {
	b.Order = make([]*Step, len(p.GetSteps())+len(p.GetDeletedSteps()))
	deleted := p.GetDeletedSteps()
	steps := make([]Step, len(p.GetSteps()))
	for i, rec := range p.GetSteps() {
		at := i + len(p.GetDeletedSteps()) - len(deleted)
		for len(deleted) > 0 && int(deleted[0]) == at {
			deleted, at = deleted[1:], at+1
		}
		if rec.GetStepId() == "" || rec.GetStatus() < StepPending || rec.GetStatus() > StepCancelled {
			return fmt.Errorf("step %d, %q, has no record or the unknown status %d", at, rec.GetStepId(),
				rec.GetStatus())
		}
		steps[i].Record = rec
		b.Order[at] = &steps[i]
	}
	for i, at := range deleted { // those behind the last step
		if want := len(b.Order) - len(deleted) + i; int(at) != want {
			return fmt.Errorf("step %d was deleted, and step %d should be", at, want)
		}
	}
	for _, held := range p.GetStepsAtClaim() {
		at := int(held.GetIndex())
		if at < 0 || at >= len(b.Order) || b.Order[at] == nil || held.GetStep() == nil {
			return fmt.Errorf("step %d, which a run claimed, is missing", at)
		}
		b.Order[at].AtClaim = held.GetStep()
	}
	if err := b.rebuild(); err != nil && !b.IsDamaged() {
		return err
	}
	return nil
}

// setRuns sets the runs in progress and the standing dispatches of an active board that has its steps.
func (s *State) setRuns(b *Board, p *boardv1.StoredBoard) error {
	dispatches := map[string]*Dispatch{}
	for _, rec := range p.GetDispatches() {
		d := &Dispatch{Record: rec, Board: b}
		d.Allowed, d.AllowedSet = b.stepSet(rec.GetAllowedStepIds())
		b.Dispatches, dispatches[rec.GetDispatchId()] = append(b.Dispatches, d), d
	}
	for _, rec := range p.GetClosedDispatches() {
		dispatches[rec.GetDispatchId()] = &Dispatch{
			Record: rec, Board: b, Allowed: setOf(rec.GetAllowedStepIds()),
			closed: true,
		}
	}
	for _, stored := range p.GetRuns() {
		r := &Run{Record: stored.GetRun(), Board: b}
		id := r.Record.GetRunId()
		switch {
		case id == "" || !r.Running():
			return fmt.Errorf("run %q has no record or is not in progress", id)
		case s.Runs[plane.KeyOf(b.Key.Namespace, id)] != nil:
			return fmt.Errorf("run %s was read before", id)
		case stored.GetStanding() && dispatches[r.Record.GetDispatchId()] == nil:
			return fmt.Errorf("dispatch %q of run %s is missing", r.Record.GetDispatchId(), id)
		case stored.GetStanding():
			r.Dispatch = dispatches[r.Record.GetDispatchId()]
			r.Dispatch.Running++
			r.Allowed = r.Dispatch.Allowed
		default:
			r.Allowed, r.AllowedSet = b.stepSet(r.Record.GetAllowedStepIds())
		}
		if deleted := stored.GetDeletedStep(); deleted != nil {
			r.Step = &Step{Record: deleted}
		} else if r.HasClaimed() {
			if r.Step = b.Steps[r.Record.GetClaimedStepId()]; r.Step == nil {
				return fmt.Errorf("step %q of run %s is missing", r.Record.GetClaimedStepId(), id)
			}
		}
		s.addRun(r)
	}
	return nil
}

// insertBoard adds a board that was read to its session, in the place that its lines give it, and
// lists its dispatches. superseded says that a newer board got its id while it was active and damaged,
// so that the newer one is the active board with the id.
func (s *State) insertBoard(b *Board, superseded bool) error {
	se := s.sessionOf(b)
	b.LeaseTerm = s.term
	s.contents.boards++
	se.name(b)
	se.WALs = insertBy(se.WALs, b, func(b *Board) uint64 { return b.first })
	if Ended(b.Status) {
		se.Ended = insertBy(se.Ended, b, func(b *Board) uint64 { return b.LastPosition })
		return nil
	}
	se.Order = insertBy(se.Order, b, func(b *Board) uint64 { return b.first })
	if !superseded {
		if se.active[b.ID] != nil {
			return fmt.Errorf("session %q has two active boards %q", b.Key.Session, b.ID)
		}
		se.activate(b)
	}
	s.refreshClaimable(b)
	return nil
}

// insertBy inserts a board into boards in the order of their positions.
func insertBy(boards []*Board, b *Board, position func(*Board) uint64) []*Board {
	at, _ := slices.BinarySearchFunc(boards, position(b), func(o *Board, p uint64) int {
		return cmp.Compare(position(o), p)
	})
	return slices.Insert(boards, at, b)
}

// setCounts sets the number of steps by status of a board that has ended.
func (b *Board) setCounts(c *boardv1.StepCounts) {
	b.Count = [9]int{
		StepPending: int(c.GetPending()), StepReady: int(c.GetReady()), StepClaimed: int(c.GetClaimed()),
		StepRunning: int(c.GetRunning()),
		StepBlocked: int(c.GetBlocked()), StepCompleted: int(c.GetCompleted()), StepFailed: int(c.GetFailed()),
		StepCancelled: int(c.GetCancelled()),
	}
}

// storedTime returns a time as pages have it, nil for the zero time.
func storedTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// timeOf returns the time that storedTime was given.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
