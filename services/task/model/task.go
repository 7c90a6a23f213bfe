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

func IsChild(t *taskv1.Task) bool {
	return t.GetKind() == taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK
}

// StateName is a state in the seeds' lower-case form.
func StateName(s taskv1.TaskState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TASK_STATE_"))
}

func NotFound(taskID, agent string) error {
	return fault.NotFound.New("agent "+agent+" has no task "+taskID+"; ListTasks with include_terminal shows what it has",
		"task_id", taskID, "agent_id", agent)
}

// WithDerived gives a task as a reader sees it, with its derived fields (SPEC X6).
func WithDerived(t *taskv1.Task) *taskv1.Task {
	c := proto.CloneOf(t)
	c.Terminal = Terminal(t.GetState())
	c.AcceptsInputNow = t.GetState() == taskv1.TaskState_TASK_STATE_RUNNING &&
		!AwaitsWorker(t) && (IsChild(t) || t.GetCommand().GetAcceptsInput() || t.GetCommand().GetTty())
	return c
}

// Terminal reports whether a state is final (SPEC X7).
func Terminal(s taskv1.TaskState) bool { return Phase(s) == 3 }

// Phase orders the states: a task's phase never falls (SPEC T2).
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
	}
	return -1
}

// AwaitsWorker reports whether a task waits for a worker: it was never given to one, or
// that was lost and it is to be run again.
func AwaitsWorker(t *taskv1.Task) bool {
	switch t.GetState() {
	case taskv1.TaskState_TASK_STATE_QUEUED:
		return true
	case taskv1.TaskState_TASK_STATE_RUNNING:
		return t.GetWorkerId() == "" && !IsChild(t)
	}
	return false
}

// HeldByWorker reports whether a worker holds a task in this state.
func HeldByWorker(s taskv1.TaskState) bool {
	return s == taskv1.TaskState_TASK_STATE_RUNNING || s == taskv1.TaskState_TASK_STATE_CANCELLING
}

// NextRevision gives a copy of a task as the next write's result, for a rule to fill.
func NextRevision(t *taskv1.Task) *taskv1.Task {
	c := proto.CloneOf(t)
	c.Revision++
	return c
}

// NewEvent wraps a payload with the task's coordinates (SPEC X10).
func NewEvent(ns string, t *taskv1.Task, payload proto.Message) *journal.Event {
	return &journal.Event{
		Namespace:  ns,
		AgentID:    t.GetAgentId(),
		TaskID:     t.GetTaskId(),
		WorkItemID: t.GetWorkItemId(),
		Payload:    payload,
		// What a worker reports is part of what had the command started.
		Traceparent: t.GetTraceparent(),
	}
}

// TaskOf gives the task that an event carries, or nil.
func TaskOf(ev *journal.Event) *taskv1.Task {
	if p, ok := ev.Payload.(interface{ GetTask() *taskv1.Task }); ok {
		return p.GetTask()
	}
	return nil
}

func Timestamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }
