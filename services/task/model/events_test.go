package model

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// withoutTask are the events of the plane that do not carry a task, each with the
// reason. All others do, and history, metrics and other planes read it from them.
var withoutTask = map[string]string{
	"TaskInputAccepted": "input does not change the task",
	"OwnerDeleted":      "about an agent",
}

// TestEveryEventIsFolded applies every event of the plane. An event without a case in
// the fold is refused with its type; the others may be refused because they cannot
// follow.
func TestEveryEventIsFolded(t *testing.T) {
	messages := taskv1.File_quartet_task_v1_task_event_proto.Messages()
	for i := range messages.Len() {
		name := string(messages.Get(i).Name())
		mt, err := protoregistry.GlobalTypes.FindMessageByName(messages.Get(i).FullName())
		require.NoError(t, err)
		ev := &journal.Event{Namespace: "acme", Payload: mt.New().Interface()}
		if err := NewState().Apply(ev); err != nil {
			require.NotContains(t, err.Error(), "unknown event", name)
		}
		_, carriesTask := ev.Payload.(interface{ GetTask() *taskv1.Task })
		_, excluded := withoutTask[name]
		require.Equal(t, !excluded, carriesTask, name)
	}
}

func TestAnUnknownEventIsAnError(t *testing.T) {
	err := NewState().Apply(&journal.Event{Type: "from_the_future", Payload: &timestamppb.Timestamp{}})
	require.ErrorContains(t, err, "unknown event from_the_future")
}
