package model

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// IsChild reports whether a task is the handle of a child.
func IsChild(t *taskv1.Task) bool {
	return t.GetKind() == taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK
}

// StateName returns the name of a state in lower case.
func StateName(s taskv1.TaskState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TASK_STATE_"))
}

// NotFound returns the error for a task that the agent does not have.
func NotFound(taskID, agent string) error {
	return fault.NotFound.New("agent "+agent+" has no task "+taskID+
		"; ListTasks with include_terminal shows what it has",
		"task_id", taskID, "agent_id", agent)
}

// WithDerived returns a copy of a task with its derived fields (SPEC X6).
func WithDerived(t *taskv1.Task) *taskv1.Task {
	c := proto.CloneOf(t)
	c.Terminal = Terminal(t.GetState())
	c.AcceptsInputNow = t.GetState() == taskv1.TaskState_TASK_STATE_RUNNING &&
		!AwaitsWorker(t) && (IsChild(t) || t.GetCommand().GetAcceptsInput() || t.GetCommand().GetTty())
	return c
}

// Terminal reports whether a state is final (SPEC X7).
func Terminal(s taskv1.TaskState) bool { return Phase(s) == 3 }

// Phase returns the order of a state, from 0 for queued to 3 for all final ones, and -1 for
// the unspecified one: the phase of a task never decreases (SPEC T2).
func Phase(s taskv1.TaskState) int {
	switch s {
	case taskv1.TaskState_TASK_STATE_QUEUED:
		return 0
	case taskv1.TaskState_TASK_STATE_RUNNING:
		return 1
	case taskv1.TaskState_TASK_STATE_CANCELLING:
		return 2
	case taskv1.TaskState_TASK_STATE_COMPLETED, taskv1.TaskState_TASK_STATE_FAILED,
		taskv1.TaskState_TASK_STATE_CANCELLED, taskv1.TaskState_TASK_STATE_INTERRUPTED:
		return 3
	default:
		// No state.
	}
	return -1
}

// AwaitsWorker reports whether a task waits for a worker: it was given to none yet, or the
// worker that ran it was lost and it is to be run again. It is false for a child that runs.
func AwaitsWorker(t *taskv1.Task) bool {
	switch t.GetState() {
	case taskv1.TaskState_TASK_STATE_QUEUED:
		return true
	case taskv1.TaskState_TASK_STATE_RUNNING:
		return t.GetWorkerId() == "" && !IsChild(t)
	default:
		// It has ended or is being cancelled.
	}
	return false
}

// HeldByWorker reports whether a task in state s is running or being cancelled. A command in
// such a state is with a worker, or waits to be run again after its worker was lost (see
// AwaitsWorker).
func HeldByWorker(s taskv1.TaskState) bool {
	return s == taskv1.TaskState_TASK_STATE_RUNNING || s == taskv1.TaskState_TASK_STATE_CANCELLING
}

// NextRevision returns a copy of a task with the next revision, for a rule to modify.
func NextRevision(t *taskv1.Task) *taskv1.Task {
	c := proto.CloneOf(t)
	c.Revision++
	return c
}

// NewEvent returns an event about a task with a payload, which may be set later.
func NewEvent(ns string, t *taskv1.Task, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace:  ns,
		AgentID:    t.GetAgentId(),
		TaskID:     t.GetTaskId(),
		WorkItemID: t.GetWorkItemId(),
		Payload:    payload,
		// Only for events whose command is not traced itself, such as reports of workers:
		// they belong to the trace of the request that created the task.
		Traceparent: t.GetTraceparent(),
	}
}

// TaskOf returns the task that an event carries, or nil.
func TaskOf(ev *journal.Event) *taskv1.Task {
	if p, ok := ev.Payload.(interface{ GetTask() *taskv1.Task }); ok {
		return p.GetTask()
	}
	return nil
}

// Timestamp returns a time as records have it.
func Timestamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }
