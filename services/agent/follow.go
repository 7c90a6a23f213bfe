package agent

import (
	"strings"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/services/agent/children"
)

// follows returns the events of other planes that this plane consumes, such as the ends of tasks,
// deliveries, timers and reports. Completions of items and begins and ends of waits call enqueueChild,
// because a child may then have nothing left to do, or ask its parent something; of these only the
// resolution of a wait is also consumed.
func follows(enqueueChild func(plane.Key)) []plane.Followed {
	return []plane.Followed{
		{
			Plane: "task", Types: []string{
				"task_completed", "task_failed", "task_cancelled", "task_interrupted",
				"task_cancelling",
			},
			Registry: journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto),
			Matters: func(ev *journal.Event) bool {
				p, ok := ev.Payload.(*taskv1.TaskCancelling)
				return !ok || p.GetTask().GetKind() == taskv1.TaskKind_TASK_KIND_CHILD_AGENT_TASK
			},
		},
		{
			Plane: "work", Types: []string{"work_item_created", "work_item_completed", "report_promoted"},
			Registry: journal.NewRegistry(workv1.File_quartet_work_v1_work_event_proto),
			Matters: func(ev *journal.Event) bool {
				switch ev.Payload.(type) {
				case *workv1.WorkItemCreated:
					return strings.HasPrefix(ev.AgentID, children.ChildPrefix)
				case *workv1.WorkItemCompleted:
					enqueueChild(plane.Key{Namespace: ev.Namespace, ID: ev.AgentID})
					return false
				}
				return true
			},
		},
		{
			Plane: "waiting", Types: []string{
				"trigger_delivered", "timer_fired", "wait_registered", "wait_resolved",
				"wait_cancelled", "wait_triggered", "wait_rechecked",
			},
			Registry: journal.NewRegistry(waitingv1.File_quartet_waiting_v1_waiting_event_proto),
			Matters: func(ev *journal.Event) bool {
				switch ev.Payload.(type) {
				case *waitingv1.WaitRegistered, *waitingv1.WaitCancelled:
					enqueueChild(plane.Key{Namespace: ev.Namespace, ID: ev.AgentID})
					return false
				case *waitingv1.WaitResolved:
					enqueueChild(plane.Key{Namespace: ev.Namespace, ID: ev.AgentID})
				}
				p, ok := ev.Payload.(*waitingv1.WaitTriggered)
				return !ok || p.GetWakeAgent() // the work plane shows triggers of items
			},
		},
	}
}
