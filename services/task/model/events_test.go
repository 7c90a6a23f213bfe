package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane/planetest"
)

// withoutTask are the events of the plane that do not carry a task, each with the
// reason. All others do, and history, metrics and other planes read it from them.
var withoutTask = map[string]string{
	"TaskInputAccepted": "input does not change the task",
	"OwnerDeleted":      "about an agent",
}

func TestEveryEventIsFolded(t *testing.T) {
	file := taskv1.File_quartet_task_v1_task_event_proto
	planetest.FoldsEveryEvent(t, file, NewState)
	for i := range file.Messages().Len() {
		name := file.Messages().Get(i).Name()
		_, excluded := withoutTask[string(name)]
		require.Equal(t, !excluded, file.Messages().Get(i).Fields().ByName("task") != nil, name)
	}
}
