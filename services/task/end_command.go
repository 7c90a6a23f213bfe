package task

import (
	"fmt"
	"strconv"
	"strings"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Why a command ended (Task.end_reason).
const (
	reasonExited        = "exited"
	reasonSignalled     = "signalled"
	reasonTimeout       = "timeout"
	reasonStopped       = "stopped"
	reasonSpawnFailed   = "spawn_failed"
	reasonWorkerStopped = "worker_stopped"
	reasonWorkerLost    = "worker_lost"
	reasonMemory        = "memory_limit_exceeded"
	reasonProcesses     = "process_limit_exceeded"
	reasonOutput        = "output_limit_exceeded"
)

// MaxRestarts bounds how often a command is begun anew: one that takes its
// workers down with it must come to an end (SPEC T4).
const MaxRestarts = 5

// TailChars is how much output a terminal event carries.
const TailChars = 8000

// ending is the end of a command: as its worker reported it, or as the plane
// found out. The output was read before the rule runs.
type ending struct {
	taskID     string
	generation int64
	exitCode   *int32
	reason     string
	message    string
	tail       string
	bytes      int64
	truncated  bool
}

// decideEnd writes a task's end, if it has none yet and the lease is the
// current one. A late end leaves no trace (SPEC X7); the reply says whether
// this one counted.
func decideEnd(s *State, env journal.Env, end ending) (journal.Decision[bool], error) {
	var d journal.Decision[bool]
	r := s.tasks[end.taskID]
	if r == nil || !live(r.task.GetState()) || waits(r.task) || r.task.GetLeaseGeneration() != end.generation {
		return d, nil
	}
	if restarts(r.task, end) {
		t := next(r.task)
		t.WorkerId, t.WorkerBootId = "", ""
		t.Restarts++
		t.OutputBytes, t.OutputTruncated = end.bytes, end.truncated
		d.Events = []*journal.Event{event(r.namespace, t, &taskv1.TaskRestarting{Task: t, Reason: end.reason, Message: endMessage(end.message)})}
		d.Reply = true
		return d, nil
	}
	t := next(r.task)
	t.State = endState(r.task.GetState(), end)
	t.ExitCode = end.exitCode
	t.EndReason = end.reason
	t.EndMessage = endMessage(end.message)
	if end.lost() && t.GetRestarts() > 0 {
		t.EndMessage = endMessage(fmt.Sprintf("%s; it was begun anew %d times", end.message, t.GetRestarts()))
	}
	t.OutputBytes, t.OutputTruncated = end.bytes, end.truncated
	t.EndedAt = stamp(env.Now)
	ev := event(r.namespace, t, nil)
	switch t.State {
	case taskv1.TaskState_TASK_STATE_COMPLETED:
		ev.Payload = &taskv1.TaskCompleted{Task: t, OutputTail: end.tail}
	case taskv1.TaskState_TASK_STATE_FAILED:
		ev.Payload = &taskv1.TaskFailed{Task: t, OutputTail: end.tail}
	case taskv1.TaskState_TASK_STATE_CANCELLED:
		ev.Payload = &taskv1.TaskCancelled{Task: t, OutputTail: end.tail}
	default:
		ev.Payload = &taskv1.TaskInterrupted{Task: t, OutputTail: end.tail}
	}
	d.Events, d.Reply = []*journal.Event{ev}, true
	return d, nil
}

func endMessage(text string) string { return lastChars(strings.ToValidUTF8(text, "\uFFFD"), 500) }

// lost reports whether a command ended with its worker and not by itself.
func (e ending) lost() bool { return e.reason == reasonWorkerLost || e.reason == reasonWorkerStopped }

// restarts reports whether a command that was lost is run again: only if its
// caller asked for that, nobody asked for its end, and not for ever (SPEC T4).
func restarts(t *taskv1.Task, end ending) bool {
	return end.lost() && t.GetState() == taskv1.TaskState_TASK_STATE_RUNNING && t.GetRestarts() < MaxRestarts &&
		t.GetCommand().GetRestartPolicy() == taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS
}

// endState maps how a command ended to its final state. A command that ended
// by itself before the stop reached it did not get cancelled; one that was to
// be stopped and whose worker is gone did.
func endState(from taskv1.TaskState, end ending) taskv1.TaskState {
	cancelling := from == taskv1.TaskState_TASK_STATE_CANCELLING
	switch end.reason {
	case reasonExited:
		if end.exitCode != nil && *end.exitCode == 0 {
			return taskv1.TaskState_TASK_STATE_COMPLETED
		}
		return taskv1.TaskState_TASK_STATE_FAILED
	case reasonStopped:
		return taskv1.TaskState_TASK_STATE_CANCELLED
	case reasonWorkerLost, reasonWorkerStopped:
		if cancelling {
			return taskv1.TaskState_TASK_STATE_CANCELLED
		}
		return taskv1.TaskState_TASK_STATE_INTERRUPTED
	case reasonSignalled:
		if cancelling {
			return taskv1.TaskState_TASK_STATE_CANCELLED
		}
	}
	return taskv1.TaskState_TASK_STATE_FAILED
}

// checkedReason keeps a worker's words within the documented ones.
func checkedReason(r *taskv1.CommandEnded) (reason, message string) {
	switch r.GetReason() {
	case reasonExited, reasonSignalled, reasonTimeout, reasonStopped, reasonSpawnFailed, reasonWorkerStopped, reasonMemory, reasonProcesses, reasonOutput:
		return r.GetReason(), r.GetMessage()
	}
	return reasonExited, "the worker gave the unknown reason " + strconv.Quote(r.GetReason())
}

// stateName is a state in the seeds' lower-case form.
func stateName(s taskv1.TaskState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TASK_STATE_"))
}
