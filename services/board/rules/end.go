package rules

import (
	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/services/board/model"
)

// DecideEnd is the rule of FailBoard and CancelBoard. A board with steps that runs
// hold, or with more steps to end than fit into one write, is marked as
// terminating; any other one ends at once.
func DecideEnd(b *model.Board, env journal.Env, status model.BoardStatus, reason string) ([]*journal.Event, error) {
	if err := b.CheckChangeable(); err != nil {
		return nil, err
	}
	if runs := b.HoldingRuns(); len(runs) > 0 || b.CountUnfinished() > endBatch {
		return []*journal.Event{
			b.NewEvent("", &boardv1.BoardTerminating{Status: status, Reason: reason, RunIds: runs}),
		}, nil
	}
	t := NewTransition(b, env)
	t.EndSteps(status, reason)
	return t.Events, nil
}

// DecideTerminated continues the end of a terminating board, and returns no events
// for any other board. While runs hold steps it waits for them, unless timeout is
// set.
func DecideTerminated(b *model.Board, env journal.Env, timeout bool) []*journal.Event {
	runs := b.HoldingRuns()
	if b.Terminating == nil || len(runs) > 0 && !timeout {
		return nil
	}
	t := NewTransition(b, env)
	if len(runs) > 0 {
		t.Emit(nil, &boardv1.ChildAgentCancelTimeout{RunIds: runs})
	}
	t.EndSteps(b.Terminating.GetStatus(), b.Terminating.GetReason())
	return t.Events
}

// DecideComplete is the rule of CompleteBoard. It cancels the steps that are pending or ready, which are optional.
func DecideComplete(b *model.Board, reason string) ([]*journal.Event, error) {
	if err := b.CheckChangeable(); err != nil {
		return nil, err
	}
	if !b.Completeable() {
		ids := b.BlockingCompletion()
		return nil, fault.BoardNotCompleteable.Newf("board %q cannot be completed: %s must be completed, be optional "+
			"and ended, or be deleted; no step may be held", b.ID, "steps "+model.JoinIDs(ids)).
			With("step_ids", model.JoinIDs(ids))
	}
	var events []*journal.Event
	for _, s := range b.Order {
		// Such a step is optional, or the board could not be completed.
		if s != nil && (s.Record.GetStatus() == model.StepPending || s.Record.GetStatus() == model.StepReady) {
			events = append(events, b.NewEvent(s.ID(), &boardv1.TaskStepCancelled{Reason: "task_completed"}))
		}
	}
	return append(events, b.NewEvent("", &boardv1.TaskCompleted{Reason: reason})), nil
}

// endBatch bounds the steps that end in one write.
const endBatch = 4000

// EndSteps ends the steps that have not ended, at most endBatch of them. If all have ended then, it
// ends the board; if not, the caller must call it again in a later command.
func (f *Transition) EndSteps(to model.BoardStatus, reason string) {
	n := 0
	for _, s := range f.Board.Order {
		if s == nil || model.Finished(f.Status(s)) {
			continue
		}
		if n++; n > endBatch {
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
