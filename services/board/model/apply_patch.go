package model

import (
	"fmt"
	"slices"
	"time"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// Short names of the kinds of operations.
const (
	OpUpdateTask       = boardv1.OperationKind_OPERATION_KIND_UPDATE_TASK
	OpAddStep          = boardv1.OperationKind_OPERATION_KIND_ADD_STEP
	OpUpdateStep       = boardv1.OperationKind_OPERATION_KIND_UPDATE_STEP
	OpDeleteStep       = boardv1.OperationKind_OPERATION_KIND_DELETE_STEP
	OpAddDependency    = boardv1.OperationKind_OPERATION_KIND_ADD_DEPENDENCY
	OpRemoveDependency = boardv1.OperationKind_OPERATION_KIND_REMOVE_DEPENDENCY
	OpCancelStep       = boardv1.OperationKind_OPERATION_KIND_CANCEL_STEP
	OpReopenStep       = boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP
	OpBlockBoard       = boardv1.OperationKind_OPERATION_KIND_BLOCK_BOARD
	OpReopenBoard      = boardv1.OperationKind_OPERATION_KIND_REOPEN_BOARD
)

// applyPatch folds task_updated: it applies the operations to texts, steps and
// dependencies. Changes of statuses are lines of their own, except that a ready step
// with a new dependency that is not completed becomes pending.
func (b *Board) applyPatch(ops []*boardv1.Operation, at time.Time) error {
	var relinked []*Step // whose dependencies changed, in order
	seen := map[*Step]bool{}
	relink := func(s *Step) {
		if !seen[s] {
			seen[s], relinked = true, append(relinked, s)
		}
	}
	deleted := false
	for _, op := range ops {
		s := b.Steps[op.GetStepId()]
		switch op.GetOp() {
		case OpUpdateTask:
			if op.GetTask().Title != nil {
				b.title = op.GetTask().GetTitle()
			}
			if op.GetTask().Summary != nil {
				b.summary = op.GetTask().GetSummary()
			}
		case OpAddStep:
			if err := b.addStep(op.GetStep(), at); err != nil {
				return err
			}
			relink(b.Steps[op.GetStep().GetStepId()])
		case OpUpdateStep, OpAddDependency, OpRemoveDependency:
			if s == nil {
				return fmt.Errorf("%s of step %q, which does not exist", op.GetOp(), op.GetStepId())
			}
			n := CopyStep(s.Record, at)
			if ApplyOperation(n, op) {
				relink(s)
			}
			b.setRecord(s, n)
		case OpDeleteStep:
			if s == nil {
				return fmt.Errorf("delete_step of step %q, which does not exist", op.GetStepId())
			}
			b.deleteStep(s)
			deleted = true
		default:
			// UpdateBoard has moved steps and the board by events of their own.
		}
	}
	for _, s := range relinked {
		if b.Steps[s.ID()] != s {
			continue // deleted by a later operation
		}
		if err := b.linkDependencies(s); err != nil {
			return err
		}
	}
	for _, s := range relinked {
		if s.Record.GetStatus() == StepReady && s.OpenDependencies > 0 {
			n := CopyStep(s.Record, at)
			n.Status = StepPending
			b.setRecord(s, n)
		}
	}
	if deleted || len(relinked) > 0 {
		b.findRoots()
	}
	return nil
}

// deleteStep removes a step. No other step may depend on it. A run that claimed the step before
// may still refer to it, so s keeps its record, and nothing else.
func (b *Board) deleteStep(s *Step) {
	for _, d := range s.DependsOn {
		d.Dependents = slices.DeleteFunc(d.Dependents, func(k *Step) bool { return k == s })
	}
	b.Count[s.Record.GetStatus()]--
	b.RequiredOpen -= RequiredOpen(s.Record)
	b.IDBytes -= len(s.ID())
	if s.Record.GetStatus() == StepReady {
		b.removeReady(s)
	}
	b.Order[s.Index] = nil
	delete(b.Steps, s.ID())
	*s = Step{Record: s.Record}
}

// ApplyOperation applies an operation that changes fields or dependencies to n, which must be
// a copy of a step's record, and reports whether it set the step's dependencies.
func ApplyOperation(n *boardv1.Step, op *boardv1.Operation) bool {
	switch op.GetOp() {
	case OpAddDependency:
		n.DependsOnStepIds = append(slices.Clone(n.GetDependsOnStepIds()), op.GetDependsOnStepId())
		return true
	case OpRemoveDependency:
		n.DependsOnStepIds = slices.DeleteFunc(slices.Clone(n.GetDependsOnStepIds()), func(id string) bool {
			return id == op.GetDependsOnStepId()
		})
		return true
	default:
		// The others change fields, below.
	}
	f := op.GetFields()
	if f.Title != nil {
		n.Title = f.GetTitle()
	}
	if f.Summary != nil {
		n.Summary = f.GetSummary()
	}
	if f.Required != nil {
		n.Required = f.GetRequired()
	}
	if f.WorkerPoolId != nil {
		n.WorkerPoolId = f.GetWorkerPoolId()
	}
	if f.GetDependsOnStepIds() != nil {
		n.DependsOnStepIds = slices.Clone(f.GetDependsOnStepIds().GetStepIds())
		return true
	}
	return false
}
