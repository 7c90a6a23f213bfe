package rules

import (
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// DecideComplete is the rule of CompleteBoard.
func DecideComplete(b *model.Board, reason string) ([]*journal.Event, error) {
	if err := b.CheckChangeable(); err != nil {
		return nil, err
	}
	if !b.Completeable() {
		ids := b.BlockingCompletion()
		return nil, fault.BoardNotCompleteable.Newf("board %q cannot be completed: %s must be completed, be optional and ended, or be deleted; no step may be held", b.ID, "steps "+model.JoinIDs(ids)).
			With("step_ids", model.JoinIDs(ids))
	}
	var events []*journal.Event
	for _, s := range b.Order {
		// Optional, or the board would not be completeable.
		if s != nil && (s.Record.GetStatus() == model.StepPending || s.Record.GetStatus() == model.StepReady) {
			events = append(events, b.NewEvent(s.ID(), &boardv1.TaskStepCancelled{Reason: "task_completed"}))
		}
	}
	return append(events, b.NewEvent("", &boardv1.TaskCompleted{Reason: reason})), nil
}

// EndBatch is how many steps are ended in one write.
const EndBatch = 4000

// EndSteps writes the end of steps that have none and, once none is left, the
// board's.
func (f *Transition) EndSteps(to model.BoardStatus, reason string) {
	n := 0
	for _, s := range f.Board.Order {
		if s == nil || model.Finished(f.Status(s)) {
			continue
		}
		if n++; n > EndBatch {
			return
		}
		if to == model.BoardFailed {
			why := "task_failed"
			f.Emit(s, &boardv1.TaskStepFailed{Reason: why, ResultSummary: &why})
		} else {
			why := "task_cancelled"
			f.Emit(s, &boardv1.TaskStepCancelled{Reason: why, ResultSummary: &why})
		}
	}
	if to == model.BoardFailed {
		f.Emit(nil, &boardv1.TaskFailed{Reason: reason})
	} else {
		f.Emit(nil, &boardv1.TaskCancelled{Reason: reason})
	}
}
