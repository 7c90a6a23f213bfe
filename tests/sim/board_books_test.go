package sim

import (
	"fmt"
	"strings"
	"time"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// state returns the state of a record, "" if it is not known.
func (b *books) state(kind, id string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[kind+" "+id]
}

// was reports whether a record ever had a state.
func (b *books) was(kind, id, state string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.had[kind+" "+id+" "+state]
}

// endedBefore reports whether a board ended so long ago that its log may have been removed, in a world that keeps
// history for a time. Clocks are set forward and back by up to 20 s.
func (b *books) endedBefore(board string, history time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ended := b.over[board]
	return ended && history > 0 && time.Since(at) > history-time.Minute
}

// become moves a record as move does, and remembers that it had the state.
func (b *books) become(ev *journal.Event, kind, id, to string, from ...string) {
	b.move(ev, kind, id, to, from...)
	b.had[kind+" "+id+" "+to] = true
}

func (b *books) taskRecord(ev *journal.Event) {
	id := ev.TaskID
	switch p := ev.Payload.(type) {
	case *taskv1.TaskQueued:
		b.move(ev, "task", id, "queued", "")
	case *taskv1.TaskStarted:
		b.move(ev, "task", id, "running", "queued", "again")
		b.rise(ev, "lease of task", id, p.GetTask().GetLeaseGeneration())
	case *taskv1.TaskRestarting:
		b.move(ev, "task", id, "again", "running")
	case *taskv1.TaskCancelling:
		b.move(ev, "task", id, "cancelling", "running", "cancelling")
	case *taskv1.TaskInputAccepted:
		if state := b.records["task "+id]; state == "over" || state == "" {
			b.violation("input of task %s was accepted, which is %q", id, state)
		}
		b.rise(ev, "input of task", id, p.GetInputSeq())
	case *taskv1.TaskCompleted, *taskv1.TaskFailed, *taskv1.TaskInterrupted:
		b.move(ev, "task", id, "over", "running", "cancelling")
	case *taskv1.TaskCancelled:
		b.move(ev, "task", id, "over", "queued", "again", "running", "cancelling")
	}
	if t, ok := ev.Payload.(interface{ GetTask() *taskv1.Task }); ok && t.GetTask() != nil {
		b.rise(ev, "revision of task", id, t.GetTask().GetRevision())
	}
}

// held are the states of a step that a run holds.
var held = []string{"CLAIMED", "RUNNING"}

// open are the states of a step that may still be changed.
var open = []string{"PENDING", "READY", "CLAIMED", "RUNNING", "BLOCKED", "FAILED"}

// boardRecord follows boards: steps go through their states in order, by the run that holds them; a step is claimed
// only when all that it depends on is completed; a run claims one step, and ends once; nothing happens on a board that
// has ended.
func (b *books) boardRecord(ev *journal.Event) {
	board := ev.SessionID + "/" + ev.TaskID
	step := board + "/" + ev.StepID
	switch p := ev.Payload.(type) {
	case *boardv1.TaskCreated:
		b.move(ev, "board", board, "open", "")
		for _, s := range p.GetSteps() {
			b.addStep(ev, board, s)
		}
	case *boardv1.TaskUpdated:
		b.move(ev, "board", board, "open", "open")
		for _, op := range p.GetOperations() {
			if op.GetOp() == boardv1.OperationKind_OPERATION_KIND_ADD_STEP {
				b.addStep(ev, board, op.GetStep())
			}
		}
	case *boardv1.BoardTerminating:
		b.move(ev, "board", board, "open", "open")
		b.records["ending "+board] = p.GetStatus().String()
	case *boardv1.TaskRunning, *boardv1.TaskBlocked, *boardv1.TaskReopened, *boardv1.StandingDispatchOpened:
		b.move(ev, "board", board, "open", "open")
	case *boardv1.TaskCompleted, *boardv1.TaskFailed, *boardv1.TaskCancelled:
		b.move(ev, "board", board, "over", "open")
		b.over[board] = time.Now()
	case *boardv1.TaskStepReady:
		b.become(ev, "step", step, "READY", "PENDING")
		b.complete(ev, step)
	case *boardv1.TaskStepClaimed:
		b.become(ev, "step", step, "CLAIMED", "READY")
		b.complete(ev, step)
		run := p.GetClaimedByRunId()
		b.records["holder of "+step] = run
		if p.GetDispatchId() != "" {
			b.move(ev, "run", run, "running", "")
		}
		b.move(ev, "run", run, "holds", "running")
	case *boardv1.TaskStepStarted:
		b.held(ev, step, "RUNNING", "CLAIMED")
	case *boardv1.TaskStepUpdated:
		b.held(ev, step, "RUNNING", "RUNNING")
	case *boardv1.TaskStepLeaseExpired:
		b.let(ev, step, p.GetClaimedByRunId())
		b.become(ev, "step", step, "PENDING", held...)
	case *boardv1.TaskStepBlocked:
		b.ends(ev, step, "BLOCKED")
	case *boardv1.TaskStepCompleted:
		b.ends(ev, step, "COMPLETED")
	case *boardv1.TaskStepFailed:
		b.ends(ev, step, "FAILED")
	case *boardv1.TaskStepCancelled:
		b.ends(ev, step, "CANCELLED")
	case *boardv1.TaskStepReopened:
		b.become(ev, "step", step, "PENDING", "BLOCKED", "FAILED")
	case *boardv1.WorkerDispatched:
		b.move(ev, "run", p.GetRun().GetRunId(), "running", "")
	case *boardv1.WorkerRunEnded:
		b.move(ev, "run", p.GetRunId(), "over", "running", "holds", "released")
	}
	if ev.StepID != "" {
		b.move(ev, "board", board, "open", "open")
	}
}

func (b *books) addStep(ev *journal.Event, board string, s *boardv1.StepInput) {
	step := board + "/" + s.GetStepId()
	b.become(ev, "step", step, "PENDING", "")
	for _, on := range s.GetDependsOnStepIds() {
		b.needs[step] = append(b.needs[step], board+"/"+on)
	}
}

// complete checks that all is completed that a step depends on.
func (b *books) complete(ev *journal.Event, step string) {
	for _, on := range b.needs[step] {
		if state := b.records["step "+on]; state != "COMPLETED" {
			b.violation("%s of step %s at wal_seq %d, which depends on %s, and that is %s", ev.Type, step, ev.WalSeq,
				on, state)
		}
	}
}

// held follows a report of the run that holds a step.
func (b *books) held(ev *journal.Event, step, to string, from ...string) {
	if holder := b.records["holder of "+step]; ev.ActorRunID != holder {
		b.violation("%s of step %s at wal_seq %d by run %q, and %q holds it", ev.Type, step, ev.WalSeq, ev.ActorRunID,
			holder)
	}
	b.become(ev, "step", step, to, from...)
	b.had["report "+ev.ActorRunID+" "+to] = true
}

// ends follows the end of a step: by the run that holds it, or by another one than a run.
func (b *books) ends(ev *journal.Event, step, to string) {
	holder := b.records["holder of "+step]
	if strings.HasPrefix(ev.ActorRunID, "run_") && ev.ActorRunID != holder {
		b.violation("%s of step %s at wal_seq %d by run %s, and %q holds it", ev.Type, step, ev.WalSeq, ev.ActorRunID,
			holder)
	}
	b.had["report "+ev.ActorRunID+" "+to] = true
	if holder != "" {
		b.let(ev, step, holder)
	}
	b.become(ev, "step", step, to, open...)
}

// let has a run hold its step no more.
func (b *books) let(ev *journal.Event, step, run string) {
	if holder := b.records["holder of "+step]; run != holder {
		b.violation("%s of step %s at wal_seq %d names run %q, and %q holds it", ev.Type, step, ev.WalSeq, run, holder)
	}
	b.records["holder of "+step] = ""
	if b.records["ending "+ev.SessionID+"/"+ev.TaskID] != "" && b.records["run "+run] == "over" {
		return // a run of a board that is being ended may end before its step, which ends with the board
	}
	b.move(ev, "run", run, "released", "holds")
}

// results are the end of a task, and what became of it: the agent is told it once, by a message or by the answer of its
// call.
type results struct {
	ended, messages, noted int
	answered               bool
}

// ofTask returns the results of a task.
func (c *consequences) ofTask(id string) *results {
	if c.tasks[id] == nil {
		c.tasks[id] = &results{}
	}
	return c.tasks[id]
}

// task notes the end of a task.
func (c *consequences) task(payload any) error {
	p, ok := payload.(interface{ GetTask() *taskv1.Task })
	if !ok {
		return fmt.Errorf("%T has no task", payload)
	}
	r := c.ofTask(p.GetTask().GetTaskId())
	if r.ended++; r.ended > 1 {
		return fmt.Errorf("task %s ended %d times", p.GetTask().GetTaskId(), r.ended)
	}
	return nil
}

// noted notes that the waiting plane has received the end of a task.
func (c *consequences) noted(id string) error {
	r := c.ofTask(id)
	if r.noted++; r.noted > r.ended {
		return fmt.Errorf("the waiting plane noted %d times that task %s ended, which it did %d times", r.noted, id,
			r.ended)
	}
	return nil
}

// told notes that an agent has a message about the end of a task.
func (c *consequences) told(id string) error {
	r := c.ofTask(id)
	if r.messages++; r.messages > r.ended {
		return fmt.Errorf("%d messages about the end of task %s, which ended %d times", r.messages, id, r.ended)
	}
	return nil
}

// answered notes that a call returned the result of its task.
func (c *consequences) answered(id string) error {
	r := c.ofTask(id)
	if r.answered = true; r.ended == 0 {
		return fmt.Errorf("a call was answered with the result of task %s, which has not ended", id)
	}
	return nil
}
