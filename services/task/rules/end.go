package rules

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/pbjson"
	"quartet/services/task/model"
)

// Short names of the reasons for which a task ended.
const (
	ReasonExited        = taskv1.TaskEndReason_TASK_END_REASON_EXITED
	ReasonSignalled     = taskv1.TaskEndReason_TASK_END_REASON_SIGNALLED
	ReasonTimeout       = taskv1.TaskEndReason_TASK_END_REASON_TIMEOUT
	ReasonStopped       = taskv1.TaskEndReason_TASK_END_REASON_STOPPED
	ReasonSpawnFailed   = taskv1.TaskEndReason_TASK_END_REASON_SPAWN_FAILED
	ReasonWorkerStopped = taskv1.TaskEndReason_TASK_END_REASON_WORKER_STOPPED
	ReasonWorkerLost    = taskv1.TaskEndReason_TASK_END_REASON_WORKER_LOST
	ReasonMemoryLimit   = taskv1.TaskEndReason_TASK_END_REASON_MEMORY_LIMIT_EXCEEDED
	ReasonProcessLimit  = taskv1.TaskEndReason_TASK_END_REASON_PROCESS_LIMIT_EXCEEDED
	ReasonOutputLimit   = taskv1.TaskEndReason_TASK_END_REASON_OUTPUT_LIMIT_EXCEEDED
	ReasonFinished      = taskv1.TaskEndReason_TASK_END_REASON_FINISHED
	ReasonChildFailed   = taskv1.TaskEndReason_TASK_END_REASON_CHILD_FAILED
)

// MaxRestarts bounds how often a command is run again, so that a command that crashes
// its workers comes to an end (SPEC T4).
const MaxRestarts = 5

// TailChars is how many characters of output a terminal event carries.
const TailChars = 8000

// End describes how a command ended, as its worker reported it or as the plane found
// out. The end of the output is read before the rule runs.
type End struct {
	TaskID     string
	Generation int64  // of the lease that ends
	ExitCode   *int32 // nil if the process did not exit by itself
	Reason     taskv1.TaskEndReason
	Message    string // for people
	Tail       string // the end of the output, at most TailChars characters
	Bytes      int64  // of output, those that were dropped included
	Truncated  bool   // the beginning of the output was dropped
}

// DecideEnd ends a command, or has it run again, if it has not ended and end is of its current
// lease. The reply is true in this case. Any other end is ignored (SPEC X7), and the reply is
// false.
func DecideEnd(s *model.State, env journal.Env, end End) (journal.Decision[bool], error) {
	var d journal.Decision[bool]
	r := s.Task(end.TaskID)
	if r == nil || !model.HeldByWorker(r.Task.GetState()) || model.AwaitsWorker(r.Task) ||
		r.Task.GetLeaseGeneration() != end.Generation {
		return d, nil
	}
	if restarts(r.Task, end) {
		t := model.NextRevision(r.Task)
		t.WorkerId, t.WorkerBootId = "", ""
		t.Restarts++
		t.OutputBytes, t.OutputTruncated = end.Bytes, end.Truncated
		d.Events = []*journal.Event{
			model.NewEvent(r.Namespace, t, &taskv1.TaskRestarting{
				Task: t, Reason: end.Reason,
				Message: endMessage(end.Message),
			}),
		}
		d.Reply = true
		return d, nil
	}
	t := model.NextRevision(r.Task)
	t.State = endState(r.Task.GetState(), end)
	t.ExitCode = end.ExitCode
	t.EndReason = end.Reason
	t.EndMessage = endMessage(end.Message)
	if end.lost() && t.GetRestarts() > 0 {
		t.EndMessage = endMessage(fmt.Sprintf("%s; it was run again %d times", end.Message, t.GetRestarts()))
	}
	t.OutputBytes, t.OutputTruncated = end.Bytes, end.Truncated
	t.EndedAt = model.Timestamp(env.Now)
	ev := model.NewEvent(r.Namespace, t, nil)
	switch t.State {
	case taskv1.TaskState_TASK_STATE_COMPLETED:
		ev.Payload = &taskv1.TaskCompleted{Task: t, OutputTail: end.Tail}
	case taskv1.TaskState_TASK_STATE_FAILED:
		ev.Payload = &taskv1.TaskFailed{Task: t, OutputTail: end.Tail}
	case taskv1.TaskState_TASK_STATE_CANCELLED:
		ev.Payload = &taskv1.TaskCancelled{Task: t, OutputTail: end.Tail}
	default:
		ev.Payload = &taskv1.TaskInterrupted{Task: t, OutputTail: end.Tail}
	}
	d.Events, d.Reply = []*journal.Event{ev}, true
	return d, nil
}

// endMessage returns the form in which a task's record has a message: valid UTF-8, and of it the last 500 characters.
func endMessage(text string) string { return LastChars(strings.ToValidUTF8(text, "\uFFFD"), 500) }

// lost reports whether a command ended because its worker stopped or was lost.
func (e End) lost() bool { return e.Reason == ReasonWorkerLost || e.Reason == ReasonWorkerStopped }

// restarts reports whether a lost command is run again (SPEC T4): its restart policy
// says so, nobody asked it to stop, and it was not run again too often.
func restarts(t *taskv1.Task, end End) bool {
	return end.lost() && t.GetState() == taskv1.TaskState_TASK_STATE_RUNNING && t.GetRestarts() < MaxRestarts &&
		t.GetCommand().GetRestartPolicy() == taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS
}

// endState returns the final state of a command that was in the state from. A command that was
// asked to stop and nevertheless exited by itself is completed or failed; one whose worker was
// lost after it was asked to stop is cancelled.
func endState(from taskv1.TaskState, end End) taskv1.TaskState {
	cancelling := from == taskv1.TaskState_TASK_STATE_CANCELLING
	switch end.Reason {
	case ReasonExited:
		if end.ExitCode != nil && *end.ExitCode == 0 {
			return taskv1.TaskState_TASK_STATE_COMPLETED
		}
		return taskv1.TaskState_TASK_STATE_FAILED
	case ReasonStopped:
		return taskv1.TaskState_TASK_STATE_CANCELLED
	case ReasonWorkerLost, ReasonWorkerStopped:
		if cancelling {
			return taskv1.TaskState_TASK_STATE_CANCELLED
		}
		return taskv1.TaskState_TASK_STATE_INTERRUPTED
	case ReasonSignalled:
		if cancelling {
			return taskv1.TaskState_TASK_STATE_CANCELLED
		}
	default:
		// The others are failures.
	}
	return taskv1.TaskState_TASK_STATE_FAILED
}

// CheckedReason returns the reason and the message of a worker's report that a
// command ended. A reason that is not a worker's to report counts as an exit.
func CheckedReason(r *taskv1.CommandEnded) (reason taskv1.TaskEndReason, message string) {
	switch r.GetReason() {
	case ReasonExited, ReasonSignalled, ReasonTimeout, ReasonStopped, ReasonSpawnFailed, ReasonWorkerStopped,
		ReasonMemoryLimit, ReasonProcessLimit, ReasonOutputLimit:
		return r.GetReason(), r.GetMessage()
	default:
		// The others are not a worker's to report.
	}
	return ReasonExited, fmt.Sprintf("the worker reported the unknown reason %q", pbjson.EnumText(r.GetReason()))
}

// LastChars returns the last n characters of a text.
func LastChars(s string, n int) string {
	count := utf8.RuneCountInString(s)
	for i := range s {
		if count <= n {
			return s[i:]
		}
		count--
	}
	return ""
}
