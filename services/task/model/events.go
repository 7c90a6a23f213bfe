package model

import (
	"google.golang.org/protobuf/proto"

	"quartet/pkg/journal"
	"quartet/pkg/journal/snapshot"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
)

// eventRows has a row for each event type of the plane. Its columns are the arguments of on. No event is needed once
// it is old; see Needs.
var eventRows = plane.NewRows(
	on[*taskv1.TaskQueued](foldQueued, pageOfNew),
	on[*taskv1.TaskStarted](foldStarted, pagesOfTask),
	on[*taskv1.TaskCancelling](foldCancelling, pagesOfTask),
	on[*taskv1.TaskWorktreeChanged](foldTask, pagesOfTask),
	on[*taskv1.TaskRestarting](foldRestarting, pagesOfTask),
	on[*taskv1.TaskCompleted](foldTask, pagesOfTask),
	on[*taskv1.TaskFailed](foldTask, pagesOfTask),
	on[*taskv1.TaskCancelled](foldTask, pagesOfTask),
	on[*taskv1.TaskInterrupted](foldTask, pagesOfTask),
	on[*taskv1.TaskInputAccepted](foldInput, pageOfInput),
	on[*taskv1.OwnerDeleted](foldOwnerDeleted, pageOfAgent),
)

// row is a row of eventRows; see on.
type row struct {
	fold  func(s *State, ev *journal.Event) error
	pages func(s *State, ev *journal.Event, touch func(snapshot.Owner))
}

// on returns the row of an event type:
//   - fold applies an event to the state.
//   - pages is State.Owners for events of the type.
func on[P proto.Message](
	fold func(s *State, ev *journal.Event, p P) error,
	pages func(s *State, ev *journal.Event, p P, touch func(snapshot.Owner)),
) plane.Row[row] {
	return plane.RowOf[P](row{
		fold: func(s *State, ev *journal.Event) error { return fold(s, ev, plane.PayloadOf[P](ev)) },
		pages: func(s *State, ev *journal.Event, touch func(snapshot.Owner)) {
			pages(s, ev, plane.PayloadOf[P](ev), touch)
		},
	})
}

// withTask is a payload that has the task after the event.
type withTask interface {
	proto.Message
	GetTask() *taskv1.Task
}

func foldTask[P withTask](s *State, ev *journal.Event, p P) error {
	return s.replace(ev.Namespace, p.GetTask(), nil)
}

func foldQueued(s *State, ev *journal.Event, p *taskv1.TaskQueued) error {
	return s.applyQueued(ev.WalSeq, ev.Namespace, p.GetTask())
}

func foldStarted(s *State, ev *journal.Event, p *taskv1.TaskStarted) error {
	return s.replace(ev.Namespace, p.GetTask(), func(r *Record) {
		r.Worker = plane.KeyOf(ev.Namespace, p.GetTask().GetWorkerId())
		if p.GetSharedWorker() {
			r.Worker.Namespace = ""
		}
	})
}

func foldCancelling(s *State, ev *journal.Event, p *taskv1.TaskCancelling) error {
	return s.replace(ev.Namespace, p.GetTask(), func(r *Record) { r.StopForced = r.StopForced || p.GetForce() })
}

func foldRestarting(s *State, ev *journal.Event, p *taskv1.TaskRestarting) error {
	return s.applyRestarting(ev.Namespace, p.GetTask())
}

func foldInput(s *State, _ *journal.Event, p *taskv1.TaskInputAccepted) error { return s.applyInput(p) }

func foldOwnerDeleted(s *State, ev *journal.Event, p *taskv1.OwnerDeleted) error {
	s.delete(plane.KeyOf(ev.Namespace, p.GetAgentId()), p.GetPrivateChild(), ev.CreatedAt)
	return nil
}

func pageOfNew(s *State, ev *journal.Event, p *taskv1.TaskQueued, touch func(snapshot.Owner)) {
	agent := plane.KeyOf(ev.Namespace, p.GetTask().GetAgentId())
	touch(s.PageOf(agent, s.Len(agent)))
}

// pagesOfTask has the page of the task, and those of the tasks that leave the head of its queue.
func pagesOfTask[P withTask](s *State, ev *journal.Event, p P, touch func(snapshot.Owner)) {
	if r := s.Task(p.GetTask().GetTaskId()); r != nil {
		s.touch(r, touch)
		s.trimmedBy(ev.Namespace, p.GetTask(), touch)
	}
}

func pageOfInput(s *State, _ *journal.Event, p *taskv1.TaskInputAccepted, touch func(snapshot.Owner)) {
	if r := s.Task(p.GetTaskId()); r != nil {
		s.touch(r, touch)
	}
}

func pageOfAgent(s *State, ev *journal.Event, p *taskv1.OwnerDeleted, touch func(snapshot.Owner)) {
	touch(s.PageOf(plane.KeyOf(ev.Namespace, p.GetAgentId()), 0))
}
