package task

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/journal"
	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane/planetest"
	"quartet/services/task/model"
)

// No event of this plane is needed once it is old: its records have all that it reads (SPEC T11).
func TestT11_NoOldEventIsNeeded(t *testing.T) {
	s := newChildSite(t)
	first := must.Value(s.service.ExecCommand(s.parent(), &taskv1.ExecCommandRequest{
		AgentId: "keeper", Command: &taskv1.CommandSpec{Cmd: "sleep 9"}, YieldTime: durationpb.New(0),
	}))(t)
	registry := journal.NewRegistry(taskv1.File_quartet_task_v1_task_event_proto)
	events := s.journals.Events(t, Plane, registry)
	require.NotEmpty(t, events)
	require.Len(t, planetest.Forget(t, s.journals, Plane, registry, model.NewState(), start.Add(time.Hour)),
		len(events))
	got := must.Value(s.service.GetTask(s.parent(), &taskv1.GetTaskRequest{AgentId: "keeper", TaskId: first.GetTask().
		GetTaskId()}))(t)
	require.Equal(t, first.GetTask().GetTaskId(), got.GetTask().GetTaskId())
}
