package wal

import (
	"fmt"
	"slices"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// checkFollows returns an error if a line cannot be the next one of a board, because no rule
// writes it in the board's state. Board.Apply checks what would make its own state inconsistent;
// this also finds lines that somebody forged with right hashes. It is for readers of a log: the
// plane has checked the same before it wrote the line.
func checkFollows(b *model.Board, ev *journal.Event) error {
	switch p := ev.Payload.(type) {
	case *boardv1.TaskCreated:
		return checkCreated(p)
	case *boardv1.TaskRunning:
		if b.Count[model.StepReady]+b.Count[model.StepClaimed]+b.Count[model.StepRunning] == 0 {
			return fmt.Errorf("%s, and no step is ready, claimed or running", ev.Type)
		}
	case *boardv1.TaskCompleted:
		if n := b.Count[model.StepPending] + b.Count[model.StepReady]; n > 0 || !b.Completeable() {
			return fmt.Errorf("%s, but steps are not completed: %s", ev.Type, model.JoinIDs(openSteps(b)))
		}
	case *boardv1.TaskFailed, *boardv1.TaskCancelled:
		if b.CountUnfinished() > 0 {
			return fmt.Errorf("%s, but steps have not ended: %s", ev.Type, model.JoinIDs(openSteps(b)))
		}
	case *boardv1.TaskUpdated:
		return checkPatch(b, p.GetOperations())
	default:
		if s := b.Steps[ev.StepID]; s != nil {
			return checkStepLine(b, s, ev)
		}
	}
	return nil
}

// openSteps returns the ids of the steps that are not completed.
func openSteps(b *model.Board) []string {
	var out []string
	for _, s := range b.Order {
		if s != nil && s.Record.GetStatus() != model.StepCompleted {
			out = append(out, s.ID())
		}
	}
	return out
}

// checkStepLine is checkFollows for a line about a step. Board.Apply checks the change of the
// status; several lines make the same change, and this checks that it is the right one of them.
func checkStepLine(b *model.Board, s *model.Step, ev *journal.Event) error {
	status := s.Record.GetStatus()
	is := func(allowed ...model.StepStatus) error {
		if slices.Contains(allowed, status) {
			return nil
		}
		return fmt.Errorf("%s of step %s, which is %s", ev.Type, s.ID(), model.StepStatusName(status))
	}
	heldBy := func(runID string) error {
		if holder := s.Record.GetClaimedByRunId(); runID != holder {
			return fmt.Errorf("%s of step %s by run %s, and run %s holds it", ev.Type, s.ID(), runID, holder)
		}
		return nil
	}
	var err error
	switch p := ev.Payload.(type) {
	case *boardv1.TaskStepReady:
		err = is(model.StepPending)
	case *boardv1.TaskStepClaimed:
		if b.Status == model.BoardBlocked {
			return fmt.Errorf("%s of step %s, and the board is blocked", ev.Type, s.ID())
		}
	case *boardv1.TaskStepStarted:
		if err = is(model.StepClaimed); err == nil {
			err = heldBy(ev.ActorRunID)
		}
	case *boardv1.TaskStepUpdated:
		if err = is(model.StepRunning); err == nil {
			err = heldBy(ev.ActorRunID)
		}
	case *boardv1.TaskStepReopened:
		err = is(model.StepBlocked, model.StepFailed)
	case *boardv1.TaskStepLeaseExpired:
		if err = is(model.StepClaimed, model.StepRunning); err == nil {
			err = heldBy(p.GetClaimedByRunId())
		}
	}
	return err
}

// checkPatch is checkFollows for the operations of task_updated: no step is cancelled, reopened or deleted that its
// status does not permit, none is deleted that another step depends on afterwards, and no cycle is made.
func checkPatch(b *model.Board, ops []*boardv1.Operation) error {
	d := patched{b: b, records: map[string]*boardv1.Step{}}
	for _, op := range ops {
		if err := d.apply(op); err != nil {
			return err
		}
	}
	for id, rec := range d.records {
		s := b.Steps[id]
		if rec != nil || s == nil {
			continue // not deleted
		}
		for _, k := range s.Dependents {
			if slices.Contains(d.record(k.ID()).GetDependsOnStepIds(), id) {
				return fmt.Errorf("it deletes step %s, on which step %s depends", id, k.ID())
			}
		}
	}
	return checkAcyclic(d.changed, func(id string) []string { return d.record(id).GetDependsOnStepIds() })
}

// patched is a board with operations applied, without a change of the board.
type patched struct {
	b       *model.Board
	records map[string]*boardv1.Step // of the steps that operations touched; nil: deleted
	changed []string                 // steps whose dependencies operations may have set
}

// record returns the record of a step, or nil.
func (d *patched) record(id string) *boardv1.Step {
	if rec, touched := d.records[id]; touched {
		return rec
	}
	if s := d.b.Steps[id]; s != nil {
		return s.Record
	}
	return nil
}

// apply applies one operation. It ignores operations on steps that do not exist: Board.Apply, which is called after
// checkFollows, refuses them, except cancel_step and reopen_step, which it ignores too.
func (d *patched) apply(op *boardv1.Operation) error {
	if op.GetOp() == model.OpAddStep {
		id := op.GetStep().GetStepId()
		d.records[id] = model.NewStep(op.GetStep(), d.b.DefaultPool, d.b.UpdatedAt)
		d.changed = append(d.changed, id)
		return nil
	}
	id := op.GetStepId()
	rec := d.record(id)
	if rec == nil {
		return nil
	}
	n := model.CopyStep(rec, d.b.UpdatedAt)
	move := func(to model.StepStatus) error {
		if n.Status = to; !model.StepMayMove(model.ByOrchestrator, rec.GetStatus(), to) {
			return fmt.Errorf("its operations change step %s, which is %s, to %s", id,
				model.StepStatusName(rec.GetStatus()), model.StepStatusName(to))
		}
		return nil
	}
	switch op.GetOp() {
	case model.OpCancelStep:
		if err := move(model.StepCancelled); err != nil {
			return err
		}
	case model.OpReopenStep:
		if err := move(model.StepPending); err != nil {
			return err
		}
	case model.OpUpdateStep, model.OpAddDependency, model.OpRemoveDependency:
		model.ApplyOperation(n, op)
		d.changed = append(d.changed, id)
	case model.OpDeleteStep:
		switch rec.GetStatus() {
		case model.StepPending, model.StepReady, model.StepCancelled:
			n = nil
		default:
			return fmt.Errorf("it deletes step %s, which is %s", id, model.StepStatusName(rec.GetStatus()))
		}
	default:
		// The others change the board and no step.
	}
	d.records[id] = n
	return nil
}

// checkAcyclic returns an error if a step of ids is part of a cycle. deps returns what a step
// depends on.
func checkAcyclic(ids []string, deps func(id string) []string) error {
	finder := model.CycleFinder{Deps: deps}
	for _, id := range ids {
		if circle := finder.Find(id); circle != nil {
			return fmt.Errorf("the dependencies run in a circle: %s", model.JoinIDs(circle))
		}
	}
	return nil
}

// checkCreated is checkFollows for task_created.
func checkCreated(p *boardv1.TaskCreated) error {
	deps := map[string][]string{}
	var ids []string
	for _, in := range p.GetSteps() {
		ids = append(ids, in.GetStepId())
		deps[in.GetStepId()] = in.GetDependsOnStepIds()
	}
	return checkAcyclic(ids, func(id string) []string { return deps[id] })
}
